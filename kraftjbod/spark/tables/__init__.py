"""The tables of the pipeline: their schemas and locations."""
