"""This process and its machine, with the standard library alone: what it may use, starts, and must set up."""
