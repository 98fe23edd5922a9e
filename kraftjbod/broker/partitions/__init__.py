"""One partition's role on this broker, without files: followers, states, waiting requests."""
