"""The standing sampling service: vLLM servers, who starts and watches them, and what guards them."""
