"""How a training would scale: formulas over a few constants, assumed, given or measured. Nothing is run."""
