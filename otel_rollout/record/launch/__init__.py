"""Start and drain forwarders from training, on this node and on other nodes."""
