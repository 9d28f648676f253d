"""Is this machine fit to train? Standard library only; imports nothing else of Ascent."""
