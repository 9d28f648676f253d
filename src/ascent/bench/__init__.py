"""What an engine does here: its speed, and whether an upgrade changed its outputs."""
