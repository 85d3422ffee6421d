"""A loaded graph on stock ONNX Runtime."""

from collections.abc import Mapping
from functools import cached_property
from typing import cast

import numpy as np

from coterie.compute.ir import NDArray
from coterie.compute.runtime.session import CPU, Session, describe, first_line, open_session
from coterie.compute.runtime.slots import Memory, memory_of
from coterie.compute.runtime.tensors import TensorInfo, check_names
from coterie.compute.runtime.unread import inputs_of
from coterie.errors import ArgumentTypeError, CoterieError, InputError, InternalError, ProviderFailed

# What ONNX Runtime says of Gather and its kind. No other mistake in the inputs is left for it to find.
_INDEX_OUTSIDE = ("out of data bounds", "Out of range value in index")


class Executable:
    """A serialised graph, loaded once and run many times.

    threads: how many threads one run may use. provider: the execution provider's name.
    spinning: let waiting threads spin, which is faster and costs battery; it matters only for more than one thread.
    arena: keep freed memory for the next run; without it peak memory is lower and runs are slower.
    fallback: let nodes that another provider lacks run on the CPU. session: what runs the graph in place of a session
    of ONNX Runtime, for providers of other packages; the options above but ``provider`` are then the package's affair.
    memory: where a step loop keeps its tensors; by default the provider's own (``memory_of``).

    Guarantees: a run on the CPU provider with the same feeds and the same number of threads gives the same bits;
    ``run`` may be called from several threads. Raises GraphRefused when the graph does not load, ConfigurationError for
    an absent provider or a bad option.
    """

    def __init__(
        self,
        data: bytes,
        *,
        threads: int = 1,
        provider: str = CPU,
        spinning: bool = False,
        arena: bool = True,
        fallback: bool = True,
        profile_prefix: str | None = None,
        session: Session | None = None,
        memory: Memory | None = None,
    ) -> None:
        if not isinstance(cast(object, data), bytes):
            raise ArgumentTypeError(
                f"An executable is made of the bytes of an ONNX file, not of a {type(data).__name__}.",
                hint="to_onnx(graph, name=...) gives them, and Path(file).read_bytes().",
            )
        self.session: Session = (
            session
            if session is not None
            else open_session(
                data,
                threads=threads,
                provider=provider,
                spinning=spinning,
                arena=arena,
                fallback=fallback,
                profile_prefix=profile_prefix,
            )
        )
        self.provider = provider
        self.threads = threads
        self.data = data
        taken = describe(self.session.get_inputs())
        self.inputs: tuple[TensorInfo, ...] = taken if provider == CPU or session is not None else inputs_of(data)
        self.taken: frozenset[str] = frozenset(info.name for info in taken)
        """The inputs that the session has: on another provider than the CPU those that some node reads."""
        self.outputs: tuple[TensorInfo, ...] = describe(self.session.get_outputs())
        self._memory = memory

    @cached_property
    def memory(self) -> Memory:
        """Makes the memory that a step loop over this graph reads and writes."""
        return memory_of(self.provider) if self._memory is None else self._memory

    @cached_property
    def input(self) -> Mapping[str, TensorInfo]:
        """Inputs by name."""
        return {tensor.name: tensor for tensor in self.inputs}

    @cached_property
    def output(self) -> Mapping[str, TensorInfo]:
        """Outputs by name."""
        return {tensor.name: tensor for tensor in self.outputs}

    def run(self, feeds: Mapping[str, NDArray]) -> dict[str, NDArray]:
        """All outputs for these feeds, each an array of its own.

        feeds: every input by name, each of exactly the graph's dtype and shape. Raises InputError naming the tensor
        otherwise, ProviderFailed when another provider than the CPU fails.
        """
        check_names(self.input, feeds, where="run")
        checked = {
            name: np.ascontiguousarray(self.input[name].check(value, where="run")).reshape(value.shape)
            for name, value in feeds.items()
        }
        try:
            values = self.session.run(None, {name: value for name, value in checked.items() if name in self.taken})
        except Exception as error:  # see open_session
            raise failed(self.provider, error, "a graph that it had accepted") from error
        return {tensor.name: value for tensor, value in zip(self.outputs, values, strict=True)}


def failed(provider: str, error: Exception, where: str) -> CoterieError:
    """What a failure in a run is: of the inputs, an index that is too large; else of another provider, which the CPU
    can stand in for; of the CPU, coterie's own.
    """
    if any(words in str(error) for words in _INDEX_OUTSIDE):
        return InputError(
            f"An index among the inputs leaves the axis that it picks from, in {where}: {first_line(error)}",
            hint="Check the ids against the size of the table: they are in 0 .. rows - 1.",
        )
    if provider == CPU:
        return InternalError(f"ONNX Runtime failed on {provider} in {where}: {first_line(error)}")
    return ProviderFailed(
        f"The provider {provider} failed in {where}: {first_line(error)}",
        hint="Train on the CPU, or update the provider's driver and try it anew with `coterie doctor`.",
        provider=provider,
    )
