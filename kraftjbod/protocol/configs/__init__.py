"""Conversions between requests about configuration."""
