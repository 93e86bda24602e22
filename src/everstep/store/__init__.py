"""Names and durable bytes. The only package that changes files."""
