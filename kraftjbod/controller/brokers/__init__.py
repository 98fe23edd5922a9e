"""What a controller knows of a broker besides its registration: liveness, cordons, address, log."""
