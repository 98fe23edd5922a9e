"""TLS of listeners: keystores, truststores and their contexts."""
