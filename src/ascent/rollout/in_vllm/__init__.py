"""What vLLM's own processes import, and nothing that they don't need: standard library, NumPy, torch and vllm only."""
