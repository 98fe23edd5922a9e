"""`kraftjbod-pipeline ingest`: writes the records of topics to a Parquet table, each exactly
once.
"""
