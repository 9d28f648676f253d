"""Builds the engine that a training samples with."""
