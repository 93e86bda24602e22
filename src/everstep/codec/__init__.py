"""Values to bytes and back. Bytes and numbers in, bytes and numbers out; a closed set of forms."""
