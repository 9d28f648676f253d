"""Runs programs that a model wrote. Imports nothing else of Ascent."""
