"""What exporters are made of."""
