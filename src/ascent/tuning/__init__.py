"""The fastest settings of the sampling engine, found by measuring."""
