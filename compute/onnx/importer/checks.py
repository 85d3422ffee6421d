"""What is wrong with a graph before any of it runs: order, cycles, size, operators and weights."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from coterie.compute.ir import NDArray
from coterie.compute.onnx.importer.graph import Input, Step
from coterie.compute.onnx.importer.operation import MOST_ELEMENTS
from coterie.compute.onnx.importer.table import TRANSLATIONS
from coterie.compute.onnx.importer.tensors import DAMAGED, refused

MOST_NODES, DEEPEST = 1_000_000, 100  # nodes, functions written out; and calls of functions inside one another


def refuse_unreadable(model: Any) -> None:
    """Raises GraphRefused for a name that is not UTF-8: the ONNX package gives it as bytes."""
    for graph in (model.graph, *model.functions):
        inner = model.graph is graph
        values = (*graph.input, *graph.output) if inner else ()
        names: list[object] = [value.name for value in values]
        names += [d.dim_param for value in values for d in value.type.tensor_type.shape.dim]
        names += [tensor.name for tensor in graph.initializer] if inner else [graph.name, graph.domain]
        names += [] if inner else [*graph.input, *graph.output]
        for node in graph.node:
            names += (node.op_type, node.domain, node.name, *node.input, *node.output)
            names += (attribute.name for attribute in node.attribute)
        names += (entry.domain for entry in model.opset_import)
        for name in names:
            if isinstance(name, bytes):
                raise refused(f"The name {name[:64]!r} is not UTF-8.", DAMAGED)


def refuse_endless(nodes: Sequence[Any], functions: Iterable[Any]) -> None:
    """Raises GraphRefused for more nodes than are imported. Functions that call functions can stand for more than fit
    into memory.
    """
    bodies = {(function.domain, function.name): function.node for function in functions}
    sizes: dict[tuple[str, str], int] = {}

    def size(nodes: Iterable[Any], above: frozenset[tuple[str, str]]) -> int:
        total = 0
        for node in nodes:
            called = (node.domain, node.op_type)
            if called not in bodies:
                total += 1
                continue
            if called in above or len(above) > DEEPEST:
                raise refused(f"Its function {node.op_type!r} calls itself.", "Export without functions.")
            if called not in sizes:
                sizes[called] = size(bodies[called], above | {called})
            total += sizes[called]
        return total

    if (count := size(nodes, frozenset())) > MOST_NODES:
        what = "Written out, its functions are" if bodies else "It has"
        raise refused(f"{what} {count} nodes.", f"At most {MOST_NODES} are imported.")


def refuse_disorder(steps: Sequence[Step], given: Collection[str]) -> None:
    """Raises GraphRefused for a step that reads what no step before it makes: with the cycle if it is on one, else
    with what it reads.
    """
    makers = {name: step for step in reversed(steps) for name in step.outputs if name}
    known = {"", *given}
    for step in steps:
        for name in step.inputs:
            if name in known:
                continue
            if name not in makers:
                raise refused(f"The node {step.name!r} ({step.operator}) reads {name!r}, which nothing makes.", DAMAGED)
            if path := _cycle(step, makers):
                told = " → ".join(f"{each.name!r} ({each.operator})" for each in path)
                raise refused(f"Its nodes form a cycle: {told}.", DAMAGED, cycle=[each.name for each in path])
            raise refused(
                f"The node {step.name!r} ({step.operator}) reads {name!r} before {makers[name].name!r} makes it: its "
                "nodes are not in the order of use.",
                DAMAGED,
            )
        known.update(step.outputs)


def _cycle(start: Step, makers: Mapping[str, Step]) -> list[Step] | None:
    """The nodes from ``start`` back to it, each read by the one before, if there is such a path."""
    came: dict[int, Step] = {}
    reached = [start]
    while reached:
        step = reached.pop()
        for maker in (makers[name] for name in step.inputs if name in makers):
            if maker is start:
                path = [start, step]
                while path[-1] is not start:
                    path.append(came[id(path[-1])])
                return path if step is not start else [start, start]
            if id(maker) not in came:
                came[id(maker)] = step
                reached.append(maker)
    return None


def refuse_unknown(steps: Iterable[Step]) -> None:
    """Raises GraphRefused naming the first node that is not translated."""
    for step in steps:
        if step.operator in TRANSLATIONS:
            continue
        hint = "Rewrite that part of the model with operators of coterie.compute.onnx.importer.table"
        if step.operator in ("If", "Loop", "Scan"):
            hint = "Export without control flow: trace the model on an example"
        raise refused(
            f"The node {step.name!r} is a {step.operator}, which is not translated.",
            f"{hint}.",
            operator=step.operator,
            node=step.name,
        )


def refuse_huge(inputs: Iterable[Input]) -> None:
    """Raises GraphRefused for an input that no machine holds."""
    for given in inputs:
        count = prod(size for size in given.sizes if isinstance(size, int))
        if count > MOST_ELEMENTS:
            raise refused(
                f"The input {given.name!r} has the sizes {list(given.sizes)}: {count} elements.",
                f"At most {MOST_ELEMENTS} are imported; export smaller sizes.",
            )


def refuse_broken(
    weights: Mapping[str, NDArray],
    statistics: Mapping[str, NDArray],
    variances: Iterable[str],
    weighing: Collection[str],
) -> None:
    """Raises GraphRefused naming a tensor whose training has failed already: NaN, a variance below 0, or an infinite
    number in a statistic or a tensor of ``weighing``, which operators with weights read.
    """
    for name, array in {**weights, **statistics}.items():
        if count := int(np.isnan(array).sum()):
            raise refused(
                f"Of the {array.size} numbers of {name!r}, {count} are not a number (NaN).",
                "Export the model from a checkpoint before its training diverged.",
                tensor=name,
            )
        if (name in weighing or name in statistics) and (count := int(np.isinf(array).sum())):
            raise refused(
                f"Of the {array.size} numbers of {name!r}, {count} are infinite.",
                "Export the model from a checkpoint before its training diverged.",
                tensor=name,
            )
    for name in variances:
        if name in statistics and (statistics[name] < 0).any():
            raise refused(f"The running variance {name!r} has numbers below 0.", DAMAGED, tensor=name)
