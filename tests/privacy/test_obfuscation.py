"""Obfuscated graphs: the same with the password, wrong without it, and no longer the graph that they were."""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from hashlib import sha256
from typing import Any

import numpy as np
import onnx
import onnx.inliner
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

from coterie.compute import nn, optim
from coterie.compute.nn import zoo
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.onnx.weights import embed_weights
from coterie.compute.runtime.executable import Executable
from coterie.compute.training import Trainer
from coterie.compute.training.cost import inference_file
from coterie.errors import ArgumentValueError, CoterieError, GraphRefused, InputError
from coterie.privacy.obfuscation import KEY, obfuscate, password_key
from coterie.privacy.obfuscation.key import Choices, key_numbers, secret_of

Feeds = Mapping[str, NDArray[Any]]


def outputs(model: bytes, feeds: Feeds, password: str | None = None) -> NDArray[Any]:
    keyed = feeds if password is None else {**feeds, KEY: password_key(model, password)}
    (value,) = Executable(model).run(keyed).values()
    return value


@pytest.fixture(autouse=True)
def cheap_guesses(monkeypatch: pytest.MonkeyPatch) -> None:
    """What makes guessing dear would make these tests dear too; the known answers are those of the full cost."""
    monkeypatch.setattr("coterie.privacy.obfuscation.key._COST", {"n": 16, "r": 1, "p": 1})


@cache
def lenet() -> tuple[bytes, dict[str, NDArray[Any]]]:
    return inference_file(zoo.lenet(), zoo.Input((1, 28, 28)), batch=4)


TABLE: zoo.Inputs = {"categories": zoo.Input((2,), (3, 9)), "numbers": zoo.Input((2,))}
MODELS: dict[str, tuple[nn.Module, zoo.Inputs, float]] = {
    "all of lenet": (zoo.lenet(), zoo.Input((1, 28, 28)), 1.0),
    "the least of an mlp": (zoo.mlp((6, 16, 12, 5)), zoo.Input((6,)), 1e-3),
    "half of a transformer": (zoo.char_transformer(11, 8, 2, 1, 6), zoo.Input((6,), 11), 0.5),
    "wide and deep": (zoo.WideAndDeep((3, 9), 2, 3, hidden=(16,)), TABLE, 0.9),
}


def scattered(model: bytes) -> bytes:
    """The model with every weight moved: some begin as zeros, of which no order is another."""
    proto, rng = ModelProto.FromString(model), np.random.default_rng(0)
    for tensor in proto.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            value = numpy_helper.to_array(tensor)
            tensor.CopyFrom(
                numpy_helper.from_array((value + 0.05 * rng.normal(size=value.shape)).astype(np.float32), tensor.name)
            )
    return proto.SerializeToString()


@pytest.mark.capability("G13")
@pytest.mark.parametrize(("net", "inputs", "ratio"), MODELS.values(), ids=MODELS)
def test_the_password_brings_the_outputs_back_and_another_one_does_not(
    net: nn.Module, inputs: zoo.Inputs, ratio: float
) -> None:
    model, feeds = inference_file(net, inputs, batch=4)
    model = scattered(model)
    hidden = obfuscate(model, "correct horse", ratio=ratio)
    true = outputs(model, feeds)
    np.testing.assert_allclose(outputs(hidden, feeds, "correct horse"), true, rtol=1e-5, atol=1e-6)
    scale = np.abs(true - true.mean()).mean()
    wrong = [outputs(hidden, feeds, word) for word in ("correct horsf", "x")]
    # Seldom a root of a negative number makes NaN of it, which is wrong as well.
    for one in wrong:
        assert not np.abs(one - true).mean() <= 0.05 * scale
    if ratio == 1.0:
        assert not np.abs(wrong[0] - wrong[1]).mean() <= 0.05 * scale


@pytest.mark.capability("G13")
def test_a_trained_model_is_no_better_than_chance_without_its_password() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, 400).astype(np.int32)
    x = (rng.normal(size=(10, 20))[y] + 0.5 * rng.normal(size=(400, 20))).astype(np.float32)
    trainer = Trainer(zoo.mlp((20, 32, 32, 10)), softmax_cross_entropy, optim.adam(0.01))
    trainer.fit({"x": x, "y": y}, epochs=4)
    model, _ = inference_file(zoo.mlp((20, 32, 32, 10)), zoo.Input((20,)), batch=400)
    proto = ModelProto.FromString(model)
    for tensor in proto.graph.initializer:
        learned = trainer.params[tensor.name.removeprefix("params/")]
        tensor.CopyFrom(numpy_helper.from_array(learned, tensor.name))
    model = proto.SerializeToString()
    hidden = obfuscate(model, "secret", ratio=1.0)

    def accuracy(password: str) -> float:
        return float((outputs(hidden, {"x": x}, password).argmax(axis=1) == y).mean())

    assert accuracy("secret") == float((outputs(model, {"x": x}).argmax(axis=1) == y).mean()) > 0.95
    assert np.mean([accuracy(f"guess {number}") for number in range(5)]) < 0.3


def inlined_functions(model: bytes) -> bytes:
    return onnx.inliner.inline_local_functions(ModelProto.FromString(model)).SerializeToString()


def colours_of(model: bytes, rounds: int = 4) -> dict[str, str]:
    """The colours of a graph's values after a few rounds of Weisfeiler and Lehman's refinement, by operators alone:
    isomorphic graphs have equal ones.
    """
    graph = ModelProto.FromString(model).graph
    colours = dict.fromkeys([tensor.name for tensor in graph.initializer], "weight")
    colours |= dict.fromkeys([value.name for value in graph.input], "input")
    for _ in range(rounds):
        for node in graph.node:
            seen = [node.op_type, *(colours.get(name, "?") for name in node.input)]
            colours |= {
                name: sha256("|".join([*seen, str(place)]).encode()).hexdigest()
                for place, name in enumerate(node.output)
            }
    return colours


def structure(model: bytes) -> Counter[str]:
    colours = colours_of(model)
    return Counter(colours[name] for node in ModelProto.FromString(model).graph.node for name in node.output)


@pytest.mark.capability("G13")
def test_the_branches_of_a_hidden_weight_cannot_be_told_apart_without_the_key() -> None:
    """Both are the same operators on values made by the same operators from the same initialiser."""
    model, feeds = inference_file(zoo.mlp((6, 8, 3)), zoo.Input((6,)), batch=2)
    hidden = obfuscate(model, "p", ratio=1.0)
    plain = inlined_functions(hidden)
    graph, colours = ModelProto.FromString(plain).graph, colours_of(plain)
    made = {name: node for node in graph.node for name in node.output}
    pairs = [[made[name] for name in node.input[1:]] for node in graph.node if node.op_type == "Where"]
    products = [pair for pair in pairs if {node.op_type for node in pair} <= {"Gemm", "MatMul"}]
    assert len(products) == 2
    for one, other in products:
        assert one.op_type == other.op_type and list(one.input) != list(other.input)
        assert [colours[name] for name in one.input] == [colours[name] for name in other.input]
    np.testing.assert_allclose(outputs(hidden, feeds, "p"), outputs(model, feeds), rtol=1e-5, atol=1e-6)


@pytest.mark.capability("G13")
def test_the_graph_is_not_the_one_that_it_was() -> None:
    model, _ = lenet()
    # As it is, and with the functions' bodies put back.
    hidden = obfuscate(model, "p", ratio=1.0)
    plain = inlined_functions(hidden)
    before, seen, inlined = (ModelProto.FromString(one).graph for one in (model, hidden, plain))
    assert structure(model) == structure(model) != structure(hidden) and structure(plain) != structure(model)
    operators = Counter(node.op_type for node in before.node)
    assert not set(operators) & {node.op_type for node in seen.node}
    added = Counter(node.op_type for node in inlined.node)
    for kind, count in operators.items():
        assert added[kind] >= count
    # Every node that gives floats has a false branch beside it, and those with weights look like the true one.
    assert added["Where"] > 0.9 * len(before.node) and added["Conv"] == 2 * operators["Conv"]
    names = {name for node in seen.node for name in (*node.input, *node.output)} | {t.name for t in seen.initializer}
    assert not names & {tensor.name for tensor in before.initializer}
    assert [value.name for value in seen.input] == [*(value.name for value in before.input), KEY]
    assert [value.name for value in seen.output] == [value.name for value in before.output]


@pytest.mark.capability("G13")
def test_no_scrambled_weight_is_found_in_the_file() -> None:
    model, _ = lenet()
    weights = [numpy_helper.to_array(tensor) for tensor in ModelProto.FromString(model).graph.initializer]
    found = {
        numpy_helper.to_array(tensor).tobytes()
        for tensor in ModelProto.FromString(obfuscate(model, "p", ratio=1.0)).graph.initializer
    }
    large = [weight for weight in weights if weight.ndim > 1 and weight.dtype == np.float32]
    assert len(large) == 5 and not {weight.tobytes() for weight in large} & found


def test_weights_come_back_bit_for_bit() -> None:
    """A Gather of all rows of a table: what comes out is the weight itself."""
    table = np.random.default_rng(1).normal(size=(50, 3)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "ids"], ["y"])], "g",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, [50])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [50, 3])],
        [numpy_helper.from_array(table, "table")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    hidden = obfuscate(model, "p")
    (tensor,) = [t for t in ModelProto.FromString(hidden).graph.initializer if t.data_type == TensorProto.FLOAT]
    assert not np.array_equal(numpy_helper.to_array(tensor), table)
    ids = np.arange(50)
    assert outputs(hidden, {"ids": ids}, "p").tobytes() == table.tobytes()
    assert outputs(hidden, {"ids": ids}, "q").tobytes() != table.tobytes()


def test_a_model_with_a_choice_inside_keeps_its_meaning() -> None:
    """Bodies of control flow are left as they are, and still find the values outside under their new names."""

    def body(name: str, kind: str) -> onnx.GraphProto:
        made = helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, None)
        return helper.make_graph([helper.make_node(kind, ["h", "shift"], [f"{name}_out"])], name, [], [made])

    rng = np.random.default_rng(2)
    weights = {"w": rng.normal(size=(4, 4)).astype(np.float32), "shift": rng.normal(size=(2, 4)).astype(np.float32)}
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"]),
            helper.make_node("If", ["wanted"], ["y"], then_branch=body("a", "Add"), else_branch=body("b", "Mul")),
        ],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4]),
            helper.make_tensor_value_info("wanted", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    hidden = obfuscate(model, "p", ratio=1.0)
    x = rng.normal(size=(2, 4)).astype(np.float32)
    session = onnx_session(hidden)
    for wanted, combine in ((True, np.add), (False, np.multiply)):
        feeds = {"x": x, "wanted": np.array(wanted), KEY: password_key(hidden, "p")}
        np.testing.assert_allclose(session(feeds), combine(x @ weights["w"], weights["shift"]), rtol=1e-5)


def onnx_session(model: bytes) -> Callable[[Feeds], NDArray[Any]]:
    import onnxruntime  # pyright: ignore[reportMissingTypeStubs]

    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return lambda feeds: session.run(None, feeds)[0]  # pyright: ignore


def test_keys_are_those_of_the_password_and_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = inference_file(zoo.mlp((4, 8, 3)), zoo.Input((4,)))
    first, second = (obfuscate(model, "p") for _ in range(2))
    assert first != second
    assert not np.array_equal(password_key(first, "p"), password_key(second, "p"))
    np.testing.assert_array_equal(password_key(first, "p"), password_key(first, "p"))
    longer = key_numbers(b"s" * 32, 100)
    np.testing.assert_array_equal(longer[:40], key_numbers(b"s" * 32, 40))
    assert longer.min() >= 0 and longer.max() < 2**32 and len(set(longer.tolist())) == 100
    # scrypt of RFC 7914 through SHAKE-256: a key of today is a key of tomorrow.
    monkeypatch.undo()
    assert secret_of("password", b"0123456789abcdef").hex()[:16] == KNOWN_SECRET
    assert key_numbers(secret_of("password", b"0123456789abcdef"), 3).tolist() == KNOWN_KEY


# Made once by hashlib.scrypt(b"password", salt=b"0123456789abcdef", n=2**14, r=8, p=1, dklen=32) and, from it,
# hashlib.shake_256(b"key" + secret).digest(12) as three little-endian numbers of 32 bits.
KNOWN_SECRET = "02974558af0dba6c"
KNOWN_KEY = [1868853535, 2486928401, 1854099603]


def test_choices_are_even_and_orders_are_orders() -> None:
    choices = Choices(b"c" * 32)
    counts = np.bincount([choices.below(7) for _ in range(7000)], minlength=7)
    assert counts.min() > 850 and counts.max() < 1150  # five deviations of a thousand
    np.testing.assert_array_equal(np.sort(choices.permutation(100)), np.arange(100))
    firsts = np.bincount([int(choices.permutation(5)[0]) for _ in range(2000)], minlength=5)
    assert firsts.min() > 300


def _model(**changes: object) -> bytes:
    """A product with a weight, changed in one point."""
    settings = {"opset": 17, "weight": np.ones((4, 3), np.float32), "input": "x", "external": False, **changes}
    weight = np.asarray(settings["weight"])
    tensor = numpy_helper.from_array(weight, "w")
    if settings["external"]:
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="weights.bin")
        tensor.ClearField("raw_data")
    name = str(settings["input"])
    graph = helper.make_graph(
        [helper.make_node("MatMul", [name, "w"], ["y"])], "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, *weight.shape[1:]])],
        [tensor],
    )  # fmt: skip
    opset = helper.make_opsetid("", int(str(settings["opset"])))
    return helper.make_model(graph, opset_imports=[opset], ir_version=8).SerializeToString()


REFUSED: dict[str, tuple[Callable[[], object], type[CoterieError], str]] = {
    "no graph": (lambda: obfuscate(b"nothing", "p"), GraphRefused, "not a valid ONNX graph"),
    "an old opset": (lambda: obfuscate(_model(opset=11), "p"), GraphRefused, "opset 11; at least 13"),
    "weights elsewhere": (lambda: obfuscate(_model(external=True), "p"), GraphRefused, ""),
    "no weight": (lambda: obfuscate(_model(weight=np.ones(4, np.float32)), "p"), InputError, "no weight"),
    "an input of the key's name": (lambda: obfuscate(_model(input=KEY), "p"), InputError, "value named 'key'"),
    "twice": (lambda: obfuscate(obfuscate(_model(), "p"), "q"), GraphRefused, "local functions"),
    "no password": (lambda: obfuscate(_model(), ""), InputError, "must be text and not empty, not str"),
    "a password of bytes": (lambda: obfuscate(_model(), b"p"), InputError, "not bytes"),  # pyright: ignore[reportArgumentType]
    "a ratio of 0": (lambda: obfuscate(_model(), "p", ratio=0), ArgumentValueError, "ratio must be above 0"),
    "a ratio above 1": (lambda: obfuscate(_model(), "p", ratio=1.5), ArgumentValueError, "at most 1"),
    "a key for another model": (lambda: password_key(_model(), "p"), InputError, "not obfuscated in the format"),
    "a key for no model": (lambda: password_key(b"\xff", "p"), InputError, "not obfuscated in the format"),
}


@pytest.mark.parametrize(("make", "error", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_obfuscated_is_refused_by_name(
    make: Callable[[], object], error: type[CoterieError], reason: str
) -> None:
    with pytest.raises(error) as refused:
        make()
    assert reason in refused.value.message


def test_embedded_weights_of_a_plan_can_be_hidden() -> None:
    """The way from a run to a hidden model: infer.onnx with its weights inside."""
    model, feeds = inference_file(zoo.mlp((4, 8, 3)), zoo.Input((4,)), batch=2)
    proto = ModelProto.FromString(model)
    own = [tensor for tensor in proto.graph.initializer if tensor.data_type == TensorProto.FLOAT]
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in own}
    for tensor in own:
        proto.graph.initializer.remove(tensor)
    for name, value in weights.items():
        proto.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, value.shape))
    with pytest.raises(InputError, match="no weight"):
        obfuscate(proto.SerializeToString(), "p")
    hidden = obfuscate(embed_weights(proto.SerializeToString(), weights), "p")
    np.testing.assert_allclose(outputs(hidden, feeds, "p"), outputs(model, feeds), rtol=1e-6)
