"""Tests of the exporter of tables: real processes, real kills, real tables."""
