"""Build the documentation site from README.md and docs/: `make docs`."""
