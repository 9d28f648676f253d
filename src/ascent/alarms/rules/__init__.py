"""What is looked for: a class for each alarm, all in `table`."""
