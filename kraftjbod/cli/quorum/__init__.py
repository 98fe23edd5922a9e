"""Description and changes of the controllers' quorum."""
