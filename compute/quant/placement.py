"""Which operands of which operators are quantised.

Levels stand at the inputs of the operators that integer kernels exist for and that the time goes into. A runtime moves
them through what only passes numbers on (MaxPool, Reshape, Transpose, ReLU) and joins them with the operator before, so
nothing need be said at outputs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from onnx import ModelProto, numpy_helper

from coterie.compute.ir import NDArray
from coterie.compute.quant.passing import above, reaches
from coterie.compute.quant.reading import attribute


@dataclass(frozen=True, kw_only=True)
class Site:
    """One operator that is quantised. node: its index. activations: its inputs that are computed from data. weight: the
    input that is a weight, or None; channels: the weight's axis of output channels, None where kernels take one scale
    alone; one_zero: whether kernels take one zero alone for all channels. bias: the input that is added to sums of
    products, as int32, or None.
    """

    node: int
    activations: tuple[int, ...]
    weight: int | None = None
    channels: int | None = None
    one_zero: bool = False
    bias: int | None = None


def sites(proto: ModelProto) -> tuple[Site, ...]:
    """All operators of the graph that are quantised, in its order."""
    constants = {tensor.name: tensor for tensor in proto.graph.initializer if _is_weight(tensor)}
    found = (_site(index, node, constants) for index, node in enumerate(proto.graph.node))
    return _without_idle_sums(proto, [site for site in found if site is not None])


def _without_idle_sums(proto: ModelProto, found: Sequence[Site]) -> tuple[Site, ...]:
    """All but the sums whose result no integer kernel reads: there levels would cost accuracy and gain nothing."""
    sums = [site for site in found if proto.graph.node[site.node].op_type == "Add"]
    kept = [site for site in found if site not in sums]
    for site in reversed(sums):  # a sum may be read by a later one
        if reaches(proto, site.node, frozenset(activations(proto, kept))):
            kept.append(site)
    return tuple(sorted(kept, key=lambda site: site.node))


def activations(proto: ModelProto, places: Sequence[Site]) -> tuple[str, ...]:
    """Names of the tensors that quantised operators read, in the order of their first use."""
    names = (proto.graph.node[site.node].input[place] for site in places for place in site.activations)
    return tuple(dict.fromkeys(names))


def results(proto: ModelProto, places: Sequence[Site]) -> tuple[str, ...]:
    """Names of what convolutions make that no quantised operator reads, behind passing nodes at most, and that is no
    output of the graph. An integer kernel of a convolution hands out levels, so without a range it stays in float32;
    those of products can hand out floats.
    """
    quantised = {site.node for site in places}
    led = {name: above(proto, name, quantised) for name in activations(proto, places)}
    covered = set(led) | {proto.graph.node[nodes[-1]].input[0] for nodes in led.values() if nodes}
    covered |= {value.name for value in proto.graph.output}
    made = (proto.graph.node[site.node] for site in places)
    return tuple(node.output[0] for node in made if node.op_type == "Conv" and node.output[0] not in covered)


def _is_weight(tensor: Any) -> bool:
    return tensor.data_type == 1  # FLOAT


def _site(index: int, node: Any, constants: Mapping[str, Any]) -> Site | None:
    rule = _RULES.get(node.op_type) if node.domain in ("", "ai.onnx") else None
    return None if rule is None else rule(index, node, constants)


def _conv(index: int, node: Any, constants: Mapping[str, Any]) -> Site | None:
    if node.input[1] not in constants or node.input[0] in constants:
        return None
    return Site(node=index, activations=(0,), weight=1, channels=0, one_zero=True, bias=_bias(node, constants))


def _gemm(index: int, node: Any, constants: Mapping[str, Any]) -> Site | None:
    plain = attribute(node, "alpha", 1.0) == attribute(node, "beta", 1.0) == 1.0 and not attribute(node, "transA", 0)
    if not plain or node.input[0] in constants:
        return None
    if node.input[1] not in constants:
        return None
    bias = _bias(node, constants)
    if bias is None and len(node.input) > 2 and node.input[2]:
        return None  # something computed is added, which integer kernels do not take
    return Site(node=index, activations=(0,), weight=1, channels=0 if attribute(node, "transB", 0) else 1, bias=bias)


def _matmul(index: int, node: Any, constants: Mapping[str, Any]) -> Site | None:
    left, right = node.input
    if left in constants:
        return None
    if right not in constants:
        return Site(node=index, activations=(0, 1))
    rank = len(constants[right].dims)
    return Site(node=index, activations=(0,), weight=1, channels=1 if rank == 2 else None)


def _sum(index: int, node: Any, constants: Mapping[str, Any]) -> Site | None:
    """A residual connection: two activations. What adds a constant is left in float32."""
    if any(name in constants for name in node.input) or node.input[0] == node.input[1]:
        return None
    return Site(node=index, activations=(0, 1))


def _bias(node: Any, constants: Mapping[str, Any]) -> int | None:
    """The third input, if it is a vector in the file."""
    if len(node.input) < 3 or not node.input[2] or node.input[2] not in constants:
        return None
    return 2 if len(constants[node.input[2]].dims) == 1 else None


_RULES: Mapping[str, Callable[[int, Any, Mapping[str, Any]], Site | None]] = MappingProxyType(
    {"Conv": _conv, "Gemm": _gemm, "MatMul": _matmul, "Add": _sum}
)


def weight_of(proto: ModelProto, name: str) -> NDArray:
    """A weight in the file, as an array."""
    return next(numpy_helper.to_array(tensor) for tensor in proto.graph.initializer if tensor.name == name)
