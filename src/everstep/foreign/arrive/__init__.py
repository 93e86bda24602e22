"""From a checkpoint of another system to a run: names, optimizers, bytes, and the folder that is written."""
