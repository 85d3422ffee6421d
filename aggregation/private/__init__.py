"""Private aggregation: the noise and the secret sums of a round, and what they cost."""
