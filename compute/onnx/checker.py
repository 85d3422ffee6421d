"""Whether a serialised graph is inside the portable, bounded subset that a device runs.

A graph from a coordinator is a program. This check is what a server and a device do before the first run, so it trusts
nothing in the bytes: whatever they are, the answer is a summary or GraphRefused, in time and memory bounded by
``GraphLimits``.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, TypeVar, cast

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, ValueInfoProto

from coterie.compute.onnx.arguments import Tensors, mistake, work_space
from coterie.compute.onnx.bounds import DTYPES as DTYPES
from coterie.compute.onnx.bounds import LIMITS, check_initialiser, described, elements_of, nbytes, quoted
from coterie.compute.onnx.bounds import GraphLimits as GraphLimits
from coterie.compute.onnx.nested import (
    DEEPEST,
    all_nodes,
    as_model,
    captured,
    graphs_of,
    ill_formed,
    made,
    misfit,
    steps,
)
from coterie.compute.onnx.operators import OPERATORS, OperatorRule, operators_of
from coterie.compute.onnx.providers import ProviderClass
from coterie.compute.runtime.tensors import TensorInfo
from coterie.errors import GraphRefused

Result = TypeVar("Result")

OPSETS = range(13, 19)
IR_VERSIONS = range(7, 11)
DOMAINS = ("", "ai.onnx")

_READS = 8  # operands and numbers in attributes, for each tensor that is allowed

# Anything with a graph, a tensor or a type inside is a way to hide a program or data.
ATTRIBUTE_TYPES = frozenset(
    {AttributeProto.FLOAT, AttributeProto.INT, AttributeProto.STRING, AttributeProto.FLOATS, AttributeProto.INTS}
)


@dataclass(frozen=True, kw_only=True)
class GraphSummary:
    """What a checked graph is: its inputs and outputs in order, how often each operator occurs, versions, and the bytes
    of its initialisers.
    """

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    operators: Mapping[str, int]
    opset: int
    ir_version: int
    parameter_bytes: int


def check_graph(data: bytes, *, limits: GraphLimits = LIMITS, kind: ProviderClass | None = None) -> GraphSummary:
    """The summary of a serialised ONNX graph inside the portable subset, or inside that of a class of providers.

    kind: the class, whose graphs may hold choices, and loops of a known number of steps, where its providers run them.

    Guarantees of an accepted graph: one opset of the standard domain (13 to 18) and IR version 7 to 10; only operators
    of ``operators_of(kind)``, within their rules; no functions, sparse or external data, training information or custom
    domain, and in the portable subset no graphs inside; every tensor has a known dtype and a static shape within
    ``limits``; names are unique, nodes are in order of use, and every name that is read is defined.

    Raises GraphRefused, and nothing else, naming the node, tensor or operator and the limit.
    """
    model = _parse(data, limits)
    opset = _check_header(model)
    graph = model.graph
    inputs, outputs, work = _check_model(model, operators_of(kind), limits)
    if work.elements > limits.total_elements:
        raise GraphRefused(
            f"The graph's tensors hold {work.elements} elements together; at most {limits.total_elements} are allowed."
        )
    if work.runs > limits.runs:
        raise GraphRefused(f"A run of the graph runs {work.runs} nodes; at most {limits.runs} are allowed.")
    return GraphSummary(
        inputs=inputs,
        outputs=outputs,
        operators=dict(sorted(Counter(node.op_type for node, _ in all_nodes(graph)).items())),
        opset=opset,
        ir_version=model.ir_version,
        parameter_bytes=sum(nbytes(tensor) for tensor in graph.initializer),
    )


@dataclass(frozen=True, slots=True)
class _Work:
    """elements: of all tensors of a run. runs: of nodes in it."""

    elements: int
    runs: int


def _check_model(
    model: ModelProto, rules: Mapping[str, OperatorRule], limits: GraphLimits
) -> tuple[tuple[TensorInfo, ...], tuple[TensorInfo, ...], _Work]:
    """Inputs, outputs and work of a graph, or of one inside of another as a model of its own."""
    graph = model.graph
    _check_sizes(graph, limits)
    for tensor in graph.initializer:
        check_initialiser(tensor, limits)
    constants = {tensor.name: prod(tensor.dims) for tensor in graph.initializer}
    _check_nodes(graph, constants, rules, limits)
    _check_names(graph, limits)
    inputs = tuple(described(value, limits, what="input") for value in graph.input)
    outputs = tuple(described(value, limits, what="output") for value in graph.output)
    return inputs, outputs, _check_shapes(model, rules, limits)


def _guarded(what: str, call: Callable[[], Result]) -> Result:
    """The result of a call into onnx, whose parsers and checkers raise many classes on hostile bytes; all of them mean
    the same here.
    """
    try:
        return call()
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise GraphRefused(f"{what}: {reason[:500]}") from error


def _parse(data: bytes, limits: GraphLimits) -> ModelProto:
    if len(data) > limits.graph_bytes:
        raise GraphRefused(f"The graph file has {len(data)} bytes; at most {limits.graph_bytes} are allowed.")
    return _guarded("The bytes are not an ONNX graph", lambda: ModelProto.FromString(data))


def _check_header(model: ModelProto) -> int:
    if model.ir_version not in IR_VERSIONS:
        raise GraphRefused(
            f"The graph has IR version {model.ir_version}; {IR_VERSIONS[0]} to {IR_VERSIONS[-1]} are allowed."
        )
    if model.functions:
        raise GraphRefused(f"The graph defines a function ({quoted(model.functions[0].name)}); inline it.")
    if model.training_info:
        raise GraphRefused("The graph carries training information; a step must be an ordinary graph.")
    imports = [(entry.domain, entry.version) for entry in model.opset_import]
    foreign = [domain for domain, _ in imports if domain not in DOMAINS]
    if foreign:
        raise GraphRefused(
            f"The graph imports the custom operator domain {quoted(foreign[0])}; only standard operators are allowed."
        )
    if len(imports) != 1 or imports[0][1] not in OPSETS:
        versions = ", ".join(str(version) for _, version in imports) or "none"
        raise GraphRefused(
            f"The graph imports opset {versions}; exactly one of {OPSETS[0]} to {OPSETS[-1]} is allowed."
        )
    return imports[0][1]


def _check_sizes(graph: GraphProto, limits: GraphLimits) -> None:
    if any(depth == DEEPEST and graphs_of(node) for node, depth in all_nodes(graph)):
        raise GraphRefused(f"Graphs stand inside of one another more than {DEEPEST} deep.")
    nodes = [node for node, _ in all_nodes(graph)]
    if len(nodes) > limits.nodes:
        raise GraphRefused(f"The graph has {len(nodes)} nodes; at most {limits.nodes} are allowed.")
    tensors = len(graph.input) + len(graph.initializer) + sum(len(node.output) for node in nodes)
    if tensors > limits.tensors or max(len(graph.output), len(graph.value_info)) > limits.tensors:
        raise GraphRefused(f"The graph has more than {limits.tensors} tensors.")
    reads = sum(len(node.input) + sum(len(a.ints) + len(a.floats) + 1 for a in node.attribute) for node in nodes)
    if reads > _READS * limits.tensors:
        raise GraphRefused(
            f"The nodes have {reads} operands and numbers in attributes; at most {_READS * limits.tensors} are allowed."
        )
    if graph.sparse_initializer:
        raise GraphRefused("The graph holds sparse data; only dense tensors are allowed.")
    if graph.quantization_annotation:
        raise GraphRefused("The graph holds quantisation annotations, which are not allowed.")


def _check_nodes(
    graph: GraphProto,
    constants: Mapping[str, int],
    rules: Mapping[str, OperatorRule],
    limits: GraphLimits,
    at: str = "",
) -> None:
    """Every node, and those of graphs inside, which have no constants of their own."""
    for index, node in enumerate(graph.node):
        where = f"{at}Node {index} ({quoted(node.name or node.op_type)})"
        _check_node(node, where, constants, rules, limits)
        for name, inner in graphs_of(node).items():
            _check_nodes(inner, constants, rules, limits, f"{where}, {name}: ")


def _check_node(
    node: NodeProto, where: str, constants: Mapping[str, int], rules: Mapping[str, OperatorRule], limits: GraphLimits
) -> None:
    if node.domain not in DOMAINS or node.overload:
        raise GraphRefused(
            f"{where} uses the operator {quoted(node.op_type)} of the custom domain "
            f"{quoted(node.domain or node.overload)}.",
            operator=node.op_type,
        )
    rule = rules.get(node.op_type)
    if rule is None:
        raise GraphRefused(
            f"{where} uses the operator {quoted(node.op_type)}, which is not in the portable subset"
            f"{'' if rules is OPERATORS else ' of its class of providers'}.",
            operator=node.op_type,
        )
    # MaxPool's second output, for one, is accepted at load and fails at run on some providers.
    if rule.outputs is not None and len(node.output) != rule.outputs:
        wanted = "one" if rule.outputs == 1 else str(rule.outputs)
        raise GraphRefused(f"{where} has {len(node.output)} outputs; it must have {wanted}.", operator=node.op_type)
    for attribute in node.attribute:
        if attribute.name in rule.graphs and not attribute.ref_attr_name and not attribute.graphs:
            continue
        if (
            attribute.type not in ATTRIBUTE_TYPES
            or attribute.ref_attr_name
            or attribute.HasField("g")
            or attribute.graphs
        ):
            raise GraphRefused(
                f"{where} has the attribute {quoted(attribute.name)} of a kind that is not allowed (a graph, a tensor "
                "or a reference)."
            )
        allowed = (rule.attributes or {}).get(attribute.name)
        value = attribute.s.decode("utf-8", "replace") if attribute.type == AttributeProto.STRING else attribute.i
        if allowed is not None and value not in allowed:
            raise GraphRefused(
                f"{where}: {node.op_type} with {attribute.name}={value!r} is not allowed.", operator=node.op_type
            )
    if sorted(graphs_of(node)) != sorted(rule.graphs):
        raise GraphRefused(
            f"{where}: {node.op_type} must hold the graphs {', '.join(rule.graphs) or 'none'}.", operator=node.op_type
        )
    if rule.graphs and (wrong := ill_formed(node)):
        raise GraphRefused(f"{where}: {node.op_type}: {wrong}.", operator=node.op_type)
    for position in rule.constants:
        name = node.input[position] if position < len(node.input) else ""
        if name and name not in constants:
            raise GraphRefused(
                f"{where}: input {position} of {node.op_type}, {quoted(name)}, must be an initialiser, so that shapes "
                "are static.",
                operator=node.op_type,
            )
        # Bounds and widths are two for each axis at most. More cost time in every node that reads them.
        if name and constants[name] > 2 * limits.rank:
            raise GraphRefused(
                f"{where}: input {position} of {node.op_type}, {quoted(name)}, has {constants[name]} elements; at most "
                f"{2 * limits.rank} are allowed.",
                operator=node.op_type,
            )


def _check_names(graph: GraphProto, limits: GraphLimits) -> None:
    defined: set[str] = set()

    def define(names: Iterable[str], what: str) -> None:
        for name in names:
            if not name or len(name) > limits.name_length:
                raise GraphRefused(
                    f"{what} has a name of {len(name)} characters; 1 to {limits.name_length} are allowed."
                )
            if name in defined:
                raise GraphRefused(f"The name {quoted(name)} is defined twice; {what.lower()} defines it again.")
            defined.add(name)

    define((value.name for value in graph.input), "An input")
    define((tensor.name for tensor in graph.initializer), "An initialiser")
    # A graph inside sees names from outside; its own are its own.
    inside: set[str] = set()
    for inner in (inner for node in graph.node for inner in graphs_of(node).values()):
        for name in made(inner):
            if not name or len(name) > limits.name_length or name in inside:
                raise GraphRefused(f"A graph inside has the name {quoted(name)}: empty, too long, or there already.")
            inside.add(name)
    for index, node in enumerate(graph.node):
        for name in (*node.input, *(name for inner in graphs_of(node).values() for name in captured(inner))):
            if name and name not in defined:
                raise GraphRefused(
                    f"Node {index} ({quoted(node.op_type)}) reads {quoted(name)}, which nothing before it defines."
                )
        define(node.output, f"Node {index} ({quoted(node.op_type)})")
    if both := sorted(inside & defined):
        raise GraphRefused(f"The name {quoted(both[0])} is defined twice, once in a graph inside.")
    if not graph.output:
        raise GraphRefused("The graph has no output.")
    outputs = [value.name for value in graph.output]
    if len(set(outputs)) != len(outputs):
        raise GraphRefused("The graph lists an output twice.")
    for name in outputs:
        if name not in defined:
            raise GraphRefused(f"The graph's output {quoted(name)} is defined by nothing.")


def _check_shapes(model: ModelProto, rules: Mapping[str, OperatorRule], limits: GraphLimits) -> _Work:
    """Infer every tensor's shape and hold it against the limits. Notes of the file's author on intermediate shapes are
    not believed: they are dropped first.
    """
    bare = ModelProto()
    bare.CopyFrom(model)
    _drop_notes(bare.graph)
    _guarded("The graph is not valid ONNX", lambda: cast(Any, onnx.checker).check_model(bare))
    inferred = _guarded(
        "The graph's shapes do not fit together",
        # Without data: shapes follow from initialisers alone, and a few nodes can make data for many gigabytes.
        lambda: onnx.shape_inference.infer_shapes(bare, check_type=True, strict_mode=True, data_prop=False),
    )
    known = {
        value.name: value
        for group in (inferred.graph.input, inferred.graph.output, inferred.graph.value_info)
        for value in group
    }
    total = sum(prod(tensor.dims) for tensor in inferred.graph.initializer)
    total += sum(elements_of(value, limits, what="input") for value in inferred.graph.input)
    runs = len(inferred.graph.node)
    tensors = Tensors(inferred.graph, known)
    for index, node in enumerate(inferred.graph.node):
        for name in node.output:
            value = known.get(name)
            if value is None:
                raise GraphRefused(
                    f"Node {index} ({quoted(node.op_type)}): the shape of {quoted(name)} does not follow from the "
                    "graph; it must be static."
                )
            total += elements_of(value, limits, what=f"output of node {index} ({quoted(node.op_type)})")
        where = f"Node {index} ({quoted(node.name or node.op_type)})"
        total += _check_arguments(node, tensors, where, limits)
        if graphs_of(node):
            inner = _check_inside(bare, node, tensors, known, where, rules, limits)
            total, runs = total + inner.elements, runs + inner.runs
    return _Work(total, runs)


def _drop_notes(graph: GraphProto) -> None:
    del graph.value_info[:]
    for node in graph.node:
        for inner in graphs_of(node).values():
            _drop_notes(inner)


def _check_inside(
    model: ModelProto,
    node: NodeProto,
    tensors: Tensors,
    known: Mapping[str, ValueInfoProto],
    where: str,
    rules: Mapping[str, OperatorRule],
    limits: GraphLimits,
) -> _Work:
    """The work of the graphs inside of a node, at all steps together."""
    operands = [(tensors.element(name), shape) for name, shape in zip(node.input, tensors.shapes(node), strict=True)]
    if wrong := misfit(node, operands):
        raise GraphRefused(f"{where}: {node.op_type}: {wrong}.", operator=node.op_type)
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    elements = runs = 0
    for name, inner in graphs_of(node).items():
        try:
            _, _, work = _check_model(as_model(inner, model, known, constants), rules, limits)
        except GraphRefused as error:
            raise GraphRefused(f"{where}, {name}: {error.message}", **error.details) from error
        elements, runs = elements + work.elements, runs + work.runs
    often = steps(node, operands)
    return _Work(often * elements, often * runs)


def _check_arguments(node: NodeProto, tensors: Tensors, where: str, limits: GraphLimits) -> int:
    """The elements that a node needs beside operands and results."""
    application = tensors.application(node)
    if wrong := _guarded(where, lambda: mistake(application)):
        raise GraphRefused(f"{where}: {node.op_type}: {wrong}.", operator=node.op_type)
    needed = work_space(application)
    if needed > limits.tensor_elements:
        raise GraphRefused(
            f"{where}: {node.op_type} needs {needed} elements of work space; at most {limits.tensor_elements} are "
            "allowed.",
            operator=node.op_type,
        )
    return needed
