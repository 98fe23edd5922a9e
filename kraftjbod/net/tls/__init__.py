"""Keys and certificates of TLS, from configuration to ``ssl.SSLContext``."""
