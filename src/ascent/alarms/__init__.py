"""What looks wrong in a run, told once an episode: a fold over the lines of `metrics.jsonl`, the same one while a run
trains and over old runs. Reads plain data and run directories only."""
