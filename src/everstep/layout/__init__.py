"""Which rank holds which part of which tensor, and how parts that were saved become parts that are wanted."""
