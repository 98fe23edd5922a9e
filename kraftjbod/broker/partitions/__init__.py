"""The role of one partition's replica on this broker: followers, states, waiting requests. No file
I/O."""
