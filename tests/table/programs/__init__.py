"""Programs that tests of tables run in other processes."""
