"""What a training tells while it runs: its records, its progress, and why memory ran out."""
