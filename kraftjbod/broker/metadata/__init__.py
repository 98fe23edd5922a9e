"""The committed metadata followed, and what a change of it means for this broker."""
