"""Load with numbered records, and the check that nothing acknowledged is lost."""
