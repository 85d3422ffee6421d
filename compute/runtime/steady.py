"""Graphs that outlive their provider: where it fails, the CPU repeats the run and goes on, and somebody is told."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from coterie.compute.ir import NDArray
from coterie.compute.runtime.executable import Executable
from coterie.compute.runtime.session import CPU
from coterie.compute.runtime.step_loop import StepLoop
from coterie.compute.runtime.tensors import TensorInfo
from coterie.errors import ProviderFailed


@dataclass(frozen=True)
class Fallback:
    """A provider gave up and the CPU took over. steps: how many steps or runs it had made."""

    provider: str
    steps: int
    reason: str


Told: TypeAlias = Callable[[Fallback], None]


class SteadyExecutable:
    """An ``Executable`` that is run again and again and keeps no state: where its provider fails, the CPU repeats the
    run and takes over for good. told: called before it does.
    """

    def __init__(self, executable: Executable, *, told: Told = lambda fallback: None) -> None:
        self.executable = executable
        self._told, self._runs = told, 0

    def run(self, feeds: Mapping[str, NDArray]) -> dict[str, NDArray]:
        """All outputs for these feeds; see ``Executable.run``."""
        try:
            found = self.executable.run(feeds)
        except ProviderFailed as error:
            self.executable = _on_the_cpu(self.executable, self._runs, error, self._told)
            found = self.executable.run(feeds)
        self._runs += 1
        return found


class SteadyLoop:
    """A ``StepLoop``, with the same arguments and methods, that does not end when its provider fails.

    told: called before the CPU makes the step again. executable: what runs now; another one after a fallback.

    Guarantees: a step that failed has changed nothing, since a loop writes to another set of state than it reads; so
    the CPU repeats it from the same state, and no step is lost or made twice. On the CPU nothing is caught: there is
    nothing to fall back to.

    Raises ProviderFailed where the state lies on a device that no longer gives it back; whoever trains begins again.
    """

    def __init__(
        self,
        executable: Executable,
        *,
        carry: Mapping[str, str],
        constants: Mapping[str, NDArray],
        state: Mapping[str, NDArray],
        in_place: bool = False,
        told: Told = lambda fallback: None,
    ) -> None:
        self.executable = executable
        self._carry, self._in_place, self._told = dict(carry), in_place, told
        self._constants = dict(constants)
        self._steps = 0
        self._loop = StepLoop(executable, carry=carry, constants=constants, state=state, in_place=in_place)

    @property
    def input(self) -> Mapping[str, TensorInfo]:
        """The inputs of the step, by name."""
        return self.executable.input

    @property
    def feeds(self) -> tuple[TensorInfo, ...]:
        """The inputs that every step must be given."""
        return self._loop.feeds

    def load(self, state: Mapping[str, NDArray], *, constants: Mapping[str, NDArray] | None = None) -> None:
        """Start again from ``state``; see ``StepLoop.load``."""
        self._loop.load(state, constants=constants)
        if constants is not None:
            self._constants = dict(constants)

    def step(self, feeds: Mapping[str, NDArray]) -> None:
        """Run once, on the CPU where the provider fails."""
        try:
            self._loop.step(feeds)
        except ProviderFailed as error:
            self._take_over(error)
            self._loop.step(feeds)
        self._steps += 1

    def read(self, names: Sequence[str]) -> dict[str, NDArray]:
        """Copies of the named outputs; see ``StepLoop.read``."""
        return self._loop.read(names)

    def state(self) -> dict[str, NDArray]:
        """Copies of the carried inputs as the next step will see them."""
        return self._loop.state()

    def _take_over(self, error: ProviderFailed) -> None:
        self.executable = _on_the_cpu(self.executable, self._steps, error, self._told)
        self._loop = StepLoop(
            self.executable,
            carry=self._carry,
            constants=self._constants,
            state=self._loop.state(),
            in_place=self._in_place,
        )


def _on_the_cpu(executable: Executable, steps: int, error: ProviderFailed, told: Told) -> Executable:
    told(Fallback(executable.provider, steps, error.message))
    return Executable(executable.data, threads=executable.threads, provider=CPU)
