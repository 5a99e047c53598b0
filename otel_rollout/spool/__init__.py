"""Files on disk between the recording processes and the forwarder."""
