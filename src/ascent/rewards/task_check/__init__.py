"""Checks tasks by running programs: the reference, programs that solve nothing, and ones that are slightly wrong."""
