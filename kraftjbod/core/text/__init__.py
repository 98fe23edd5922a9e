"""Text forms of values, and checks of text."""
