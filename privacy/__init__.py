"""Differential privacy and secure aggregation."""
