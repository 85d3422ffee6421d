"""The command `coterie`: one file per command; whatever is heavy is imported inside it."""
