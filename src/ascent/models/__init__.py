"""From what the user calls a model to a folder that transformers and vLLM can load; the built-in starter policy."""
