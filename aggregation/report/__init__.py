"""What a run was, for people: panels of curves, drawn as SVG, and the files that a run leaves."""
