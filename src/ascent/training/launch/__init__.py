"""The processes of a training: launched, stopped, and told apart by their exit codes."""
