"""From a model of quantisation-aware training to the int8 file that computes what training computed."""

from collections.abc import Mapping, Sequence

from onnx import ModelProto

from coterie.compute.array import Array
from coterie.compute.ir import NDArray
from coterie.compute.nn.mode import EVAL
from coterie.compute.nn.module import Module
from coterie.compute.onnx.weights import embed_weights
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.passes import optimise
from coterie.compute.quant.aware import float_model, layers_of, learned_ranges
from coterie.compute.quant.histogram import Range
from coterie.compute.quant.normal_form import in_normal_form
from coterie.compute.quant.placement import Site, sites
from coterie.compute.quant.ptq import quantised_sites
from coterie.compute.quant.reading import read_model
from coterie.compute.trace import GraphInputs, TensorSpec, trace_named
from coterie.errors import GraphRefused, InputError


def deploy(model: Module, params: Mapping[str, NDArray], input: TensorSpec) -> bytes:
    """The inference graph of a model that ``qat`` made, in levels: inputs of the ranges that training learned, weights
    by their own extremes, as in training.

    params: all parameters and buffers, such as ``Trainer.params`` or a version of an experiment. input: shape and dtype
    of what the graph takes, with its rows, as in TensorSpec((1, 784)); it is called ``input``, the result ``output``.

    Guarantees: it computes what the model computes in its evaluation mode, up to a level where sums of float32 and of
    integers round differently; where the settings quantise weights alone, also those of layers that ``qat`` left in
    float32. Raises InputError for a model without quantised layers, or one that was never trained;
    GraphRefused where the graph of the model has lost a layer's weight.
    """
    layers = layers_of(model)
    if not layers:
        raise InputError(
            f"deploy: {type(model).__name__} has no layer of quantisation-aware training.",
            hint="Give what quant.qat(model) returned, or quantise the exported file: quant.quantise(model, batches).",
        )
    settings = layers[0].settings
    ranges = {} if settings.activations is None else learned_ranges(model, params)
    plain = float_model(model)
    weights = {name: params[name] for name in plain.specs()}

    def infer(inputs: GraphInputs) -> dict[str, Array]:
        return {"output": plain({name: inputs[name] for name in weights}, inputs["input"], EVAL)}

    specs = {name: TensorSpec(value.shape, value.dtype.name) for name, value in weights.items()}
    graph = optimise(trace_named(infer, {**specs, "input": input}))
    data = to_onnx(graph, name="infer")
    kept = {name: value for name, value in weights.items() if name in graph.inputs}
    file = embed_weights(data, {name: value.reshape(value.shape or (1,)) for name, value in kept.items()})
    proto = in_normal_form(read_model(file))
    places = sites(proto)
    if settings.activations is None:
        return quantised_sites(proto, places, {}, settings)
    places = [site for site in places if _weight(proto, site) in ranges]
    if lost := sorted(ranges.keys() - {_weight(proto, site) for site in places}):
        raise GraphRefused(
            f"No operator of the graph reads the weight {lost[0]!r} as it is, so it cannot be kept as levels.",
            hint="Use the layer once, and nothing but a mask between its weight and its product.",
        )
    return quantised_sites(proto, places, _at_inputs(proto, places, ranges), settings)


def _at_inputs(proto: ModelProto, places: Sequence[Site], ranges: Mapping[str, Range]) -> dict[str, Range]:
    """Ranges by the tensors that operators read, given those by the operators' weights."""
    found: dict[str, Range] = {}
    for site in places:
        node = proto.graph.node[site.node]
        low, high = ranges[_weight(proto, site)]
        tensor = node.input[site.activations[0]]
        # Layers that read one tensor have seen the same numbers.
        before = found.get(tensor, (low, high))
        found[tensor] = (min(before[0], low), max(before[1], high))
    return found


def _weight(proto: ModelProto, site: Site) -> str:
    """The name of the weight that an operator reads; empty where it reads none."""
    return "" if site.weight is None else str(proto.graph.node[site.node].input[site.weight])
