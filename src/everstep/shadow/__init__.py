"""Optimizers executed away from the trainer, bit for bit."""
