"""A training step, measured: which phase holds it back, and what to change first."""
