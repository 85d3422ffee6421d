"""From experiment to plan: the graphs of every stage, traced, and what is said about them."""
