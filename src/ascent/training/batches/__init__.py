"""What is trained on in one optimizer step: which groups, and how they are cut for the update."""
