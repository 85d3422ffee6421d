"""coterie: federated learning in which the training step is a file."""

__version__ = "0.1.0"
