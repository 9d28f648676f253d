"""What is trained on in one optimizer step: which groups, and how they are cut and computed for the update."""
