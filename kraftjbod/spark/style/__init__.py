"""How figures and plots look, wherever a job shows them."""
