"""Which groups are trained on: those without signal are replaced by groups of further prompts (dynamic sampling)."""
