"""From files to a training step: inventory, choose, load and replay, verify, ledger."""
