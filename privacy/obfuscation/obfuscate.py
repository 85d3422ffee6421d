"""Making an inference graph hard to read, and wrong without a password."""

import secrets
from numbers import Real
from typing import Any, cast

import onnx
from onnx import ModelProto, TensorProto, helper

from coterie.errors import ArgumentValueError, GraphRefused, InputError
from coterie.privacy.obfuscation.branches import branch, float_values
from coterie.privacy.obfuscation.key import FORMAT, KEY, LENGTH, SALT, SALT_BYTES, VERSION, Choices, Pad, secret_of
from coterie.privacy.obfuscation.names import rename_operators, rename_values
from coterie.privacy.obfuscation.opening import Prologue, walk
from coterie.privacy.obfuscation.weights import scramble

# Functions in a model, and Where and Mod for all that is hidden here.
_IR, _OPSET = 8, 13


def obfuscate(model: bytes, password: str, *, ratio: float = 0.5) -> bytes:
    """The same function as another graph, with one more input: ``key``, which ``password_key`` makes of the password.

    model: a self-contained ONNX inference graph of opset 13 or later, its weights in initialisers.
    ratio: the share of the weights that are scrambled, and of the nodes that get a false branch; in (0, 1], at least
        one each.

    What is hidden: the order and the signs of the rows of weights; which of two branches counts; the names of values,
    nodes and operators, which become numbers; documentation and the producer's name. Inputs and outputs stay.

    Guarantees: stock ONNX Runtime runs the file. With the right key every weight is what it was (the sign of zeros
    aside), so the output is that of the original, to rounding where the runtime takes other kernels for weights that
    are no constants. With another key it is wrong, and no error says so. Two calls give different files.

    What it does not do: it is no encryption. Who has run the model with the key has had the weights in memory, and a
    weight of few rows has few orders to try. Weights are no constants any more, so it runs slower, and accelerators
    that need constant weights refuse it.

    Raises GraphRefused for bytes that are no such graph, InputError for a graph without a weight that can be hidden, or
    with an input of that name, ArgumentValueError for a ratio outside (0, 1].
    """
    if not isinstance(cast(object, ratio), Real) or not 0 < ratio <= 1:
        raise ArgumentValueError(f"obfuscate: ratio must be above 0 and at most 1, got {ratio!r}.")
    graph = _read(model)
    salt = secrets.token_bytes(SALT_BYTES)
    secret = secret_of(password, salt)
    pad, choices, opening = Pad(secret), Choices(secret), Prologue(graph.graph)
    floats = float_values(graph)
    scrambled = scramble(graph.graph, ratio, pad, choices, opening)
    if not scrambled:
        raise InputError(
            "obfuscate: the graph has no weight that can be hidden.",
            hint="Weights are initialisers of Conv, Gemm, MatMul or Gather with two axes or more; embed them first.",
        )
    branch(graph.graph, floats, ratio, scrambled, pad, choices, opening)
    nodes = [*opening.nodes, *graph.graph.node]
    del graph.graph.node[:]
    graph.graph.node.extend(nodes)
    graph.graph.initializer.extend(opening.constants)
    graph.graph.input.append(helper.make_tensor_value_info(KEY, TensorProto.INT64, [pad.start]))
    rename_values(graph.graph, choices)
    rename_operators(graph, choices)
    _sign(graph, {FORMAT: VERSION, SALT: salt.hex(), LENGTH: str(pad.start)})
    return graph.SerializeToString()


def _read(model: bytes) -> ModelProto:
    try:
        graph = ModelProto.FromString(model)
        cast(Any, onnx).checker.check_model(graph)
    except Exception as error:  # protobuf and the checker raise several classes
        raise GraphRefused(f"obfuscate: the bytes are not a valid ONNX graph: {error}") from error
    version = max((one.version for one in graph.opset_import if one.domain in ("", "ai.onnx")), default=0)
    if version < _OPSET:
        raise GraphRefused(f"obfuscate: the graph is of opset {version}; at least {_OPSET} is needed.")
    if any(tensor.data_location == TensorProto.EXTERNAL for tensor in graph.graph.initializer):
        raise GraphRefused("obfuscate: the weights are in files outside the graph.", hint="Save the model as one file.")
    if graph.functions:
        raise GraphRefused("obfuscate: the graph has local functions.", hint="Inline them: onnx.inliner.")
    taken = {name for node in walk(graph.graph) for name in (*node.input, *node.output)}
    if KEY in taken | {value.name for value in graph.graph.input}:
        raise InputError(f"obfuscate: the graph already has a value named {KEY!r}.", hint="Rename it.")
    return graph


def _sign(graph: ModelProto, facts: dict[str, str]) -> None:
    graph.ir_version = max(graph.ir_version, _IR)
    graph.producer_name = graph.producer_version = graph.doc_string = graph.domain = ""
    graph.model_version = 0
    del graph.metadata_props[:]
    helper.set_model_props(graph, facts)
