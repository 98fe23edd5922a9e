"""A Spark session, and what every job that runs in one does the same way."""
