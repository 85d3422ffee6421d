"""A small zoo of whole models, a table of what they cost, and two ways to choose: ``select`` from the table by what a
device can bear, ``search`` over widths and depths.
"""

from coterie.compute.nn.zoo.cost import Cost, Costs, recorded
from coterie.compute.nn.zoo.dense import embedding_classifier, logistic_regression, mlp
from coterie.compute.nn.zoo.evolution import Found, Space, Trial, search
from coterie.compute.nn.zoo.images import fedavg_cnn, lenet
from coterie.compute.nn.zoo.mobile import MOBILENET_V2, InvertedResidual, mobilenet
from coterie.compute.nn.zoo.residual import ResidualBlock, resnet
from coterie.compute.nn.zoo.selection import Choice, select
from coterie.compute.nn.zoo.sequences import LastStep, char_gru, char_transformer, gru, transformer
from coterie.compute.nn.zoo.table import ENTRIES, TASKS, Entry, Input, Inputs, entries, entry
from coterie.compute.nn.zoo.wide_and_deep import WideAndDeep

__all__ = [
    "Choice",
    "Cost",
    "Costs",
    "ENTRIES",
    "Entry",
    "Found",
    "Input",
    "Inputs",
    "InvertedResidual",
    "LastStep",
    "MOBILENET_V2",
    "ResidualBlock",
    "Space",
    "TASKS",
    "Trial",
    "WideAndDeep",
    "char_gru",
    "char_transformer",
    "embedding_classifier",
    "entries",
    "entry",
    "fedavg_cnn",
    "gru",
    "lenet",
    "logistic_regression",
    "mlp",
    "mobilenet",
    "recorded",
    "resnet",
    "search",
    "select",
    "transformer",
]
