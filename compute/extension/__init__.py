"""Primitives, kernels and operators of a user's own, in an explicit registry; the core's tables stay closed."""
