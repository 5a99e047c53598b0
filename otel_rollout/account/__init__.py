"""Count what was recorded and delivered: the delivery report, its ledger, metrics and progress."""
