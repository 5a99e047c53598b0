"""The forwarder process: segments to exporters."""
