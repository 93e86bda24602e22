"""From a state to a checkpoint that another system loads: a writer for each format, and a proof that it reads back."""
