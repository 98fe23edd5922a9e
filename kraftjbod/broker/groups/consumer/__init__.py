"""Groups of the newer protocol (KIP-848): their machine, and who drives it."""
