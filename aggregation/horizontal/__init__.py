"""Methods of horizontal learning, by name: what the server needs to rebuild its part of a plan's method."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from coterie.aggregation.horizontal.algorithm import Algorithm
from coterie.aggregation.horizontal.cyclic import Cyclic
from coterie.aggregation.horizontal.fedasync import FedAsync
from coterie.aggregation.horizontal.fedavg import FedAvg
from coterie.aggregation.horizontal.fedbuff import FedBuff
from coterie.aggregation.horizontal.feddyn import FedDyn
from coterie.aggregation.horizontal.fedexp import FedExP
from coterie.aggregation.horizontal.fednova import FedNova
from coterie.aggregation.horizontal.fedprox import FedProx
from coterie.aggregation.horizontal.fedsgd import FedSGD
from coterie.aggregation.horizontal.ifca import IFCA
from coterie.aggregation.horizontal.moon import Moon
from coterie.aggregation.horizontal.qfedavg import QFedAvg
from coterie.aggregation.horizontal.scaffold import Scaffold

__all__ = [
    "ALGORITHMS",
    "IFCA",
    "Algorithm",
    "Cyclic",
    "FedAsync",
    "FedAvg",
    "FedBuff",
    "FedDyn",
    "FedExP",
    "FedNova",
    "FedProx",
    "FedSGD",
    "Moon",
    "QFedAvg",
    "Scaffold",
]

ALGORITHMS: Mapping[str, Callable[..., Algorithm]] = MappingProxyType(
    {
        "fedavg": FedAvg,
        "fedsgd": FedSGD,
        "fedprox": FedProx,
        "scaffold": Scaffold,
        "fednova": FedNova,
        "feddyn": FedDyn,
        "fedexp": FedExP,
        "moon": Moon,
        "qfedavg": QFedAvg,
        "ifca": IFCA,
        "cyclic": Cyclic,
        "fedbuff": FedBuff,
        "fedasync": FedAsync,
    }
)
