"""Names of PyTorch, Keras and Flax that people try first, and what does that here."""

from collections.abc import Mapping
from typing import Final

_PARAMETERS: Final = "ParameterSpec, which a module's specs() gives by name: values travel apart from the module"
_FUNCTIONS: Final = "coterie.compute.ops and coterie.compute.numpy, as functions of arrays"

LAYERS: Final[Mapping[str, str]] = {
    "BCELoss": "nn.losses.binary_cross_entropy_with_logits, of logits",
    "BCEWithLogitsLoss": "nn.losses.binary_cross_entropy_with_logits",
    "CrossEntropyLoss": "nn.losses.softmax_cross_entropy",
    "Conv": "nn.Conv2d",
    "Dense": "nn.Linear",
    "MSELoss": "nn.losses.mean_squared_error",
    "ModuleDict": "a field of the dataclass that holds modules by name",
    "ModuleList": "a field of the dataclass that holds a tuple of modules",
    "Parameter": _PARAMETERS,
    "SiLU": "x * ops.sigmoid(x) in a module of your own",
    "functional": _FUNCTIONS,
    "init": "the initialisers nn.Normal, nn.Uniform and nn.Constant",
    "relu": "coterie.compute.ops.relu, or the layer nn.ReLU",
}
LOSSES: Final[Mapping[str, str]] = {
    "BCEWithLogitsLoss": "binary_cross_entropy_with_logits",
    "CrossEntropyLoss": "softmax_cross_entropy",
    "MSELoss": "mean_squared_error",
    "binary_cross_entropy": "binary_cross_entropy_with_logits, of logits",
    "cross_entropy": "softmax_cross_entropy",
    "mse": "mean_squared_error",
    "mse_loss": "mean_squared_error",
}
METRICS: Final[Mapping[str, str]] = {
    "mae": "absolute_error",
    "mean_absolute_error": "absolute_error",
    "mean_squared_error": "squared_error",
    "mse": "squared_error",
}
