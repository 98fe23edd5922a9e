"""Identity of log directories: ids on disk, directories known to the node, opening, attaching."""
