"""Additively homomorphic encryption: numbers that a partner adds up without seeing them."""
