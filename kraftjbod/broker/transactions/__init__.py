"""Transaction coordinators: state of transactions, its log, and the markers that end
transactions."""
