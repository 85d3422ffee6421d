"""Numeric jobs: what is wanted, how each kind is done, and the runner that does them."""
