"""The style of figures and plots, which all jobs share."""
