"""Starts forwarders from training, on this node and on the others."""
