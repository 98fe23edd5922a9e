"""Load with numbered records, and the check that no acknowledged record is lost."""
