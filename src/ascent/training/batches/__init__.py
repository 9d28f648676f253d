"""What is trained on in one optimizer step, so that no work is done without effect."""
