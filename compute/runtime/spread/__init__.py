"""A training step run by several processes of one machine, over memory that they share."""
