"""What a controller says of its quorum, and who follows the metadata without a vote."""
