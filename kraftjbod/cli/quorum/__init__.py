"""The quorum of controllers as operators see it and change it."""
