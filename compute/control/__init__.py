"""Control flow: nodes that hold graphs and may have several outputs."""
