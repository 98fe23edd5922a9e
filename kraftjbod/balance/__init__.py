"""Planner that balances bytes and write rate over log directories, without Spark and I/O."""
