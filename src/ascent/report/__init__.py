"""From a run directory to what a person looks at. Reads run directories only."""
