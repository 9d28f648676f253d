"""`ascent replay`: a bad step once more, on its device and on CPU, and where the two differ."""
