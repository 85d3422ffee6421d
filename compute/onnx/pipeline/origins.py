"""Which weight a gradient moves: followed through the optimizer's update, also where small ones are joined for it."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from coterie.compute.onnx.spread.reading import StepGraph, StepNode

_VIEWS = frozenset({"Reshape", "Unsqueeze", "Transpose", "Cast", "Identity"})


def moved_by(graph: StepGraph, names: Iterable[str]) -> Mapping[str, frozenset[str]]:
    """Of each of these tensors, the results that it goes into number by number, and not as a sum of its numbers."""
    readers: dict[str, list[StepNode]] = defaultdict(list)
    for node in graph.nodes:
        for name in dict.fromkeys(node.inputs):
            readers[name].append(node)
    return {name: frozenset(_followed(graph, readers, name)) for name in names}


def _followed(graph: StepGraph, readers: Mapping[str, list[StepNode]], name: str) -> set[str]:
    """A stretch of each tensor on the way is known by its ends."""
    found, seen = set[str](), set[tuple[str, int, int]]()
    waiting = [(name, 0, graph.size(name))]
    while waiting:
        here = waiting.pop()
        if here in seen:
            continue
        seen.add(here)
        tensor, begin, end = here
        if tensor in graph.outputs:
            found.add(tensor)
        for node in readers.get(tensor, ()):
            moved = _moved(graph, node, tensor, begin, end)
            if moved is not None:
                waiting.append((node.outputs[0], *moved))
    return found


def _moved(graph: StepGraph, node: StepNode, tensor: str, begin: int, end: int) -> tuple[int, int] | None:
    """Where a stretch of an operand is in the result; None where it is nowhere."""
    size, result = graph.size(tensor), graph.size(node.outputs[0])
    match node.operator:
        case "Concat" if len(node.out_shape) == 1:
            before = sum(graph.size(name) for name in node.inputs[: node.inputs.index(tensor)])
            return before + begin, before + end
        case "Slice" if len(node.shape(0)) == 1 and not node.has(4):
            first = node.numbers(1)[0] % max(size, 1)
            low, high = max(begin, first), min(end, first + result)
            return (low - first, high - first) if low < high else None
        case operator if operator in _VIEWS:
            return begin, end
        case _:
            return (begin, end) if size == result and (size > 1 or begin < end) else None
