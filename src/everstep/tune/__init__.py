"""What was measured in, what to do out. Numbers only: no tensors, no clocks, no files."""
