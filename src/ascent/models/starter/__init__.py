"""The starter policy: a model of a million parameters, built on this machine, that GRPO visibly improves in minutes."""
