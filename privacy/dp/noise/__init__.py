"""Noise from a cryptographic key: whole numbers drawn exactly, real numbers on a grid. No statistical generator."""
