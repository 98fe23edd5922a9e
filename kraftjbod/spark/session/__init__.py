"""The Spark session, and code that all jobs share."""
