"""The loop that a trainer steps: on one provider, several steps a call, or with a model's frozen front elsewhere."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from coterie.compute.data.batches import WEIGHT
from coterie.compute.ir import Graph, NDArray
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.runtime.choice import StepCase
from coterie.compute.runtime.devices import Provider
from coterie.compute.runtime.executable import Executable
from coterie.compute.runtime.hybrid_loop import HybridLoop, Trunk, hybrid
from coterie.compute.runtime.loop import Loop
from coterie.compute.runtime.pipeline.chosen import cut_as_asked
from coterie.compute.runtime.pipeline.operator_times import OperatorTimes
from coterie.compute.runtime.spread.asked import Parallel
from coterie.compute.runtime.spread.choice import pays, shared_loop
from coterie.compute.runtime.spread.loop import SpreadLoop
from coterie.compute.runtime.steady import SteadyLoop, Told
from coterie.compute.runtime.tensors import TensorInfo
from coterie.compute.runtime.unread import inputs_of
from coterie.compute.training.sink import sunk_executable
from coterie.errors import InputError

First: TypeAlias = Callable[[Sequence[TensorInfo]], Mapping[str, NDArray]]
"""The feeds of a first step, for who wants to time it: of these inputs."""


@dataclass(frozen=True, kw_only=True)
class LoopOptions:
    """Where steps run. sink_size: steps of one call. trunk: None for a step in one graph. told: of a provider that
    failed, so that the CPU goes on. parallel: the processes that share each step.
    """

    provider: str | Provider
    threads: int
    sink_size: int
    trunk: Trunk | None
    told: Told
    parallel: Parallel = Parallel()


def made_loop(
    graph: Graph,
    options: LoopOptions,
    *,
    carry: Mapping[str, str],
    constants: Mapping[str, NDArray],
    state: Mapping[str, NDArray],
    first: First,
    shown: Sequence[Mapping[str, NDArray]] = (),
) -> Loop:
    """A loop over the graph of one training step; constants are its frozen tensors, ``batch/…`` its batch.

    shown: feeds of a few batches, for a trunk that is quantised. Raises GraphRefused for a trunk where the model has no
    frozen front, InputError (``not_spreadable``) for a step that processes cannot share.
    """
    threads, provider = options.threads, options.provider
    if options.sink_size > 1:
        executable = sunk_executable(
            graph, options.sink_size, carry=carry, constants=constants, provider=name_of(provider), threads=threads
        )
        return SteadyLoop(executable, carry=carry, constants=constants, state=state, told=options.told)
    data = to_onnx(graph, name="train")
    if options.parallel.processes > 1:
        kept = {*carry.values(), *constants}
        feeds = first([info for info in inputs_of(data) if info.name not in kept])
        case = StepCase(data=data, carry=carry, constants=constants, state=state, feeds=feeds)
        rows = frozenset(name for name in graph.inputs if name.startswith("batch/") and name != f"batch/{WEIGHT}")
        if (shared := _shared(case, rows, options)) is not None:
            return shared
    if options.trunk is None:
        executable = loaded(data, provider, threads)
        return SteadyLoop(executable, carry=carry, constants=constants, state=state, told=options.told)
    batch = [name for name in graph.inputs if name.startswith("batch/")]
    parts = hybrid(data, options.trunk, frozen=constants, batch=batch, calibration=shown)
    trunk = loaded(parts.trunk, options.trunk.provider, threads)
    head = Executable(parts.head, threads=threads)
    return HybridLoop(trunk, head, carry=carry, constants=constants, state=state, told=options.told)


def _shared(case: StepCase, rows: frozenset[str], options: LoopOptions) -> Loop | None:
    """A loop whose steps processes share; None where one is as quick, and for ``auto`` where they cannot share."""
    asked = options.parallel
    try:
        spread = cut_as_asked(asked, case, batch=rows, threads=options.threads, times=OperatorTimes())
        return shared_loop(case, spread) if not asked.measured or pays(case, spread)[0] else None
    except InputError as error:
        if not asked.measured:
            raise
        warnings.warn(f"parallel='auto' trains in one process: {error.message}", RuntimeWarning, stacklevel=2)
        return None


def loaded(data: bytes, provider: str | Provider, threads: int) -> Executable:
    """A file loaded for a provider of ONNX Runtime by name, or for one of a package."""
    if isinstance(provider, Provider):
        return provider.executable(data, threads=threads)
    return Executable(data, provider=provider, threads=threads)


def is_over(loop: Loop) -> bool:
    """Whether a loop cannot go on, because processes that shared its steps have ended."""
    return isinstance(loop, SpreadLoop) and loop.closed


def name_of(provider: str | Provider) -> str:
    """The provider's name."""
    return provider.name if isinstance(provider, Provider) else provider
