"""A few real steps of a run, in a folder and processes of their own, to be measured: what rehearsals and benchmarks of
training are made of."""
