"""A traced graph as the file of a plan."""

from dataclasses import replace

from coterie import errors
from coterie.compute.extension.decompose import host_only
from coterie.compute.ir import Graph
from coterie.compute.onnx.checker import check_graph
from coterie.compute.onnx.providers import ProviderClass
from coterie.compute.onnx.writer import Target, to_onnx


def graph_bytes(name: str, graph: Graph, target: Target = "portable") -> bytes:
    """The graph as ONNX, without the lines of the researcher's files: a plan is sent to devices and must not carry
    them.
    """
    bare = Graph(graph.inputs, tuple(replace(node, source="") for node in graph.nodes), graph.outputs)
    return to_onnx(bare, name=name, target=target)


def write_graph(name: str, graph: Graph) -> bytes:
    """The graph as ONNX. Raises errors.ExperimentError (``not_portable``) for one that devices refuse, and
    errors.TraceError (``lowering_missing``), with the researcher's line, for a function that runs on the host alone.
    """
    if (unlowered := host_only(graph)) is not None:
        raise unlowered
    data = graph_bytes(name, graph)
    try:
        check_graph(data)
    except errors.GraphRefused as error:
        raise errors.ExperimentError(
            f"The {name} graph is outside the portable subset: {error.message}",
            hint="Replace that operation, or make the model smaller.",
            code="not_portable",
        ) from error
    return data


def write_variant(name: str, graph: Graph, kind: ProviderClass) -> bytes:
    """The graph as ONNX for a class of providers. Raises errors.ExperimentError (``variant_unwritable``), with the
    researcher's line, for one that they do not run.
    """
    try:
        data = graph_bytes(name, graph, kind)
        check_graph(data, kind=kind)
        return data
    except errors.InputError as error:
        refusal = error
    try:
        to_onnx(graph, name=name, target=kind)
    except errors.InputError as error:
        refusal = error  # the same, with the line
    raise errors.ExperimentError(
        f"The {name} graph has no variant for the class {kind!r}: {refusal.message}",
        hint=f"Leave {kind!r} out of variants: its providers take the portable graph then. Or write that line with "
        "other functions.",
        code="variant_unwritable",
    ) from refusal
