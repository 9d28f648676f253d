"""What a checkpoint holds beside TRL's own files."""
