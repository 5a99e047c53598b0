"""OTLP/JSON: writes the lines that are recorded, and reads them back."""
