"""A step that is bound, once, to where its inputs and outputs lie."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain

from coterie.compute.ir import NDArray
from coterie.compute.runtime.executable import Executable, failed
from coterie.compute.runtime.session import CPU, Binding
from coterie.compute.runtime.slots import HostSlot, Slot
from coterie.compute.runtime.step_memory import StepMemory, check_carry, check_values, copies, take, write
from coterie.compute.runtime.tensors import TensorInfo
from coterie.errors import InputError


class BoundStep:
    """A step over a memory that other steps may share. What it is fed, and its other results, lie in its own.

    rebind: see ``StepLoop``. Raises InputError, naming the tensor, for a step of another carry or other constants than
    the memory's.

    There are two bindings: an even step reads the first set of the memory's state and writes the second, an odd step
    the reverse.
    """

    def __init__(self, executable: Executable, memory: StepMemory, *, rebind: bool | None = None) -> None:
        check_carry(executable, memory.carry)
        shared = memory.states[0] | memory.constants
        for name, slot in shared.items():
            if executable.input.get(name) != slot.info:
                raise InputError(f"step loop: the step has no input {slot.info}, which it would share.")
        self.executable, self._memory = executable, memory
        self._fed = {info.name: take(executable, info) for info in executable.inputs if info.name not in shared}
        self._results = {
            info.name: take(executable, info) for info in executable.outputs if info.name not in memory.carry
        }
        lie_here = any(isinstance(slot, HostSlot) for slot in chain(shared.values(), self._fed.values()))
        self._rebind = executable.provider != CPU and lie_here if rebind is None else rebind
        self._bindings = (self._bind(0), self._bind(1))
        self._runs: tuple[Callable[[], None], Callable[[], None]] = (self._runner(0), self._runner(1))

    @property
    def feeds(self) -> tuple[TensorInfo, ...]:
        """The inputs that every step must be given."""
        return tuple(slot.info for slot in self._fed.values())

    def check(self, feeds: Mapping[str, NDArray]) -> None:
        """Raise InputError, naming the tensor, for feeds that a step cannot take."""
        check_values(self._fed, feeds, where="step")

    def step(self, feeds: Mapping[str, NDArray]) -> None:
        """See ``StepLoop.step``."""
        self.check(feeds)
        turn = self._memory.turn
        try:  # Not provided, whose generator costs every step a microsecond.
            write(self._fed, feeds)
            if self._rebind:
                self._bind_inputs(self._bindings[turn], turn)
            self._runs[turn]()
        except Exception as error:  # see open_session
            raise failed(self.executable.provider, error, "a training step") from error
        self._memory.turn = 1 - turn

    def read(self, names: Sequence[str]) -> dict[str, NDArray]:
        """See ``StepLoop.read``."""
        wanted = (names,) if isinstance(names, str) else names
        return copies(self.executable, {name: self._output(name) for name in wanted})

    def _output(self, name: str) -> Slot:
        carried = self._memory.carry.get(name)
        slot = self._results.get(name) if carried is None else self._memory.states[self._memory.turn][carried]
        if slot is None:
            raise InputError(f"read: the graph has no output {name!r}; it has {', '.join(self.executable.output)}.")
        return slot

    def _bind(self, turn: int) -> Binding:
        binding = self.executable.session.io_binding()
        self._bind_inputs(binding, turn)
        for name in self.executable.output:
            carried = self._memory.carry.get(name)
            slot = self._results[name] if carried is None else self._memory.states[1 - turn][carried]
            binding.bind_ortvalue_output(name, slot.value)
        return binding

    def _bind_inputs(self, binding: Binding, turn: int) -> None:
        for group in (self._fed, self._memory.constants, self._memory.states[turn]):
            for name, slot in group.items():
                if name in self.executable.taken:
                    binding.bind_ortvalue_input(name, slot.value)

    def _runner(self, turn: int) -> Callable[[], None]:
        session, binding = self.executable.session, self._bindings[turn]
        return lambda: session.run_with_iobinding(binding)
