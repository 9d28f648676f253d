"""Are the machines of a cluster fit for a run together? Each is looked at, they are compared, and they try."""
