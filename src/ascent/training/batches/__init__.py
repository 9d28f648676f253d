"""Batches that waste nothing: what TRL's padded tensors hold, computed in less work and to the same values."""
