"""One log directory: its thread, its states, the gate for its errors, its space, its figures."""
