"""Known faults of vLLM that are mended inside its processes, one module a fault; those of other libraries are in
`ascent.compat`."""
