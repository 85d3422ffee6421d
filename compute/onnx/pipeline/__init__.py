"""A training step as stages of a pipeline: which of its nodes each process makes, and in which order."""
