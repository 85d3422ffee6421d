"""A small zoo of whole models, a table of what they cost, and two ways to choose: ``select`` from the table by what a
device can bear, ``search`` over widths and depths.
"""

from coterie.compute.nn.zoo.bert import Bert, bert
from coterie.compute.nn.zoo.cost import Cost, Costs, recorded
from coterie.compute.nn.zoo.dense import embedding_classifier, logistic_regression, mlp
from coterie.compute.nn.zoo.evolution import Found, Space, Trial, search
from coterie.compute.nn.zoo.gpt2 import GPT2
from coterie.compute.nn.zoo.images import fedavg_cnn, lenet
from coterie.compute.nn.zoo.mobile import MOBILENET_V2, InvertedResidual, mobilenet
from coterie.compute.nn.zoo.mobile_v3 import MOBILENET_V3_SMALL, Bottleneck, mobilenet_v3
from coterie.compute.nn.zoo.residual import ResidualBlock, resnet, resnet18
from coterie.compute.nn.zoo.selection import Choice, select
from coterie.compute.nn.zoo.sequences import LastStep, char_gru, char_transformer, gru, transformer
from coterie.compute.nn.zoo.table import ENTRIES, TASKS, Entry, Input, Inputs, entries, entry
from coterie.compute.nn.zoo.wide_and_deep import WideAndDeep

__all__ = [
    "Bert",
    "Bottleneck",
    "Choice",
    "Cost",
    "Costs",
    "ENTRIES",
    "Entry",
    "Found",
    "GPT2",
    "Input",
    "Inputs",
    "InvertedResidual",
    "LastStep",
    "MOBILENET_V2",
    "MOBILENET_V3_SMALL",
    "ResidualBlock",
    "Space",
    "TASKS",
    "Trial",
    "WideAndDeep",
    "bert",
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
    "mobilenet_v3",
    "recorded",
    "resnet",
    "resnet18",
    "search",
    "select",
    "transformer",
]
