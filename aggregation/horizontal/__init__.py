"""Methods of horizontal learning, by name: what the server needs to rebuild its part of a plan's method."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from coterie import errors
from coterie.aggregation.horizontal.algorithm import Algorithm
from coterie.aggregation.horizontal.fedavg import FedAvg
from coterie.aggregation.horizontal.fedprox import FedProx

__all__ = ["ALGORITHMS", "Algorithm", "FedAvg", "FedProx", "algorithm"]

ALGORITHMS: Mapping[str, Callable[..., Algorithm]] = MappingProxyType({"fedavg": FedAvg, "fedprox": FedProx})


def algorithm(name: str, parameters: Mapping[str, float]) -> Algorithm:
    """Rebuild a method from its name and numbers. Raises errors.ExperimentError (``unknown_algorithm``)."""
    make = ALGORITHMS.get(name)
    if make is None or set(parameters) != set(make().parameters):
        raise errors.ExperimentError(
            f"There is no algorithm {name[:64]!r} with the parameters {', '.join(sorted(parameters)) or 'none'}.",
            hint=f"This coordinator knows {', '.join(ALGORITHMS)}.",
            code="unknown_algorithm",
        )
    return make(**parameters)
