"""One replica's log: segments in a row, epochs, producers, and the loop's view of them."""
