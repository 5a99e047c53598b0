"""Write recorded lines as OTLP/JSON, and read them back."""
