"""A file of torch.save: nested state dicts become dotted names, tensors that share their bytes become aliases."""

from everstep.foreign import names, plain, saved
from everstep.foreign.found import Checkpoint


def read(path: str) -> Checkpoint:
    """Everything in the file. It is not executed, and no tensor is read."""
    opened = saved.load(path)
    return names.arranged(plain.tree(opened, opened.tree), path).checkpoint("torch.save")
