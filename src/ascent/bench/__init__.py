"""What sampling and training cost on this machine, and whether an upgrade changed it (docs/bench.md)."""
