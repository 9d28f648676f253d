"""What is asked of the policy: tasks, loaders for public formats, the built-in tasks."""
