"""GPRO's change of the gradients: the rule, the weights moved and put back, the radius, the second gradient."""
