"""Private set intersection: which ids two parties have in common, and nothing of the others."""
