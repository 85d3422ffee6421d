"""What excludes what in an experiment, by secure aggregation and by differential privacy."""
