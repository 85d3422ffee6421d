"""Layers, losses and metrics. A model is a value: a frozen dataclass that says which parameters it needs and computes
with parameters given to it.
"""

from coterie.compute.nn import losses, metrics, models
from coterie.compute.nn.activations import GELU, ReLU, Sigmoid, Softmax, Tanh
from coterie.compute.nn.attention import MultiHeadAttention
from coterie.compute.nn.convolution import Conv2d
from coterie.compute.nn.dropout import Dropout
from coterie.compute.nn.embedding import Embedding, PositionalEmbedding
from coterie.compute.nn.initialisers import Constant, Initialiser, Normal, Uniform
from coterie.compute.nn.linear import Linear
from coterie.compute.nn.mode import EVAL, Mode, train
from coterie.compute.nn.module import Module, Parameters, ParameterSpec, Role
from coterie.compute.nn.normalisation import LayerNorm
from coterie.compute.nn.pooling import AvgPool2d, MaxPool2d, MeanPool
from coterie.compute.nn.recurrent import GRU, LSTM
from coterie.compute.nn.sequential import Flatten, Sequential
from coterie.compute.nn.transformer import TransformerBlock

__all__ = [
    "EVAL",
    "AvgPool2d",
    "Constant",
    "Conv2d",
    "Dropout",
    "Embedding",
    "Flatten",
    "GELU",
    "GRU",
    "Initialiser",
    "LSTM",
    "LayerNorm",
    "Linear",
    "MaxPool2d",
    "MeanPool",
    "Mode",
    "Module",
    "MultiHeadAttention",
    "Normal",
    "ParameterSpec",
    "Parameters",
    "PositionalEmbedding",
    "ReLU",
    "Role",
    "Sequential",
    "Sigmoid",
    "Softmax",
    "Tanh",
    "TransformerBlock",
    "Uniform",
    "losses",
    "metrics",
    "models",
    "train",
]
