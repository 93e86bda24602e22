"""The redo log: frames in segments, one writer, opaque bodies."""
