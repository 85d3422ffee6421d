"""The text form of a graph, one line for each thing, and back. Printing what was parsed gives the same text.

input "x" %0: float32[2,3]
%1: float32[] = constant() {"value": {"data": [1.0], "dtype": "float32", "shape": []}}
%2: float32[2,3] = multiply(%0, %1) {} @ "train.py:12"
output "y" %2

A node of control flow may make several values; its graphs are attributes, each a list of such lines.
"""

import base64
import json
import re
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from coterie.compute.extension.registry import active_registry
from coterie.compute.extension.row import NODE, static
from coterie.compute.ir import DTYPES, Graph, NDArray, Node, Type, Value, require_graph
from coterie.compute.verify import verify
from coterie.errors import InputError

_LONGEST_LIST = 16  # elements of a constant that are written as numbers; more are written in base64


def to_text(graph: Graph, *, sources: bool = True) -> str:
    """The graph as text. Values are numbered in the order in which they are made; equal text means equal graphs (and,
    for primitives of a user's own, equal names).

    sources: say which line of the user's code each node comes from.
    """
    require_graph("to_text", graph)
    numbers: dict[Value, int] = {}
    lines: list[str] = []

    def made(value: Value) -> str:
        numbers[value] = len(numbers)
        return f"%{numbers[value]}: {value.type}"

    for name, value in graph.inputs.items():
        lines.append(f"input {json.dumps(name)} {made(value)}")
    for node in graph.nodes:
        operands = ", ".join(f"%{numbers[value]}" for value in node.inputs)
        outputs = ", ".join(made(value) for value in node.outputs)
        encoded = {name: _encode(value, sources) for name, value in static(node.attributes).items()}
        attributes = json.dumps(encoded, sort_keys=True)
        source = f" @ {json.dumps(node.source)}" if node.source and sources else ""
        lines.append(f"{outputs} = {node.label}({operands}) {attributes}{source}")
    for name, value in graph.outputs.items():
        lines.append(f"output {json.dumps(name)} %{numbers[value]}")
    return "\n".join(lines) + "\n"


def _encode(value: Any, sources: bool) -> Any:
    if isinstance(value, Graph):
        return {"graph": to_text(value, sources=sources).splitlines()}
    if not isinstance(value, np.ndarray):
        return value
    array = cast("NDArray", value)
    shape = {"dtype": array.dtype.name, "shape": list(array.shape)}
    # Shortest decimals of a float16 or float32 taken as a double come back exactly; NaN payloads do not, so NaN goes
    # the other way.
    if array.size <= _LONGEST_LIST and bool(np.isfinite(array).all()):
        return {**shape, "data": array.reshape(-1).tolist()}
    little = array.astype(array.dtype.newbyteorder("<"))
    return {**shape, "base64": base64.b64encode(little.tobytes()).decode()}


_NAME = r'"(?:[^"\\]|\\.)*"'
_INPUT = re.compile(rf"input ({_NAME}) %(\d+): (\w+)\[([\d,]*)\]")
_MADE = r"%\d+: \w+\[[-\d,]*\]"
_NODE = re.compile(rf"({_MADE}(?:, {_MADE})*|) = ([\w.]+)\(([%\d, ]*)\) (\{{.*\}})(?: @ ({_NAME}))?")
_VALUE = re.compile(r"%(\d+): (\w+)\[([-\d,]*)\]")
_OUTPUT = re.compile(rf"output ({_NAME}) %(\d+)")


def parse(text: str) -> Graph:
    """The graph of a text. Raises InputError that names the line, or TraceError for a graph that breaks a law.

    Names that the core does not have are looked up in the registry of this context.
    """
    inputs: dict[str, Value] = {}
    nodes: list[Node] = []
    outputs: dict[str, Value] = {}
    values: dict[str, Value] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            if match := _INPUT.fullmatch(line):
                _new_name(inputs, json.loads(match[1]), number)
                inputs[json.loads(match[1])] = _new_value(values, match[2], match[3], match[4])
            elif match := _OUTPUT.fullmatch(line):
                _new_name(outputs, json.loads(match[1]), number)
                outputs[json.loads(match[1])] = values[match[2]]
            elif match := _NODE.fullmatch(line):
                operands = tuple(values[operand.strip()[1:]] for operand in match[3].split(",") if operand.strip())
                attributes = {name: _decode(value) for name, value in json.loads(match[4]).items()}
                made = tuple(_new_value(values, *found) for found in _VALUE.findall(match[1]))
                nodes.append(_node(match[2], operands, made, attributes, json.loads(match[5]) if match[5] else ""))
            else:
                raise InputError(f"Line {number} is not an input, a node or an output: {line[:80]!r}.")
        except KeyError as error:
            raise InputError(f"Line {number} uses the value %{error.args[0]}, which no earlier line makes.") from None
        except (ValueError, TypeError, RecursionError) as error:
            raise InputError(f"Line {number} is malformed: {error}.") from None
    return verify(Graph(inputs, tuple(nodes), outputs))


def _node(
    name: str, operands: tuple[Value, ...], made: tuple[Value, ...], attributes: dict[str, Any], source: str
) -> Node:
    if "primitive" in attributes:
        raise ValueError("an attribute cannot be called primitive")
    primitive = active_registry().find(name)
    if primitive is None:
        return Node(name, operands, made, attributes, source)
    return Node(NODE, operands, made, {"primitive": primitive, **attributes}, source)


def _new_name(names: Mapping[str, Value], name: str, line: int) -> None:
    if name in names:
        raise InputError(f"Line {line} names {name!r} a second time.")


def _new_value(values: dict[str, Value], number: str, dtype: str, shape: str) -> Value:
    if number in values:
        raise ValueError(f"%{number} is made twice")
    values[number] = Value(Type(dtype, tuple(int(n) for n in shape.split(",") if n)))
    return values[number]


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_decode(item) for item in cast("list[Any]", value))
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, Any]", value)
    if "graph" in fields:
        return parse("\n".join(fields["graph"]))
    if fields["dtype"] not in DTYPES:
        raise ValueError(f"{fields['dtype']!r} is not a dtype of coterie")
    dtype = np.dtype(fields["dtype"])
    if "data" in fields:
        array = np.asarray(fields["data"], dtype)
    else:
        array = np.frombuffer(base64.b64decode(fields["base64"], validate=True), dtype.newbyteorder("<")).astype(dtype)
    array = array.reshape(fields["shape"])
    array.flags.writeable = False
    return array
