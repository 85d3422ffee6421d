"""Foreign inference graphs as differentiable functions: every operator is translated into array functions."""
