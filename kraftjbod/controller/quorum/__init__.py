"""The quorum's description, voter changes, controller registrations and metadata followers."""
