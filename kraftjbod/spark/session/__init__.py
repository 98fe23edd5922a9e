"""The Spark session, and the code that all jobs share."""
