"""Every replica on this node: made, housekept, and moved in and out with its directory."""
