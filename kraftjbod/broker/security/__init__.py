"""Who a client is: for now, what is answered to one who wants to show it where nobody asks."""
