"""Topics as Spark frames, in batches and as streams, and back."""
