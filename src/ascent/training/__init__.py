"""Completions and rewards to new weights."""
