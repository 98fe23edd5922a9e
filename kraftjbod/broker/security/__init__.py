"""Client identity: mechanisms of SASL, and SASL requests outside of a login."""
