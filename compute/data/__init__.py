"""Feeding graphs: deterministic, resumable batches."""
