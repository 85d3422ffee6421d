"""Many virtual clients: in threads, in processes, in one graph, or on a Ray cluster.

No submodule bears the name of a public function: once loaded it would hide the function.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.simulation.partition import dirichlet, iid, split
    from coterie.simulation.population import VirtualClients
    from coterie.simulation.preparing import prepare
    from coterie.simulation.simulation import Simulation, simulate, simulate_full
    from coterie.simulation.vertical import VerticalRun, simulate_vertical

_HOMES = {
    "Simulation": "coterie.simulation.simulation",
    "VerticalRun": "coterie.simulation.vertical",
    "VirtualClients": "coterie.simulation.population",
    "dirichlet": "coterie.simulation.partition",
    "iid": "coterie.simulation.partition",
    "prepare": "coterie.simulation.preparing",
    "simulate": "coterie.simulation.simulation",
    "simulate_full": "coterie.simulation.simulation",
    "simulate_vertical": "coterie.simulation.vertical",
    "split": "coterie.simulation.partition",
}
__all__ = [
    "Simulation",
    "VerticalRun",
    "VirtualClients",
    "dirichlet",
    "iid",
    "prepare",
    "simulate",
    "simulate_full",
    "simulate_vertical",
    "split",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
