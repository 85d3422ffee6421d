"""Run a step over many batches of a dataset in one call."""

from collections.abc import Callable, Iterable
from typing import Any

from coterie.compute.control.functions import scan
from coterie.compute.interactive.jit import jit
from coterie.compute.runtime.session import CPU
from coterie.compute.training.sink import require_loops
from coterie.compute.training.stacks import Stacks
from coterie.compute.tree import flatten
from coterie.errors import InputError


class DataSink:
    """What :func:`data_sink` returns: ``state, results = sink(state)`` takes the next ``sink_size`` batches."""

    def __init__(self, fn: Callable[[Any, Any], tuple[Any, Any]], dataset: Iterable[Any], sink_size: int) -> None:
        inner = jit(fn)  # inside the loop's trace it takes part in it, with its own if, while and for rewritten

        def loop(state: Any, stack: Any) -> tuple[Any, Any]:
            return scan(inner, state, stack)

        self._run = jit(loop, fullgraph=True, capture_mode="trace")
        self._stacks = Stacks(dataset, sink_size)
        self.calls = 0
        self.steps = 0

    @property
    def compilations(self) -> int:
        """How often the loop was compiled: once, and once more for a shorter last stack."""
        return self._run.compilations

    def __call__(self, state: Any) -> tuple[Any, Any]:
        """The state after the next batches, and the results of their steps, stacked. Raises InputError when the dataset
        has no more.
        """
        stack = next(self._stacks, None)
        if stack is None:
            raise InputError(
                f"data_sink: the dataset ended after {self.steps} batches.",
                hint="Call it less often, or give batches without end: Batches(..., epochs=None).",
            )
        state, results = self._run(state, stack)
        self.calls += 1
        self.steps += len(flatten(stack)[0][0])
        return state, results

    def close(self) -> None:
        """Stop reading batches ahead."""
        self._stacks.close()


def data_sink(
    fn: Callable[[Any, Any], tuple[Any, Any]], dataset: Iterable[Any], sink_size: int = 1, *, provider: str = CPU
) -> DataSink:
    """``fn`` over ``sink_size`` batches of the dataset at each call, as one graph with the loop inside (MindSpore's
    ``data_sink``; what changes is passed in and out instead of being held in Parameters).

    fn(state, batch): (next state, result); trees of arrays, the state of fixed structure, shapes and dtypes. dataset:
    batches of one fixed shape, for example ``compute.data.Batches``. provider: what will run it.

    Guarantees: one host call for ``sink_size`` steps, equal to that many plain steps; the next batches are stacked
    while a call runs, so the dataset is read ahead of the steps. Raises ConfigurationError naming a provider without
    loops or one that compiled functions do not run on, InputError for a size below one, TraceError for a function that
    is no graph.
    """
    require_loops(provider)
    if provider != CPU:
        raise InputError(
            f"data_sink runs compiled functions, which are on {CPU}, not {provider}.",
            hint="Use training.sink.sunk_executable and StepLoop there.",
        )
    return DataSink(fn, dataset, sink_size)
