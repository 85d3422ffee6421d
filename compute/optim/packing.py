"""The update plan of optimizers like Adam: small tensors are updated as one flat vector.

Such an update is about ten operators for each tensor, and a runtime spends a microsecond or more on an operator however
small its tensors are. A transformer has dozens of small tensors; joined, they cost what one tensor of their total size
costs. Large tensors stay by themselves: their updates wait for memory, and joining would copy them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.optim.optimizer import Arrays, Optimizer

# Elements of the largest tensor that is joined: from about here on the time of an update grows with its size. Tensors
# that it takes at least for joining to save an operator.
LARGEST = 1 << 16
FEWEST = 3


@dataclass(frozen=True)
class Packing:
    """Which tensors are joined, in order, and the name of the vector; all others stay."""

    name: str
    shapes: Mapping[str, tuple[int, ...]]

    @staticmethod
    def of(shapes: Mapping[str, tuple[int, ...]]) -> "Packing | None":
        """The packing for tensors of these shapes; None where it would not pay."""
        small = {name: shape for name, shape in shapes.items() if 0 < prod(shape) <= LARGEST}
        if len(small) < FEWEST:
            return None
        name = "packed"
        while name in shapes:
            name += "_"
        return Packing(name, small)

    def pack(self, arrays: Arrays) -> dict[str, Array]:
        """The arrays, with the small ones joined into one vector under the packing's name."""
        joined = [xp.reshape(arrays[name], (prod(shape),)) for name, shape in self.shapes.items()]
        others = {name: array for name, array in arrays.items() if name not in self.shapes}
        return others | {self.name: xp.concat(joined)}

    def unpack(self, arrays: Arrays, order: Mapping[str, object]) -> dict[str, Array]:
        """The inverse of ``pack``, in the order of the names given."""
        parts, start = dict(arrays), 0
        vector = parts.pop(self.name)
        for name, shape in self.shapes.items():
            parts[name] = xp.reshape(vector[start : start + prod(shape)], shape)
            start += prod(shape)
        return {name: parts[name] for name in order}


def packed(optimizer: Optimizer) -> Optimizer:
    """The same optimizer in an arrangement that takes fewer operators: see the module.

    It gives the same numbers, and keeps the padding law: with active = 0 everything comes back bit for bit. Its state
    has other names and shapes: that of the joined tensors is one vector, "packed.<what>". The optimizer itself comes
    back where nothing would be saved: its update is not elementwise or is told its weight, or it keeps fewer than two
    tensors for each parameter (plain SGD and momentum melt into the products before them).
    """
    if not optimizer.elementwise or optimizer.weighted is not None or _kept(optimizer) < 2:
        return optimizer

    def init(params: Arrays) -> dict[str, Array]:
        packing = Packing.of({name: param.shape for name, param in params.items()})
        return optimizer.init(params if packing is None else packing.pack(params))

    def update(
        grads: Arrays, state: Arrays, params: Arrays, hyper: Arrays, active: Array
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        packing = Packing.of({name: param.shape for name, param in params.items()})
        if packing is None:
            return optimizer.update(grads, state, params, hyper, active)
        # A parameter without a gradient takes part with zeros, and comes back as it was.
        absent = {name: xp.zeros(shape) for name, shape in packing.shapes.items() if name not in grads}
        moved, after = optimizer.update(packing.pack({**grads, **absent}), state, packing.pack(params), hyper, active)
        return packing.unpack(moved, params) | {name: params[name] for name in absent}, after

    return replace(optimizer, init=init, update=update)


def _kept(optimizer: Optimizer) -> int:
    """How many tensors of its shape the optimizer keeps for a parameter."""
    shape = (2, 3)
    return sum(value.shape == shape for value in optimizer.init({"any": xp.zeros(shape)}).values())
