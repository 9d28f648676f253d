"""The parts of one training step."""
