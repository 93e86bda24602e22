"""From a training step to bytes in host memory: what the optimizer consumed, and everything else the step changed."""
