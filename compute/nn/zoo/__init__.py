"""A small zoo of whole models."""

from coterie.compute.nn.zoo.dense import embedding_classifier, logistic_regression, mlp
from coterie.compute.nn.zoo.images import fedavg_cnn, lenet
from coterie.compute.nn.zoo.mobile import MOBILENET_V2, InvertedResidual, mobilenet
from coterie.compute.nn.zoo.residual import ResidualBlock, resnet
from coterie.compute.nn.zoo.sequences import LastStep, char_gru, char_transformer, gru, transformer
from coterie.compute.nn.zoo.wide_and_deep import WideAndDeep

__all__ = [
    "InvertedResidual",
    "LastStep",
    "MOBILENET_V2",
    "ResidualBlock",
    "WideAndDeep",
    "char_gru",
    "char_transformer",
    "embedding_classifier",
    "fedavg_cnn",
    "gru",
    "lenet",
    "logistic_regression",
    "mlp",
    "mobilenet",
    "resnet",
    "transformer",
]
