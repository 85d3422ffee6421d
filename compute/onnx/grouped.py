"""Several steps of a training as one file: a Scan over batches whose body is the step.

A device holds the file of one step. Where a provider runs loops, a call of the runtime may take many steps, which saves
what a call costs; the file does not grow with their number.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, cast

import onnx
from onnx import helper

from coterie.errors import GraphRefused, InputError

_BODY = "step/"


def grouped(data: bytes, steps: int, *, carry: Mapping[str, str], constants: Collection[str] = ()) -> bytes:
    """The file of ``steps`` steps of a serialised step.

    carry: for each carried output the input that it becomes. constants: inputs that stay the same. Every other input
    is a feed, and becomes a stack [steps, ...]. Outputs that are not carried are left out.

    Guarantees: the same nodes in the same order for every step, so the numbers of single steps, and on the CPU
    provider their bits where it fuses the same nodes. Raises InputError for less than one step and for names that the
    graph lacks; GraphRefused for a graph that holds loops or choices already, or that carries nothing.
    """
    if steps < 1:
        raise InputError(f"grouped: at least one step makes a group, not {steps}.")
    model = cast(Any, onnx).load_from_string(data)
    graph = model.graph
    inputs, outputs = ({str(value.name): value for value in values} for values in (graph.input, graph.output))
    if unknown := sorted({*carry.values(), *constants} - inputs.keys()) + sorted(carry.keys() - outputs.keys()):
        raise InputError(f"grouped: the graph has no {', '.join(map(repr, unknown))}.")
    if not carry:
        raise GraphRefused("A graph that carries nothing has no steps to group.")
    if any(attribute.HasField("g") or attribute.graphs for node in graph.node for attribute in node.attribute):
        raise GraphRefused("The step holds loops or choices, so its steps are not grouped.")
    carried = [name for name in inputs if name in carry.values()]
    fed = [name for name in inputs if name not in carry.values() and name not in constants]
    made = {into: source for source, into in carry.items()}
    body = helper.make_graph(
        [_inside(node, constants) for node in graph.node],
        "step",
        [_typed(inputs[name], _BODY + name) for name in (*carried, *fed)],
        [_typed(outputs[made[name]], _BODY + made[name]) for name in carried],
        [_named(tensor, _BODY + str(tensor.name)) for tensor in graph.initializer],
    )
    scan = helper.make_node(
        "Scan", [*carried, *fed], [made[name] for name in carried], body=body, num_scan_inputs=len(fed)
    )
    stacked = [_stacked(inputs[name], steps) if name in fed else inputs[name] for name in inputs]
    whole = helper.make_graph([scan], str(graph.name), stacked, [outputs[made[name]] for name in carried])
    written = helper.make_model(whole, opset_imports=list(model.opset_import), ir_version=model.ir_version)
    return written.SerializeToString(deterministic=True)


def _inside(node: Any, constants: Collection[str]) -> Any:
    """The node in the body, where only the names of constants mean what they mean outside."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    for names in (copy.input, copy.output):
        names[:] = [name if not name or name in constants else _BODY + name for name in cast("Iterable[str]", names)]
    return copy


def _named(tensor: Any, name: str) -> Any:
    copy = onnx.TensorProto()
    copy.CopyFrom(tensor)
    copy.name = name
    return copy


def _typed(value: Any, name: str) -> Any:
    copy = onnx.ValueInfoProto()
    copy.CopyFrom(value)
    copy.name = name
    return copy


def _stacked(value: Any, steps: int) -> Any:
    tensor = value.type.tensor_type
    shape = [steps, *(axis.dim_value for axis in tensor.shape.dim)]
    return helper.make_tensor_value_info(value.name, tensor.elem_type, shape)
