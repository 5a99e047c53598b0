"""Frameworks whose rollouts are traced without an edit to them, one package each."""
