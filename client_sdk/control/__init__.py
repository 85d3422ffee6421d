"""The researcher's client of a coordinator."""
