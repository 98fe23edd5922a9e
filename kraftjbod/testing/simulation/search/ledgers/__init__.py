"""What clients were told, for whoever judges it."""
