"""Write a graph as one plain ONNX file: opset 17, IR version 8, static shapes, portable operators, nothing random; for
the portable target no control flow either.

Inputs and outputs keep their names and order. A tensor of rank 0 is carried as [1], because scalars of rank 0 are
handled unevenly by providers; so an input or output of shape () has shape [1] in the file.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import onnx
from onnx import helper, numpy_helper

from coterie.compute.ir import NARROW, Graph, NDArray, Node, Type, Value, require_graph
from coterie.compute.onnx.providers import TARGETS, lacking
from coterie.compute.passes.legalise import legalise
from coterie.compute.passes.pooled_padding import keep_paddings
from coterie.compute.passes.tune import tune
from coterie.compute.primitives.basic import ONNX_DTYPES
from coterie.compute.primitives.rules import carried
from coterie.compute.table import PLAIN, PRIMITIVES
from coterie.compute.verify import verify
from coterie.errors import GraphRefused, InputError, TraceError

OPSET = 17
IR_VERSION = 8
Target: TypeAlias = Literal[
    "portable",
    "cpu",
    "wasm",
    "cuda",
    "openvino",
    "tensorrt",
    "webgpu",
    "cann",
    "qnn",
    "coreml",
    "webnn",
    "gpu",
    "web",
    "npu",
]


class _Writer:
    """Collects ONNX nodes and initialisers; the Emitter of the lowerings."""

    def __init__(self, taken: set[str], sources: bool, target: Target) -> None:
        self._target = target
        self._row = TARGETS[target]
        self.nodes: list[Any] = []
        self.initialisers: list[Any] = []
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._fixed: set[str] = set()
        self._taken = taken
        self._count = 0
        self._sources = sources
        self._dtype = ""
        self.source = ""
        self.line = ""

    def fresh(self, stem: str) -> str:
        """A name that nothing else has."""
        while True:
            self._count += 1
            name = f"{stem}_{self._count}"
            if name not in self._taken:
                return name

    def op(self, operator: str, *inputs: str, **attributes: Any) -> str:
        self._check(operator, inputs, attributes)
        output = self.fresh(operator)
        node = helper.make_node(operator, list(inputs), [output], name=output, **attributes)
        if self.source:
            node.doc_string = self.source
        self.nodes.append(node)
        return output

    def _check(self, operator: str, inputs: Sequence[str], attributes: dict[str, Any]) -> None:
        if self._dtype == "float64" and operator in self._row.single:
            raise InputError(
                f"{self.line or 'a node of the graph'}: {operator} of float64 cannot be written: the CPU provider "
                "has it in single precision alone.",
                hint='Convert with astype(x, "float32") first.',
            )
        if self._target in ("portable", "cpu"):
            return
        fixed = {index for index, tensor in enumerate(inputs) if tensor in self._fixed}
        if missing := lacking(self._row, operator, fixed, inputs, attributes):
            raise GraphRefused(
                f"{self.line or 'a node of the graph'}: the provider {self._target} {missing}.",
                hint="Write that line with other functions, choose a provider that has it, or the CPU.",
            )

    def constant(self, value: NDArray) -> str:
        data = np.ascontiguousarray(value)
        key = (data.dtype.name, value.shape, data.tobytes())
        if key not in self._constants:
            name = self.fresh("constant")
            self._constants[key] = name
            self._fixed.add(name)
            self.initialisers.append(numpy_helper.from_array(data.reshape(value.shape), name))
        return self._constants[key]

    def fixed(self, name: str) -> bool:
        return name in self._fixed

    def scalar(self, value: float, dtype: str) -> str:
        return self.constant(np.full((1,), value, dtype))

    def integers(self, values: Sequence[int]) -> str:
        return self.constant(np.asarray(list(values), np.int64))

    def ops(self, operator: str, count: int, *inputs: str, **attributes: Any) -> list[str]:
        first = self.op(operator, *inputs, **attributes)
        more = [self.fresh(operator) for _ in range(count - 1)]
        self.nodes[-1].output.extend(more)
        return [first, *more]

    def inline(self, graph: Graph, names: Sequence[str]) -> list[str]:
        known = dict(zip(graph.inputs.values(), names, strict=True))
        self.write(graph, known)
        return [known[value] for value in graph.outputs.values()]

    def write(self, graph: Graph, names: dict[Value, str]) -> None:
        """Lower every node, and add the names of all values."""
        for node in graph.nodes:
            # Without the folders: a file must not carry the layout of the researcher's disk.
            self.line = node.source
            self._dtype = node.outputs[0].type.dtype if node.outputs else ""
            self.source = node.source.replace("\\", "/").rpartition("/")[2] if self._sources else ""
            operands = [names[value] for value in node.inputs]
            made = self._widened(node, operands) if _is_narrow(node) else _lowered(self, node, operands)
            names.update(zip(node.outputs, made, strict=True))

    def _widened(self, node: Node, names: Sequence[str]) -> list[str]:
        """A node of int8 or int16 as one of int32 between conversions. Cast to less bits drops the upper ones."""
        inner = Node(node.primitive, _as_int32(node.inputs), _as_int32(node.outputs), node.attributes, node.source)
        operands = [
            self.op("Cast", name, to=ONNX_DTYPES["int32"]) if value.type.dtype in NARROW else name
            for value, name in zip(node.inputs, names, strict=True)
        ]
        return [
            self.op("Cast", name, to=ONNX_DTYPES[value.type.dtype]) if value.type.dtype in NARROW else name
            for value, name in zip(node.outputs, _lowered(self, inner, operands), strict=True)
        ]

    def subgraph(self, inputs: Sequence[tuple[str, Type]], build: Callable[[], Sequence[tuple[str, Type]]]) -> Any:
        outer, self.nodes = self.nodes, []
        try:
            told, made = (
                [
                    helper.make_tensor_value_info(tensor, ONNX_DTYPES[type_.dtype], type_.shape)
                    for tensor, type_ in values
                ]
                for values in (inputs, build())
            )
            return helper.make_graph(self.nodes, self.fresh("graph"), told, made)
        finally:
            self.nodes = outer


def _lowered(writer: _Writer, node: Node, names: Sequence[str]) -> Sequence[str]:
    return PRIMITIVES[node.primitive].lower(writer, node, names)


def _is_narrow(node: Node) -> bool:
    """Whether a node computes with int8 or int16."""
    if node.primitive in ("constant", "astype") or node.primitive not in PLAIN:
        return False
    return any(value.type.dtype in NARROW for value in (*node.inputs, *node.outputs))


def _as_int32(values: Sequence[Value]) -> tuple[Value, ...]:
    return tuple(Value(Type("int32", value.type.shape)) if value.type.dtype in NARROW else value for value in values)


_DEEPEST = 30


def to_onnx(graph: Graph, *, name: str, sources: bool = False, target: Target = "portable") -> bytes:
    """The bytes of the ONNX file. ``name`` becomes the graph's name.

    target: "portable" writes no control flow: loops of a known number of steps are unrolled, choices compute both
    branches, and a loop whose number of steps depends on data is refused. "cpu" writes Loop, Scan and If, for CPU-class
    providers. The name of another provider (a row of ``onnx.providers``) writes what that one runs, rewritten by
    ``legalise``; the name of a class ("gpu", "web", "npu") what all providers of the class run. An operator that is
    lacking is refused with the user's line.
    sources: note beside every node the file and line of the user's code that it came from, for profiles. Off in plans,
    whose bytes must not change when a comment is added above the model.

    Raises TraceError for a bad graph and for a loop that the target lacks, GraphRefused for an operator that the target
    lacks, InputError for an unknown target, for clashing input and output names, for empty tensors, and for what no CPU
    provider computes in float64 where the target is one.
    """
    require_graph("to_onnx", graph)
    graph = _for_target(verify(graph), target)
    _refuse_empty(graph)
    _refuse_deep(graph, 0)
    if both := set(graph.inputs) & set(graph.outputs):
        raise InputError(
            f"{sorted(both)} are names of both an input and an output.", hint='Rename the outputs, e.g. "next/...".'
        )
    writer = _Writer({*graph.inputs, *graph.outputs}, sources, target)
    names: dict[Value, str] = {value: input_name for input_name, value in graph.inputs.items()}
    writer.write(graph, names)
    _name_outputs(writer, graph, names)
    inputs = [_value_info(input_name, value.type) for input_name, value in graph.inputs.items()]
    outputs = [_value_info(output_name, value.type) for output_name, value in graph.outputs.items()]
    proto = helper.make_graph(writer.nodes, name, inputs, outputs, writer.initialisers)
    model = helper.make_model(
        proto, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="coterie"
    )
    return model.SerializeToString(deterministic=True)


def _for_target(graph: Graph, target: Target) -> Graph:
    return keep_paddings(legalise(tune(graph, target), target))


def _refuse_empty(graph: Graph) -> None:
    """A tensor without elements is legal in ONNX and handled by few providers."""
    made = [(f"Input {name!r}", value) for name, value in graph.inputs.items()]
    made += [
        (f"{node.source}: the result of {node.primitive}", value) for node in graph.nodes for value in node.outputs
    ]
    for what, value in made:
        if value.type.size == 0:
            raise InputError(f"{what} ({value.type}) has no elements.", hint="Drop the empty axis before exporting.")


def _refuse_deep(graph: Graph, depth: int) -> None:
    """Readers of ONNX files take 100 messages inside of each other, of which a graph in a node is three."""
    for node in graph.nodes:
        inner = [held for held in node.attributes.values() if isinstance(held, Graph)]
        if inner and depth == _DEEPEST:
            raise TraceError(
                f"{node.source}: {node.primitive} stands inside of {depth} others, more than an ONNX file can hold.",
                hint="Put what is decided into variables, so that one decision stands behind the other.",
            )
        for held in inner:
            _refuse_deep(held, depth + 1)


def _name_outputs(writer: _Writer, graph: Graph, names: dict[Value, str]) -> None:
    """Give the outputs their names: the node that makes one is renamed; an input, a constant or a second use is copied
    by a Reshape, which is exact.
    """
    made = {output: node for node in writer.nodes for output in node.output}
    renamed: dict[str, str] = {}
    for output_name, value in graph.outputs.items():
        internal = names[value]
        if internal in made and internal not in renamed:
            renamed[internal] = output_name
            continue
        shape = writer.integers(carried(value.type.shape))
        copied = writer.op("Reshape", internal, shape)
        renamed[copied] = output_name
    for node in _with_inner(writer.nodes):
        for field in (node.input, node.output):
            for index, tensor in enumerate(field):
                if tensor in renamed:
                    field[index] = renamed[tensor]


def _with_inner(nodes: Iterable[Any]) -> Iterator[Any]:
    """Nodes and those of the graphs that they hold, which see outer names."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _with_inner(attribute.g.node)


def _value_info(name: str, type_: Type) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, ONNX_DTYPES[type_.dtype], list(carried(type_.shape)))
