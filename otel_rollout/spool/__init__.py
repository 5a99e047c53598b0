"""Write and read the files between recording processes and the forwarder."""
