"""How new weights reach an engine: one transport or platform a file."""
