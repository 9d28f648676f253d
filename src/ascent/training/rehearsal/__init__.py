"""A long run tried for two minutes before it is started: what to expect of it, and what to change first."""
