"""A step that several processes share, however it is cut: what a loop over it asks."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from coterie.compute.runtime.spread.program import Bindings, Program
from coterie.compute.runtime.tensors import TensorInfo


class Layout(Protocol):
    """Where every tensor of the step lies, and what each process runs."""

    @property
    def size(self) -> int:
        """Bytes of all of it."""
        ...

    @property
    def inputs(self) -> tuple[Bindings, Bindings]:
        """Of even and of odd steps, which read what the others write."""
        ...

    @property
    def results(self) -> Bindings:
        """What a step gives beside the state."""
        ...

    def programs(self) -> Sequence[Program]:
        """Of each process."""
        ...


class SharedStep(Protocol):
    """A step that is cut."""

    @property
    def data(self) -> bytes:
        """The whole step."""
        ...

    @property
    def processes(self) -> int:
        """How many share it."""
        ...

    @property
    def threads(self) -> int:
        """Of each process."""
        ...

    @property
    def parted(self) -> bool:
        """Whether each process needs only a part of the memory."""
        ...

    @property
    def meetings(self) -> int:
        """How often the processes meet in a step before its end."""
        ...

    def layout(self, carry: Mapping[str, str], inputs: Mapping[str, TensorInfo]) -> Layout:
        """Where it lies in memory that the processes share.

        carry: output → the input that it replaces. inputs: of the step, by name.
        """
        ...
