"""What every directory should hold, and which replicas move so that it does: no Spark, no I/O."""
