"""What benchmarks/gpro.py is made of."""
