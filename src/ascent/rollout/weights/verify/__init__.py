"""What the servers' reports must say after an update, and the canary."""
