"""Runs with a known fault in them, for measurements of what finds it or withstands it."""
