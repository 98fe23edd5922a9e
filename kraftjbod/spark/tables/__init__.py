"""The tables of the pipeline: their schemas, and where they lie."""
