"""What happened: the run directory and the files in it."""
