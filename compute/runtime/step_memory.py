"""Where training steps find their state and their constants, and leave the state that comes next."""

from collections import Counter
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager

from coterie.compute.ir import NDArray
from coterie.compute.runtime.executable import Executable, failed
from coterie.compute.runtime.slots import Slot
from coterie.compute.runtime.tensors import TensorInfo, check_names
from coterie.errors import InputError


class StepMemory:
    """The carried inputs and the constants of a step, and of others of the same carry and constants.

    executable: a step; the memory is its provider's. carry: for each carried output the input that it becomes; both
    have one dtype and shape. constants: inputs that stay the same. state: the first values of the carried inputs.
    lying: carried inputs that have one memory for the old value and for the new one, which must be right for every
    step on this memory (see ``stepped_in_place``).

    There are two sets of state: a step reads the set of ``turn``, and writes the other one.
    """

    def __init__(
        self,
        executable: Executable,
        *,
        carry: Mapping[str, str],
        constants: Mapping[str, NDArray],
        state: Mapping[str, NDArray],
        lying: Collection[str] = (),
    ) -> None:
        check_carry(executable, carry)
        carried = set(carry.values())
        clash = sorted(carried & constants.keys())
        if clash:
            raise InputError(f"step loop: {', '.join(clash)} cannot be both carried and constant.")
        self.carry = dict(carry)
        self.turn = 0
        self._executable = executable
        first = {name: take(executable, executable.input[name]) for name in executable.input if name in carried}
        second = {name: slot if name in lying else take(executable, slot.info) for name, slot in first.items()}
        self.states = (first, second)
        self.constants = {
            name: take(executable, executable.input[name]) for name in executable.input if name in constants
        }
        self.load(state, constants=constants)

    def load(self, state: Mapping[str, NDArray], *, constants: Mapping[str, NDArray] | None = None) -> None:
        """Copy ``state`` (every carried input) to where the next step reads it; ``constants`` replaces all constants
        when given.
        """
        check_values(self.states[self.turn], state, where="step loop state")
        if constants is not None:
            check_values(self.constants, constants, where="step loop constants")
        with provided(self._executable, "copying the state of a training"):
            write(self.states[self.turn], state)
            write(self.constants, constants or {})

    def state(self) -> dict[str, NDArray]:
        """Copies of the carried inputs as the next step will see them."""
        return copies(self._executable, self.states[self.turn])


@contextmanager
def provided(executable: Executable, doing: str) -> Generator[None]:
    """A failure in here is the provider's; the host's memory is nobody's fault."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:  # see open_session
        raise failed(executable.provider, error, doing) from error


def take(executable: Executable, info: TensorInfo) -> Slot:
    """Memory for one tensor of a step."""
    with provided(executable, f"taking {info.nbytes:,} bytes of memory for {info.name!r}"):
        return executable.memory(info)


def copies(executable: Executable, slots: Mapping[str, Slot]) -> dict[str, NDArray]:
    """What lies in the slots."""
    with provided(executable, "copying its results"):
        return {name: slot.read() for name, slot in slots.items()}


def write(slots: Mapping[str, Slot], values: Mapping[str, NDArray]) -> None:
    """Copy values to their slots."""
    for name, value in values.items():
        slots[name].write(value)


def check_carry(executable: Executable, carry: Mapping[str, str]) -> None:
    """Raise InputError unless the step has these outputs and inputs, each pair of one dtype and shape."""
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


def check_values(slots: Mapping[str, Slot], values: Mapping[str, NDArray], *, where: str) -> None:
    """Require one array of the right dtype and shape for every slot."""
    check_names(slots, values, where=where)
    for name, slot in slots.items():
        slot.info.check(values[name], where=where)
