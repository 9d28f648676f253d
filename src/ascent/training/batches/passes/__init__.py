"""How log-probabilities are computed: without padding, each prompt and each distinct row once, or as TRL does."""
