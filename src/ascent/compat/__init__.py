"""Known faults of the libraries, one module a fault: what is wrong, in which versions, and the way round."""
