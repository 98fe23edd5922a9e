"""Log directories at run time: states, cordons, scrubs and operator commands."""
