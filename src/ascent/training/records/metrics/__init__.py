"""What a step's line says of its generation, beside TRL's own metrics: one file each, all in `table`."""
