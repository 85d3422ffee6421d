"""Sinking a loop: one graph takes many steps, so that the host is called once for all of them."""

from collections.abc import Collection, Mapping

from coterie.compute.array import Array
from coterie.compute.control.functions import scan
from coterie.compute.ir import Graph
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.optim.optimizer import check_whole
from coterie.compute.passes import optimise
from coterie.compute.replay import apply
from coterie.compute.runtime.executable import Executable
from coterie.compute.runtime.session import CPU
from coterie.compute.trace import GraphInputs, TensorSpec, trace_named
from coterie.errors import ConfigurationError, InputError

# Providers with Loop and Scan; on the others a loop would be unrolled, which is no longer one small graph.
LOOPING = (CPU, "CUDAExecutionProvider")


def require_loops(provider: str) -> None:
    """Raises ConfigurationError for a provider without loops."""
    if provider not in LOOPING:
        raise ConfigurationError(
            f"{provider} has no Loop and no Scan, so it cannot take several steps in one call.",
            hint=f"Use sink_size 1 there, or one of {', '.join(LOOPING)}.",
        )


def sunk(graph: Graph, steps: int, *, carry: Mapping[str, str], constants: Collection[str] = ()) -> Graph:
    """The graph of ``steps`` steps of a graph.

    carry: for each carried output the input that it becomes, as for StepLoop, which runs the result with the same
    ``carry`` and ``constants``. constants: inputs that stay the same over the steps. Every other input is a feed and
    becomes a stack [steps, ...]; every output that is not carried, too.

    Guarantees: the size of the graph does not depend on ``steps``; the same numbers as single steps, to rounding, and
    the same bits on ONNX Runtime's CPU provider where it fuses the same nodes. Raises InputError for no step and for
    names that the graph lacks.
    """
    check_whole("sunk", steps=steps)
    carried = set(carry.values())
    if unknown := sorted({*carried, *constants} - graph.inputs.keys()) + sorted(carry.keys() - graph.outputs.keys()):
        raise InputError(f"sunk: the graph has no {', '.join(map(repr, unknown))}.")

    def spec(name: str) -> TensorSpec:
        type_ = graph.inputs[name].type
        return TensorSpec(type_.shape if name in carried or name in constants else (steps, *type_.shape), type_.dtype)

    def run(inputs: GraphInputs) -> dict[str, Array]:
        held = {name: inputs[name] for name in constants}
        feeds = {name: inputs[name] for name in graph.inputs if name not in carried and name not in held}

        def step(state: dict[str, Array], fed: dict[str, Array] | None) -> tuple[dict[str, Array], dict[str, Array]]:
            known = {**held, **state, **(fed or {})}
            results = dict(zip(graph.outputs, apply(graph, [known[name] for name in graph.inputs]), strict=True))
            made = {name: array for name, array in results.items() if name not in carry}
            return {carry[name]: results[name] for name in carry}, made

        last, stacks = scan(step, {name: inputs[name] for name in carried}, feeds or None, steps)
        return {name: last[carry[name]] if name in carry else stacks[name] for name in graph.outputs}

    return optimise(trace_named(run, {name: spec(name) for name in graph.inputs}))


def sunk_executable(
    graph: Graph,
    steps: int,
    *,
    carry: Mapping[str, str],
    constants: Collection[str] = (),
    provider: str = CPU,
    threads: int = 1,
) -> Executable:
    """:func:`sunk`, loaded. One run takes ``steps`` steps: host calls per step are 1/steps. Raises ConfigurationError
    naming a provider without loops.
    """
    require_loops(provider)
    taken = sunk(graph, steps, carry=carry, constants=constants)
    return Executable(to_onnx(taken, name="sunk", target="cpu"), provider=provider, threads=threads)
