"""Does the whole chain work on this machine's devices? A few checks with a tiny policy, and a report to paste."""
