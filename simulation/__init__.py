"""Many virtual clients without a network."""
