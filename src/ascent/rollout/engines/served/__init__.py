"""The client's side of standing vLLM servers."""
