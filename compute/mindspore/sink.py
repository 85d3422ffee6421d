"""``data_sink``: several steps of a script over a dataset in one call of the runtime."""

from collections.abc import Callable, Iterator
from typing import Any, cast

from coterie.compute import tree
from coterie.compute.array import Array, as_array
from coterie.compute.control.functions import scan
from coterie.compute.interactive.mode import get_mode
from coterie.compute.mindspore.compiled import Jitted
from coterie.compute.mindspore.dataset import Dataset
from coterie.compute.mindspore.parameter import Parameter, scope, standing, step_recorder, write
from coterie.compute.mindspore.tensor import tensors
from coterie.compute.signature import require_function
from coterie.compute.source import user_source
from coterie.compute.trace import TensorSpec, is_array, trace_flat
from coterie.compute.training.stacks import Stacks
from coterie.errors import ArgumentTypeError, ArgumentValueError, InputError


class DataSink:
    """What :func:`data_sink` returns; a call takes the next batches and gives what the last of its steps returned."""

    def __init__(self, fn: Callable[..., Any], dataset: Dataset, sink_size: int) -> None:
        self._fn = fn
        self._stacks = Stacks(_endless(dataset), sink_size)
        self._run = Jitted(self._loop, capture_mode="trace", fullgraph=True)

    def __call__(self) -> Any:
        """Run the steps."""
        stack = cast("list[Any]", next(self._stacks))
        if get_mode() == "eager":
            result = None
            for row in range(len(stack[0])):
                result = self._fn(*tensors([as_array(column[row]) for column in stack]))
            return result
        return self._run(*stack)

    def close(self) -> None:
        """Stop reading batches ahead."""
        self._stacks.close()

    def _loop(self, *stacks: Array) -> Any:
        written = self._written(stacks)
        results: list[Any] = []

        def step(carry: list[Array], rows: list[Array]) -> tuple[list[Array], list[Array]]:
            with standing(list(zip(written, carry, strict=True))), scope():
                leaves, structure = tree.flatten(self._fn(*tensors(rows)))
                results[:] = [structure, leaves]
                told = [as_array(leaf).alias() for leaf in leaves if is_array(leaf)]
                return [parameter.held() for parameter in written], told

        after, told = scan(step, list(written), list(stacks))
        write(written, after)
        last = iter([array[-1] for array in told])
        structure, leaves = results
        return tree.unflatten(structure, [next(last) if is_array(leaf) else leaf for leaf in leaves])

    def _written(self, stacks: tuple[Array, ...]) -> list[Parameter]:
        """The Parameters that a step writes: those are what the loop carries."""
        found: list[Parameter] = []
        recorder = step_recorder()
        drawn = 0 if recorder is None else len(recorder.draws)

        def once(*rows: Array) -> list[Array]:
            with scope() as opened:
                self._fn(*tensors(rows))
                pairs = opened.written()
                found.extend(parameter for parameter, _ in pairs)
                return [array for _, array in pairs]

        trace_flat(once, tuple(TensorSpec(stack.shape[1:], stack.type.dtype) for stack in stacks), ())
        if recorder is not None and len(recorder.draws) > drawn:
            raise InputError(
                f"{user_source()}: data_sink: the step draws random numbers (Dropout), and a loop would draw once for "
                "all of its steps.",
                hint="Model(...).train(dataset_sink_mode=True) draws for each step, and so does sink_size=1 with jit.",
            )
        return found


def data_sink(fn: Callable[..., Any], dataset: Dataset, sink_size: int = 1) -> DataSink:
    """``fn(*columns)`` over the next ``sink_size`` batches of a dataset at each call, one graph with the loop inside;
    Parameters that ``fn`` writes are carried from step to step. The dataset is gone through again and again.

        sink = data_sink(train_step, dataset, sink_size=10)
        loss = sink()

    In eager mode the steps run one by one. Raises ArgumentTypeError for what is no Dataset, ArgumentValueError for one
    without batches, InputError for batches of different shapes and for a step that draws random numbers.
    """
    require_function("data_sink", fn)
    if not isinstance(cast(object, dataset), Dataset):
        raise ArgumentTypeError(
            f"data_sink takes a Dataset, not a {type(dataset).__name__}.", hint="NumpySlicesDataset((x, y)).batch(32)"
        )
    if dataset.batch_size is None:
        raise ArgumentValueError(
            "data_sink: the dataset has no batches.", hint="dataset.batch(32, drop_remainder=True)"
        )
    return DataSink(fn, dataset, sink_size)


def _endless(dataset: Dataset) -> Iterator[list[Any]]:
    while True:
        yield from dataset.create_tuple_iterator(output_numpy=True)
