"""What the broker does about its log directories: states, cordons, scrubs, orders of operators."""
