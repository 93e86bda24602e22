"""From the training loop's step to shared memory: records, states, and what is taken when."""
