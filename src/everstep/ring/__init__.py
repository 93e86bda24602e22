"""Memory that trainer and keeper share: records and states on their way out of the trainer."""
