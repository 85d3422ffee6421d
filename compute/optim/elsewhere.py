"""Names of PyTorch and Optax that people try first, and what does that here."""

from collections.abc import Mapping
from typing import Final

OPTIMIZERS: Final[Mapping[str, str]] = {
    "Adagrad": "optim.adagrad",
    "Adam": "optim.adam",
    "AdamW": "optim.adamw",
    "LBFGS": "optim.lbfgs, or optim.minimise",
    "NAdam": "optim.nadam",
    "RMSProp": "optim.rmsprop",
    "RMSprop": "optim.rmsprop",
    "SGD": "optim.sgd",
    "cosine_decay_schedule": "optim.cosine",
    "lr_scheduler": "the schedules optim.constant, cosine, step_decay and warmup, for Trainer(schedules=…)",
}
