"""The command line: one file per verb. What `ls`, `show`, `log`, `verify` and `prune` need never imports torch."""
