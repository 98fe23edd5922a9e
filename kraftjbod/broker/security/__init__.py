"""Client identity: responses to authentication requests on listeners without authentication."""
