"""Quantisation after training: a float inference graph as one that computes with integers of 8 bits.

The file says it in ONNX's own words: QuantizeLinear and DequantizeLinear before the operands of the operators that have
integer kernels. Every runtime can run such a file; one that has the kernels joins the three into one (the QDQ form of
ONNX Runtime's documentation on quantisation).
"""

from collections.abc import Iterable, Mapping, Sequence

from onnx import ModelProto

from coterie.compute.quant.calibration import Batch, observe, ranges_of
from coterie.compute.quant.histogram import Histogram, Range
from coterie.compute.quant.normal_form import drop_unread, in_normal_form
from coterie.compute.quant.placement import Site, sites
from coterie.compute.quant.reading import names_in, read_model
from coterie.compute.quant.settings import QuantSettings
from coterie.compute.quant.writer import Writer
from coterie.errors import GraphRefused

_DEFAULT = QuantSettings()


def quantise(model: bytes, batches: Iterable[Batch] = (), settings: QuantSettings = _DEFAULT) -> bytes:
    """The float inference graph ``model`` with int8 weights, and activations of 8 bits as they are on the rows of
    ``batches``.

    batches: arrays by the names of the graph's inputs; some hundred rows like those of later use are enough, and none
    are needed where the settings leave activations in float32.

    Guarantees: the same bytes for the same arguments; inputs, outputs and their names and dtypes stay. Weights take a
    quarter of their bytes (vectors stay in float32, biases in int32). Raises InputError for rows that do not fit,
    GraphRefused for a graph that cannot be read or has nothing to quantise.
    """
    if settings.activations is None:
        return quantise_at(model, {}, settings)
    rows = tuple(batches)
    seen = observe(model, rows)
    if settings.calibration != "minmax":
        seen = observe(model, rows, bounds={name: (each.low, each.high) for name, each in seen.items()})
    return quantise_with(model, seen, settings)


def quantise_with(model: bytes, observations: Mapping[str, Histogram], settings: QuantSettings = _DEFAULT) -> bytes:
    """As :func:`quantise`, of observations that were made before, here or by many: see `quant.observe`."""
    return quantise_at(model, ranges_of(observations, settings), settings)


def quantise_at(model: bytes, ranges: Mapping[str, Range], settings: QuantSettings = _DEFAULT) -> bytes:
    """As :func:`quantise`, with the ranges of the tensors of `quant.observed` given. Those of what convolutions make
    for operators in float32 may be missing; such convolutions then stay in float32 as well.
    """
    proto = in_normal_form(read_model(model))
    return quantised_sites(proto, sites(proto), ranges, settings)


def quantised_sites(
    proto: ModelProto, places: Sequence[Site], ranges: Mapping[str, Range], settings: QuantSettings
) -> bytes:
    """A graph in normal form, of which these operators are quantised. It is changed. Raises as :func:`quantise_at`."""
    if not places:
        raise GraphRefused(
            "The graph has no operator that can be quantised: a Conv, Gemm or MatMul with its weight in the file.",
            hint="Put the weights into the file as initialisers; constants that are computed must be folded.",
        )
    writer = Writer(proto, settings, names_in(proto))
    if settings.activations is not None:
        writer.plan(places, ranges)
    nodes = [added for value in proto.graph.input for added in writer.after(value.name)]
    by_node = {site.node: site for site in places}
    for index, node in enumerate(proto.graph.node):
        if index in by_node:
            nodes += writer.weights_of(node, by_node[index])
        nodes.append(node)
        nodes += [added for name in node.output for added in writer.after(name)]
    for node in nodes:
        writer.rewire(node)
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    drop_unread(proto, [*proto.graph.initializer, *writer.initialisers])
    return proto.SerializeToString(deterministic=True)
