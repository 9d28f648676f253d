"""Programs judged by several nodes: one judge on each, which holds one sandbox."""
