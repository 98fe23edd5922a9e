"""Groups of the consumer protocol (KIP-848): state machines and assignors."""
