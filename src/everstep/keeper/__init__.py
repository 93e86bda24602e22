"""Owns the log and the bases of a run, beside the training loop."""
