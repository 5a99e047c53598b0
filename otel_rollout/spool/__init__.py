"""Files on disk that recording processes write and the forwarder reads."""
