"""Rounds: the pure engine's values, made durable."""
