"""Names of PyTorch, Keras and Flax that people try first, and what does that here."""

from collections.abc import Mapping
from typing import Final

_PARAMETERS: Final = "ParameterSpec, which a module's specs() gives by name: values travel apart from the module"
_FUNCTIONS: Final = "coterie.compute.ops and coterie.compute.numpy, as functions of arrays"

LAYERS: Final[Mapping[str, str]] = {
    "BCELoss": "nn.losses.binary_cross_entropy_with_logits, of logits",
    "BCEWithLogitsLoss": "nn.losses.binary_cross_entropy_with_logits",
    "CrossEntropyLoss": "nn.losses.softmax_cross_entropy",
    "Conv": "nn.Conv1d, nn.Conv2d or nn.Conv3d",
    "Dense": "nn.Linear",
    "HuberLoss": "nn.losses.huber",
    "L1Loss": "nn.losses.mean_absolute_error",
    "MSELoss": "nn.losses.mean_squared_error",
    "ModuleDict": "a field of the dataclass that holds modules by name",
    "ModuleList": "a field of the dataclass that holds a tuple of modules",
    "Parameter": _PARAMETERS,
    "NLLLoss": "nn.losses.negative_log_likelihood",
    "SmoothL1Loss": "nn.losses.huber",
    "Swish": "nn.SiLU",
    "functional": _FUNCTIONS,
    "init": "the initialisers nn.Normal, nn.Uniform and nn.Constant",
    "relu": "coterie.compute.ops.relu, or the layer nn.ReLU",
}
LOSSES: Final[Mapping[str, str]] = {
    "BCEWithLogitsLoss": "binary_cross_entropy_with_logits",
    "CrossEntropyLoss": "softmax_cross_entropy",
    "HuberLoss": "huber",
    "L1Loss": "mean_absolute_error",
    "MSELoss": "mean_squared_error",
    "NLLLoss": "negative_log_likelihood",
    "SmoothL1Loss": "huber",
    "bce": "binary_cross_entropy_with_logits, of logits",
    "binary_cross_entropy": "binary_cross_entropy_with_logits, of logits",
    "cross_entropy": "softmax_cross_entropy",
    "huber_loss": "huber",
    "l1": "mean_absolute_error",
    "l1_loss": "mean_absolute_error",
    "mae": "mean_absolute_error",
    "mse": "mean_squared_error",
    "mse_loss": "mean_squared_error",
    "nll_loss": "negative_log_likelihood",
}
METRICS: Final[Mapping[str, str]] = {
    "mae": "absolute_error",
    "mean_absolute_error": "absolute_error",
    "mean_squared_error": "squared_error",
    "mse": "squared_error",
}
