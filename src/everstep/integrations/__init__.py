"""everstep beside the field's own tools, one file each."""
