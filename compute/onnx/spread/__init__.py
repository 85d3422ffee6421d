"""A training step cut into what several processes do with a part of the rows each, and what they have to add up."""
