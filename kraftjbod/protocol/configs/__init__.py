"""What requests about configuration mean beyond their fields."""
