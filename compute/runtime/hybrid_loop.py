"""A training step in two places: the frozen front on an accelerator, the rest stepped on the CPU."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from coterie.compute.ir import NDArray
from coterie.compute.onnx.hybrid import Hybrid, split
from coterie.compute.runtime.devices import Provider
from coterie.compute.runtime.executable import Executable
from coterie.compute.runtime.session import CPU
from coterie.compute.runtime.steady import SteadyExecutable, Told
from coterie.compute.runtime.step_loop import StepLoop
from coterie.compute.runtime.tensors import TensorInfo, check_names

Quantiser: TypeAlias = Callable[[bytes, Sequence[Mapping[str, NDArray]]], bytes]
"""(float32 file, feeds by input name) → file with the same inputs and outputs, integers inside."""


@dataclass(frozen=True, kw_only=True)
class Trunk:
    """The compiler option of a hybrid step: where the frozen front of a model runs, and in what numbers.

    provider: of the trunk; the rest of the step runs on the CPU. quantise: what turns the trunk into integers;
    calibration: how many batches it is shown. Without it the trunk computes in the step's own precision.
    """

    provider: str | Provider = CPU
    quantise: Quantiser | None = None
    calibration: int = 8


class HybridLoop:
    """A ``StepLoop`` over a step that was split: each step runs the trunk on its batch, then the head on the CPU.

    The trunk keeps no state, so where its provider fails the CPU repeats the run and takes it over for good; told is
    called before. Takes the feeds of the whole step.
    """

    def __init__(
        self,
        trunk: Executable,
        head: Executable,
        *,
        carry: Mapping[str, str],
        constants: Mapping[str, NDArray],
        state: Mapping[str, NDArray],
        told: Told = lambda fallback: None,
    ) -> None:
        self.trunk = SteadyExecutable(trunk, told=told)
        self._front = tuple(trunk.input)
        held = {name: value for name, value in constants.items() if name in head.input}
        self._head = StepLoop(head, carry=carry, constants=held, state=state, in_place=True)
        own = {info.name: info for info in self._head.feeds if info.name not in trunk.output}
        self._feeds = own | dict(trunk.input)

    @property
    def executable(self) -> Executable:
        """What steps the head."""
        return self._head.executable

    @property
    def input(self) -> Mapping[str, TensorInfo]:
        """The inputs of the head, by name."""
        return self._head.input

    @property
    def feeds(self) -> tuple[TensorInfo, ...]:
        """The inputs that every step must be given: those of the step that was split."""
        return tuple(self._feeds.values())

    def load(self, state: Mapping[str, NDArray], *, constants: Mapping[str, NDArray] | None = None) -> None:
        """Start again from ``state``; see ``StepLoop.load``. Frozen tensors that lie in the trunk stay as they are."""
        held = self.executable.input
        kept = None if constants is None else {name: value for name, value in constants.items() if name in held}
        self._head.load(state, constants=kept)

    def step(self, feeds: Mapping[str, NDArray]) -> None:
        """Run once. feeds: every input of the whole step that is neither carried nor constant."""
        check_names(self._feeds, feeds, where="step")
        features = self.trunk.run({name: feeds[name] for name in self._front})
        self._head.step({name: value for name, value in feeds.items() if name in self.executable.input} | features)

    def read(self, names: Sequence[str]) -> dict[str, NDArray]:
        """Copies of the named outputs; see ``StepLoop.read``."""
        return self._head.read(names)

    def state(self) -> dict[str, NDArray]:
        """Copies of the carried inputs as the next step will see them."""
        return self._head.state()


def hybrid(
    data: bytes,
    option: Trunk,
    *,
    frozen: Mapping[str, NDArray],
    batch: Collection[str],
    calibration: Sequence[Mapping[str, NDArray]] = (),
) -> Hybrid:
    """A step split as the option says; ``split`` documents the arguments. calibration: feeds of batches, by the names
    of the step; what the trunk does not read is left out.
    """
    parts = split(data, frozen=frozen, batch=batch)
    if option.quantise is None:
        return parts
    read = Executable(parts.trunk).input
    shown = [{name: feeds[name] for name in read} for feeds in calibration[: option.calibration]]
    return Hybrid(trunk=option.quantise(parts.trunk, shown), head=parts.head, cut=parts.cut)
