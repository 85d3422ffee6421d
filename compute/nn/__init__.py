"""Layers, losses and metrics. A model is a value: a frozen dataclass that says which parameters it needs and computes
with parameters given to it.
"""

from typing import TYPE_CHECKING

from coterie.compute.absent import refuser as _refuser
from coterie.compute.nn import losses, metrics, zoo
from coterie.compute.nn.activations import (
    ELU,
    GELU,
    HardSigmoid,
    HardSwish,
    LeakyReLU,
    ReLU,
    Sigmoid,
    SiLU,
    Softmax,
    Tanh,
)
from coterie.compute.nn.attention import MultiHeadAttention
from coterie.compute.nn.batch_normalisation import BatchNorm1d, BatchNorm2d, BatchNorm3d
from coterie.compute.nn.calling import forward
from coterie.compute.nn.convolution import Conv2d, ConvTranspose2d
from coterie.compute.nn.dropout import Dropout
from coterie.compute.nn.elsewhere import LAYERS as _LAYERS
from coterie.compute.nn.embedding import Embedding, PositionalEmbedding
from coterie.compute.nn.foreign import Imported
from coterie.compute.nn.initialisers import Constant, Initialiser, Normal, Uniform
from coterie.compute.nn.linear import Linear
from coterie.compute.nn.mode import EVAL, Mode, train
from coterie.compute.nn.module import Module, Parameters, ParameterSpec, Role
from coterie.compute.nn.normalisation import GroupNorm, InstanceNorm, LayerNorm, RMSNorm
from coterie.compute.nn.pooling import AdaptiveAvgPool2d, AvgPool2d, MaxPool2d, MeanPool
from coterie.compute.nn.recomputed import recomputed
from coterie.compute.nn.recurrent import GRU, LSTM
from coterie.compute.nn.sequences import AdaptiveAvgPool1d, AvgPool1d, Conv1d, MaxPool1d
from coterie.compute.nn.sequential import Flatten, Sequential
from coterie.compute.nn.touched import TouchedRows
from coterie.compute.nn.transformer import TransformerBlock
from coterie.compute.nn.volumes import AdaptiveAvgPool3d, AvgPool3d, Conv3d, MaxPool3d

__all__ = [
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "Constant",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose2d",
    "Dropout",
    "ELU",
    "EVAL",
    "Embedding",
    "Flatten",
    "GELU",
    "GRU",
    "GroupNorm",
    "HardSigmoid",
    "HardSwish",
    "Imported",
    "Initialiser",
    "InstanceNorm",
    "LSTM",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "MeanPool",
    "Mode",
    "Module",
    "MultiHeadAttention",
    "Normal",
    "ParameterSpec",
    "Parameters",
    "PositionalEmbedding",
    "RMSNorm",
    "ReLU",
    "Role",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Tanh",
    "TouchedRows",
    "TransformerBlock",
    "Uniform",
    "forward",
    "losses",
    "metrics",
    "recomputed",
    "train",
    "zoo",
]

if not TYPE_CHECKING:  # for type checkers the names above are all
    __getattr__ = _refuser(__name__, _LAYERS)
