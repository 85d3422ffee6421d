"""What every loop over training steps can do, wherever it makes them."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from coterie.compute.ir import NDArray
from coterie.compute.runtime.tensors import TensorInfo


class Loop(Protocol):
    """A step that is taken again and again, its carried outputs becoming its next inputs: ``StepLoop`` says the rest.

    On one provider (``StepLoop``, ``SteadyLoop``), several steps a call (``GroupedLoop``), with the frozen front
    elsewhere (``HybridLoop``), or by several processes (``SpreadLoop``).
    """

    @property
    def input(self) -> Mapping[str, TensorInfo]:
        """The inputs that it keeps or is fed, by name."""
        ...

    @property
    def feeds(self) -> tuple[TensorInfo, ...]:
        """The inputs that every step must be given."""
        ...

    def load(self, state: Mapping[str, NDArray], *, constants: Mapping[str, NDArray] | None = None) -> None:
        """Start again from ``state``."""
        ...

    def step(self, feeds: Mapping[str, NDArray]) -> None:
        """Run once."""
        ...

    def read(self, names: Sequence[str]) -> dict[str, NDArray]:
        """Copies of the named outputs."""
        ...

    def state(self) -> dict[str, NDArray]:
        """Copies of the carried inputs as the next step will see them."""
        ...
