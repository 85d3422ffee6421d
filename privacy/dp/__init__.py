"""Differential privacy: what is promised, what it costs, the noise that keeps it, and audits of it."""
