"""Numerical work around a model: a little of SciPy, methods of second order, operators written as mathematics.

Nothing that makes, checks or runs a plan needs it. The optimizers among it are names of :mod:`coterie.compute.optim`.
"""
