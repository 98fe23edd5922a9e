"""``kraftjbod-transactions``: open and hanging transactions, and their abort."""
