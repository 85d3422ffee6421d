"""The noise that devices can share: of each name that the wire has for it, what the file of that name says of itself.

So a mechanism takes one file here, which ends with its `DISTRIBUTION`, and one row in `coterie.protocol.mechanisms`.
"""

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType

from coterie import errors
from coterie.privacy.dp.noise.distribution import Distribution
from coterie.protocol.mechanisms import DISTRIBUTED, DistributedMechanism


def _described(name: DistributedMechanism) -> Distribution:
    module = import_module(f"coterie.privacy.dp.noise.{name}")
    found: object = getattr(module, "DISTRIBUTION", None)
    if not isinstance(found, Distribution):
        raise errors.InternalError(f"{module.__name__} has no DISTRIBUTION, which says what its noise is.")
    return found


DISTRIBUTIONS: Mapping[DistributedMechanism, Distribution] = MappingProxyType(
    {name: _described(name) for name in DISTRIBUTED}
)
