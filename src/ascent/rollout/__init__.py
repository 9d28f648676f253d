"""Prompts to completions: the sampling engines and how new weights reach them."""
