"""Read the files of other tools."""
