"""Stepping a graph whose outputs are its next inputs, without copying state and without allocating."""

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager

from coterie.compute.ir import NDArray
from coterie.compute.runtime.executable import Executable, failed
from coterie.compute.runtime.in_place import stepped_in_place
from coterie.compute.runtime.session import CPU, Binding
from coterie.compute.runtime.slots import HostSlot, Slot
from coterie.compute.runtime.tensors import TensorInfo, check_names
from coterie.errors import InputError


class StepLoop:
    """A graph run again and again, its carried outputs becoming its next inputs.

    executable: the graph. carry: for each carried output the input that it becomes; both have one dtype and shape.
    constants: inputs that stay the same. state: the first values of the carried inputs.
    Every other input is a feed, given at each step.

    There are two sets of state memory and two bindings made once: an even step reads the first set and writes the
    second, an odd step the reverse. An output is not bound onto its own input, because the runtime may write the new
    value before another node has read the old one.

    in_place: let state for which the graph proves that this cannot happen (see ``stepped_in_place``) have one memory
    for both. It saves memory, and the time that writing to other memory takes: a tenth of a step of Adam on large
    tensors. On the CPU only; elsewhere it changes nothing. When a step fails, such state is lost.

    State, constants and results lie in ``executable.memory``. Where that is a device's, a step copies its feeds there
    and nothing else; ``read`` and ``state`` copy what they return.

    rebind: bind the inputs again at each step; providers that copy at bind time need it, hence the default: where
    another provider than the CPU is bound to memory of the host.

    Guarantees: the same bits as ``executable.run`` with the outputs fed back by hand; a step allocates no tensor;
    arrays given are copied and arrays returned are copies. One loop serves one thread at a time.
    Raises InputError naming the tensor for a missing, unknown or misshaped one; ProviderFailed, also of ``state`` and
    ``read``, when another provider than the CPU fails.
    """

    def __init__(
        self,
        executable: Executable,
        *,
        carry: Mapping[str, str],
        constants: Mapping[str, NDArray],
        state: Mapping[str, NDArray],
        rebind: bool | None = None,
        in_place: bool = False,
    ) -> None:
        _check_carry(executable, carry)
        carried = set(carry.values())
        clash = sorted(carried & constants.keys())
        if clash:
            raise InputError(f"step loop: {', '.join(clash)} cannot be both carried and constant.")
        self.executable = executable
        self._carry = dict(carry)
        slots = {tensor.name: self._slot(tensor) for tensor in executable.inputs}
        copied_when_bound = executable.provider != CPU and any(isinstance(slot, HostSlot) for slot in slots.values())
        self._rebind = copied_when_bound if rebind is None else rebind
        lying = (
            stepped_in_place(executable.data, carry) if in_place and executable.provider == CPU else frozenset[str]()
        )
        second = {name: slots[name] if name in lying else self._slot(slots[name].info) for name in carried}
        self._states = ({name: slots[name] for name in carried}, second)
        self._constants = {name: slot for name, slot in slots.items() if name in constants}
        self._feeds = {name: slot for name, slot in slots.items() if name not in carried and name not in constants}
        self._results = {tensor.name: self._slot(tensor) for tensor in executable.outputs if tensor.name not in carry}
        self._turn = 0
        check_names(self._constants, constants, where="step loop constants")
        self.load(state, constants=constants)
        self._bindings = (self._bind(0), self._bind(1))
        self._runs: tuple[Callable[[], None], Callable[[], None]] = (self._runner(0), self._runner(1))

    @property
    def input(self) -> Mapping[str, TensorInfo]:
        """The inputs of the step, by name."""
        return self.executable.input

    @property
    def feeds(self) -> tuple[TensorInfo, ...]:
        """The inputs that every step must be given."""
        return tuple(slot.info for slot in self._feeds.values())

    def load(self, state: Mapping[str, NDArray], *, constants: Mapping[str, NDArray] | None = None) -> None:
        """Start again from ``state`` (every carried input), keeping memory and bindings; ``constants`` replaces all
        constants when given.
        """
        _check(self._states[self._turn], state, where="step loop state")
        if constants is not None:
            _check(self._constants, constants, where="step loop constants")
        with self._provider("copying the state of a training"):
            _write(self._states[self._turn], state)
            _write(self._constants, constants or {})

    def step(self, feeds: Mapping[str, NDArray]) -> None:
        """Run once. feeds: every input that is neither carried nor constant; they are copied before this returns.

        Raises ProviderFailed when another provider than the CPU fails; the state is then that before the step.
        """
        _check(self._feeds, feeds, where="step")
        turn = self._turn
        try:  # Not _provider, whose generator costs every step a microsecond.
            _write(self._feeds, feeds)
            if self._rebind:
                self._bind_inputs(self._bindings[turn], turn)
            self._runs[turn]()
        except Exception as error:  # see open_session
            raise failed(self.executable.provider, error, "a training step") from error
        self._turn = 1 - turn

    def read(self, names: Sequence[str]) -> dict[str, NDArray]:
        """Copies of the named outputs (a list of names, or one) as the last step left them; zeros, or the first state
        for carried ones, before any step.
        """
        wanted = (names,) if isinstance(names, str) else names
        return self._copies({name: self._output(name) for name in wanted})

    def state(self) -> dict[str, NDArray]:
        """Copies of the carried inputs as the next step will see them."""
        return self._copies(self._states[self._turn])

    def _copies(self, slots: Mapping[str, Slot]) -> dict[str, NDArray]:
        with self._provider("copying its results"):
            return {name: slot.read() for name, slot in slots.items()}

    def _slot(self, info: TensorInfo) -> Slot:
        with self._provider(f"taking {info.nbytes:,} bytes of memory for {info.name!r}"):
            return self.executable.memory(info)

    @contextmanager
    def _provider(self, doing: str) -> Generator[None]:
        """A failure in here is the provider's; the host's memory is nobody's fault."""
        try:
            yield
        except MemoryError:
            raise
        except Exception as error:  # see open_session
            raise failed(self.executable.provider, error, doing) from error

    def _output(self, name: str) -> Slot:
        carried = self._carry.get(name)
        slot = self._results.get(name) if carried is None else self._states[self._turn][carried]
        if slot is None:
            raise InputError(f"read: the graph has no output {name!r}; it has {', '.join(self.executable.output)}.")
        return slot

    def _bind(self, turn: int) -> Binding:
        binding = self.executable.session.io_binding()
        self._bind_inputs(binding, turn)
        for name in self.executable.output:
            carried = self._carry.get(name)
            slot = self._results[name] if carried is None else self._states[1 - turn][carried]
            binding.bind_ortvalue_output(name, slot.value)
        return binding

    def _bind_inputs(self, binding: Binding, turn: int) -> None:
        for group in (self._feeds, self._constants, self._states[turn]):
            for name, slot in group.items():
                if name in self.executable.taken:
                    binding.bind_ortvalue_input(name, slot.value)

    def _runner(self, turn: int) -> Callable[[], None]:
        session, binding = self.executable.session, self._bindings[turn]
        return lambda: session.run_with_iobinding(binding)


def _check_carry(executable: Executable, carry: Mapping[str, str]) -> None:
    doubled = sorted(name for name, count in Counter(carry.values()).items() if count > 1)
    if doubled:
        raise InputError(f"step loop: input {', '.join(doubled)} is carried from more than one output.")
    for source, target in carry.items():
        output, into = executable.output.get(source), executable.input.get(target)
        if output is None or into is None:
            lacking = f"output {source!r}" if output is None else f"input {target!r}"
            raise InputError(f"step loop: the graph has no {lacking} to carry ({source} -> {target}).")
        if (output.dtype, output.shape) != (into.dtype, into.shape):
            raise InputError(f"step loop: output {output} cannot become input {into}: dtype and shape must be equal.")


def _check(slots: Mapping[str, Slot], values: Mapping[str, NDArray], *, where: str) -> None:
    """Require one array of the right dtype and shape for every slot."""
    check_names(slots, values, where=where)
    for name, slot in slots.items():
        slot.info.check(values[name], where=where)


def _write(slots: Mapping[str, Slot], values: Mapping[str, NDArray]) -> None:
    for name, value in values.items():
        slots[name].write(value)
