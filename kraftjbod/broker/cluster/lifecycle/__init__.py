"""How a broker lives in its cluster, as its controller sees it."""
