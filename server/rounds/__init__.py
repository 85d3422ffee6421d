"""Rounds: the pure engine's states and effects, made durable."""
