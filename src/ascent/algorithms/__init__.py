"""How a policy is updated from scored completions: one algorithm a file, named in `ascent.tables.ALGORITHMS`."""
