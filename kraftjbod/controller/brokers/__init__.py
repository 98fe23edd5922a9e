"""What a controller knows of a broker besides its registration, and the metadata it gives it."""
