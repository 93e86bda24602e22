"""Checkpoints that other systems wrote: found in place, read lazily, verified, and never executed."""
