"""One replica's log: its segments, leader epochs, producers, and the event loop's view of them."""
