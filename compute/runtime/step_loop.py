"""Stepping a graph whose outputs are its next inputs, without copying state and without allocating."""

from collections.abc import Mapping, Sequence

from coterie.compute.ir import NDArray
from coterie.compute.runtime.bound_step import BoundStep
from coterie.compute.runtime.executable import Executable
from coterie.compute.runtime.in_place import stepped_in_place
from coterie.compute.runtime.session import CPU
from coterie.compute.runtime.step_memory import StepMemory
from coterie.compute.runtime.tensors import TensorInfo


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
        lying = (
            stepped_in_place(executable.data, carry) if in_place and executable.provider == CPU else frozenset[str]()
        )
        self.executable = executable
        self._memory = StepMemory(executable, carry=carry, constants=constants, state=state, lying=lying)
        self._step = BoundStep(executable, self._memory, rebind=rebind)

    @property
    def input(self) -> Mapping[str, TensorInfo]:
        """The inputs of the step, by name."""
        return self.executable.input

    @property
    def feeds(self) -> tuple[TensorInfo, ...]:
        """The inputs that every step must be given."""
        return self._step.feeds

    def load(self, state: Mapping[str, NDArray], *, constants: Mapping[str, NDArray] | None = None) -> None:
        """Start again from ``state`` (every carried input), keeping memory and bindings; ``constants`` replaces all
        constants when given.
        """
        self._memory.load(state, constants=constants)

    def step(self, feeds: Mapping[str, NDArray]) -> None:
        """Run once. feeds: every input that is neither carried nor constant; they are copied before this returns.

        Raises ProviderFailed when another provider than the CPU fails; the state is then that before the step.
        """
        self._step.step(feeds)

    def read(self, names: Sequence[str]) -> dict[str, NDArray]:
        """Copies of the named outputs (a list of names, or one) as the last step left them; zeros, or the first state
        for carried ones, before any step.
        """
        return self._step.read(names)

    def state(self) -> dict[str, NDArray]:
        """Copies of the carried inputs as the next step will see them."""
        return self._memory.state()
