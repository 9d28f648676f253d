"""Completion to score: extract the program, run its tests, combine."""
