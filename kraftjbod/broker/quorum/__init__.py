"""What clients hear from a broker about the quorum of controllers."""
