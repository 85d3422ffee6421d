"""coterie: federated learning in which the training step is a file.

The public names are loaded when they are first used, so that `import coterie` costs next to nothing and a client never
pays for a researcher's tools.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from coterie.version import __version__ as __version__

if TYPE_CHECKING:
    from coterie.aggregation.experiment import Experiment
    from coterie.aggregation.external_model import ExternalModel
    from coterie.aggregation.history import History
    from coterie.aggregation.horizontal.fedavg import FedAvg
    from coterie.aggregation.horizontal.fedprox import FedProx
    from coterie.aggregation.record import RoundRecord
    from coterie.aggregation.server_optimizers import server_sgd
    from coterie.aggregation.vertical.experiment import VerticalExperiment
    from coterie.client_sdk.control.control import Control
    from coterie.client_sdk.control.submit import submit
    from coterie.client_sdk.device.device import Device
    from coterie.client_sdk.device.policy import DevicePolicy
    from coterie.client_sdk.rows.loading import load_data
    from coterie.errors import CoterieError
    from coterie.protocol.privacy import UserLevel
    from coterie.protocol.rounds import RoundPolicy
    from coterie.protocol.schema import DataSchema, Feature, Label
    from coterie.protocol.secure_aggregation import SecureAggregation
    from coterie.protocol.signing import SigningKey
    from coterie.simulation import dirichlet, iid, simulate, split

# The frozen list of public names: to add one is a decision, to remove one is a breaking change.
__all__ = [
    "Control",
    "CoterieError",
    "DataSchema",
    "Device",
    "DevicePolicy",
    "Experiment",
    "ExternalModel",
    "Feature",
    "FedAvg",
    "FedProx",
    "History",
    "Label",
    "RoundPolicy",
    "RoundRecord",
    "SecureAggregation",
    "SigningKey",
    "UserLevel",
    "VerticalExperiment",
    "dirichlet",
    "iid",
    "load_data",
    "server_sgd",
    "simulate",
    "split",
    "submit",
]

_HOMES = {
    "coterie.aggregation.experiment": ("Experiment",),
    "coterie.aggregation.external_model": ("ExternalModel",),
    "coterie.aggregation.history": ("History",),
    "coterie.aggregation.record": ("RoundRecord",),
    "coterie.aggregation.horizontal.fedavg": ("FedAvg",),
    "coterie.aggregation.horizontal.fedprox": ("FedProx",),
    "coterie.aggregation.server_optimizers": ("server_sgd",),
    "coterie.aggregation.vertical.experiment": ("VerticalExperiment",),
    "coterie.client_sdk.control.control": ("Control",),
    "coterie.client_sdk.control.submit": ("submit",),
    "coterie.client_sdk.rows.loading": ("load_data",),
    "coterie.client_sdk.device.device": ("Device",),
    "coterie.client_sdk.device.policy": ("DevicePolicy",),
    "coterie.errors": ("CoterieError",),
    "coterie.protocol.privacy": ("UserLevel",),
    "coterie.protocol.rounds": ("RoundPolicy",),
    "coterie.protocol.schema": ("DataSchema", "Feature", "Label"),
    "coterie.protocol.secure_aggregation": ("SecureAggregation",),
    "coterie.protocol.signing": ("SigningKey",),
    "coterie.simulation": ("dirichlet", "iid", "simulate", "split"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
