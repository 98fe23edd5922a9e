"""`kraftjbod-pipeline ingest`: topics to Parquet tables, each record exactly once."""
