"""Methods of horizontal learning, by name: what the server needs to rebuild its part of a plan's method."""

from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from types import MappingProxyType

from coterie import errors
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
    "algorithm",
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


def algorithm(name: str, parameters: Mapping[str, float]) -> Algorithm:
    """Rebuild a method from its name and numbers. Raises errors.ExperimentError: ``unknown_algorithm``, or
    ``algorithm_parameter`` for a number out of range.
    """
    make = ALGORITHMS.get(name)
    # What a method takes beside numbers (a function of the model, say) matters to devices alone and has a default.
    known = signature(make).parameters if make else dict[str, Parameter]()
    given = set(parameters) <= set(known) and all(
        name in parameters for name, parameter in known.items() if parameter.default is parameter.empty
    )
    rule = make(**parameters) if make and given else None
    if rule is None or set(rule.parameters) != set(parameters):
        raise errors.ExperimentError(
            f"There is no algorithm {name[:64]!r} with the parameters {', '.join(sorted(parameters)) or 'none'}.",
            hint=f"This coordinator knows {', '.join(ALGORITHMS)}.",
            code="unknown_algorithm",
        )
    return rule
