"""What can be wrong with a task, as far as reading tells it. Programs are made here and run elsewhere
(`ascent.rewards.task_check`)."""
