"""The models of ``coterie.compute.nn.zoo`` under their earlier name."""

from coterie.compute.nn.zoo import embedding_classifier, fedavg_cnn, gru, lenet, mlp, transformer

__all__ = ["embedding_classifier", "fedavg_cnn", "gru", "lenet", "mlp", "transformer"]
