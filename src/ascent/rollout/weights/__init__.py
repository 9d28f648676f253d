"""How new weights reach an engine: into one of this process, or delivered to servers and verified there."""
