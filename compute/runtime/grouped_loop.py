"""A step loop that gathers the feeds of several steps and takes them in one call of the runtime."""

from collections.abc import Mapping, Sequence

import numpy as np

from coterie.compute.ir import NDArray
from coterie.compute.runtime.executable import Executable
from coterie.compute.runtime.steady import SteadyLoop, Told
from coterie.compute.runtime.tensors import TensorInfo, check_names


class GroupedLoop:
    """A ``StepLoop`` over a step and over a group of steps (``onnx.grouped``) of the same carry and constants.

    step: the file of one step, which takes what is left when the steps are no multiple of the group. group: the file
    of ``steps`` of them. told: called before the CPU takes over from a provider that fails.

    ``step`` returns before its step is taken: a group is taken when its last feeds are there, and what is left when
    ``state`` is asked for. Takes the memory of a group's feeds.
    """

    def __init__(
        self,
        step: Executable,
        group: Executable,
        steps: int,
        *,
        carry: Mapping[str, str],
        constants: Mapping[str, NDArray],
        state: Mapping[str, NDArray],
        told: Told = lambda fallback: None,
    ) -> None:
        self._single = SteadyLoop(step, carry=carry, constants=constants, state=state, in_place=True, told=told)
        self._loop = SteadyLoop(group, carry=carry, constants=constants, state=state, told=told)
        self._feeds = {info.name: info for info in self._single.feeds}
        self._stacks = {info.name: info.zeros() for info in self._loop.feeds}
        self._steps, self._waiting = steps, 0

    @property
    def input(self) -> Mapping[str, TensorInfo]:
        """The inputs of the step, by name."""
        return self._single.input

    @property
    def feeds(self) -> tuple[TensorInfo, ...]:
        """The inputs that every step must be given."""
        return tuple(self._feeds.values())

    def load(self, state: Mapping[str, NDArray], *, constants: Mapping[str, NDArray] | None = None) -> None:
        """Start again from ``state``; steps that wait are dropped. See ``StepLoop.load``."""
        self._waiting = 0
        self._loop.load(state, constants=constants)
        if constants is not None:
            self._single.load(state, constants=constants)

    def step(self, feeds: Mapping[str, NDArray]) -> None:
        """Take a step, or keep its feeds, which are copied, until the group is whole."""
        check_names(self._feeds, feeds, where="step")
        for name, info in self._feeds.items():
            np.copyto(self._stacks[name][self._waiting], info.check(feeds[name], where="step"))
        self._waiting += 1
        if self._waiting == self._steps:
            self._loop.step(self._stacks)
            self._waiting = 0

    def read(self, names: Sequence[str]) -> dict[str, NDArray]:
        """Copies of carried outputs, after all steps."""
        self._settle()
        return self._loop.read(names)

    def state(self) -> dict[str, NDArray]:
        """Copies of the carried inputs after all steps."""
        self._settle()
        return self._loop.state()

    def _settle(self) -> None:
        """Take the steps that wait, one by one."""
        if not self._waiting:
            return
        self._single.load(self._loop.state())
        for index in range(self._waiting):
            self._single.step({name: stack[index] for name, stack in self._stacks.items()})
        self._waiting = 0
        self._loop.load(self._single.state())
