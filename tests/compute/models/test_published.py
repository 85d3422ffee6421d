"""Models as they were published: how many numbers they learn, and what they compute, against formulas in NumPy."""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np
import pytest

from coterie.compute import nn
from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.autodiff import grad
from coterie.compute.ir import NDArray
from coterie.compute.nn import zoo
from coterie.compute.nn.zoo.bert import BertEmbedding, BertLayer
from coterie.compute.nn.zoo.mobile_v3 import SqueezeExcite, by_eight
from coterie.compute.onnx.checker import check_graph
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.passes import optimise
from coterie.compute.runtime.executable import Executable
from coterie.compute.trace import GraphInputs, TensorSpec, trace_named
from coterie.compute.training.cost import inference_file, training_graph
from coterie.errors import InputError, ShapeError

# Of the authors' and the reference implementations. BERT's are of the encoder with its pooler; the head comes on top.
LEARNED = {
    "resnet18": (zoo.resnet18(), 11_689_512),
    "mobilenet_v3": (zoo.mobilenet_v3(), 2_542_856),
    "bert of 4 by 256": (zoo.bert(classes=2), 11_170_560 + 2 * 257),
    "bert of 12 by 768": (zoo.bert(classes=3, size=768, heads=12, layers=12), 109_482_240 + 3 * 769),
    "gpt2": (zoo.GPT2(), 124_439_808),
}


@pytest.mark.parametrize(("model", "count"), LEARNED.values(), ids=LEARNED)
def test_a_model_learns_as_many_numbers_as_published(model: nn.Module, count: int) -> None:
    assert sum(prod(spec.shape) for spec in model.specs().values() if spec.role == "shared") == count


def test_statistics_are_those_of_the_normalisations() -> None:
    """Each channel of a BatchNorm has two: ResNet-18 has 4 800 such channels."""
    specs = zoo.resnet18().specs()
    assert sum(prod(spec.shape) for spec in specs.values() if spec.role == "buffer") == 9_600
    assert [name for name, spec in specs.items() if spec.role == "frozen"] == []


SMALL: dict[str, tuple[nn.Module, zoo.Input]] = {
    "resnet18": (zoo.resnet18(3, 5), zoo.Input((3, 32, 32))),
    "mobilenet_v3": (zoo.mobilenet_v3(3, 5, dropout=0), zoo.Input((3, 32, 32))),
    "bert": (zoo.bert(19, 5, 16, 2, 2, length=9, dropout=0), zoo.Input((7,), 19)),
}
small = pytest.mark.parametrize(("model", "taken"), SMALL.values(), ids=SMALL)


@small
def test_a_model_gives_the_same_in_a_file_as_eagerly(model: nn.Module, taken: zoo.Input) -> None:
    file, feeds = inference_file(model, taken, batch=3)
    check_graph(file)
    (served,) = Executable(file).run(feeds).values()
    eager = model(arrays(model.init(0)), Array(feeds["x"])).numpy()
    assert served.shape == (3, 5)
    np.testing.assert_allclose(served, eager, rtol=1e-4, atol=1e-5)
    given = Array(feeds["x"].astype(np.float64)) if taken.below is None else Array(feeds["x"])
    far = model(arrays(scattered(model, 1)), given).numpy()
    assert not np.allclose(far[0], far[1], rtol=1e-2)  # it looks at its input


@small
def test_the_training_step_of_a_model_is_a_portable_file(model: nn.Module, taken: zoo.Input) -> None:
    check_graph(to_onnx(training_graph(model, taken), name="step"))


def arrays(values: Mapping[str, NDArray]) -> dict[str, Array]:
    return {name: Array(value) for name, value in values.items()}


def scattered(model: nn.Module, seed: int) -> dict[str, NDArray]:
    """Parameters far from where models start, in float64; variances above 0."""
    rng = np.random.default_rng(seed)
    found = {name: rng.normal(size=spec.shape) * 0.5 for name, spec in model.specs().items()}
    return {name: np.abs(value) + 0.1 if name.endswith("running_var") else value for name, value in found.items()}


BLOCKS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "a residual block by batch": (zoo.ResidualBlock(2, 4, 2, None), (3, 2, 5, 5)),
    "a bottleneck": (zoo.Bottleneck(3, 6, 3), (3, 3, 4, 4)),
    "a bottleneck without expansion": (zoo.Bottleneck(4, 4, 6, 3, 2, True, "relu"), (3, 4, 5, 5)),
    "a layer of BERT": (BertLayer(6, 2, 8), (2, 3, 6)),
}


@pytest.mark.parametrize("mode", [nn.EVAL, nn.train()], ids=["eval", "train"])
@pytest.mark.parametrize(("block", "shape"), BLOCKS.values(), ids=BLOCKS)
def test_gradients_of_a_block_are_finite_differences(
    block: nn.Module, shape: tuple[int, ...], mode: nn.Mode, check_gradients: Callable[..., None]
) -> None:
    x = np.random.default_rng(5).normal(size=shape)
    params = scattered(block, 6)
    moved = {name: value for name, value in params.items() if block.specs()[name].role == "shared"}
    still = arrays({name: value for name, value in params.items() if name not in moved})

    def scalar(given: dict[str, Array]) -> Array:
        return xp.sum(xp.tanh(block({**still, **given}, Array(x), mode)))

    check_gradients(scalar, moved)


def test_a_gate_is_one_factor_for_each_channel() -> None:
    layer = SqueezeExcite(3, 2)
    params, x = scattered(layer, 1), np.random.default_rng(2).normal(size=(2, 3, 4, 5))
    mean = x.mean((2, 3))
    hidden = np.maximum(mean @ params["1.weight"][:, :, 0, 0].T + params["1.bias"], 0)
    gate = np.clip((hidden @ params["3.weight"][:, :, 0, 0].T + params["3.bias"]) / 6 + 0.5, 0, 1)
    np.testing.assert_allclose(layer(arrays(params), Array(x)).numpy(), x * gate[:, :, None, None], rtol=1e-9)


def test_channels_are_rounded_to_eights_and_not_far_below() -> None:
    assert [by_eight(count) for count in (4, 11, 12, 18, 24, 60, 144)] == [8, 16, 16, 24, 24, 64, 144]


def norm(x: NDArray, weight: NDArray, bias: NDArray) -> NDArray:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12) * weight + bias


def softmax(x: NDArray) -> NDArray:
    raised = np.exp(x - x.max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)


def by_hand(p: Mapping[str, NDArray], ids: NDArray, segments: NDArray, heads: int, layers: int) -> NDArray:
    """BERT as its paper has it, in NumPy."""

    def dense(name: str, x: NDArray) -> NDArray:
        return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]

    def normal(name: str, x: NDArray) -> NDArray:
        return norm(x, p[f"{name}.weight"], p[f"{name}.bias"])

    x = p["embedding.words"][ids] + p["embedding.positions"][: ids.shape[1]] + p["embedding.segments"][segments]
    x = normal("embedding.norm", x)
    count, steps, size = x.shape
    for layer in (f"layer{number}" for number in range(layers)):
        q, k, v = (
            part.reshape(count, steps, heads, size // heads).transpose(0, 2, 1, 3)
            for part in np.split(dense(f"{layer}.attention.qkv", x), 3, axis=2)
        )
        scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(size // heads)
        scores = np.where((ids == 0)[:, None, None, :], -np.inf, scores)
        mixed = (softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(x.shape)
        x = normal(f"{layer}.norm1", x + dense(f"{layer}.attention.out", mixed))
        up = dense(f"{layer}.up", x)
        gelu = up / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (up + 0.044715 * up**3)))
        x = normal(f"{layer}.norm2", x + dense(f"{layer}.down", gelu))
    return dense("head", np.tanh(dense("pooler", x[:, 0])))


IDS = np.array([[1, 5, 7, 2, 8, 2], [1, 4, 2, 3, 0, 0]], np.int32)
SEGMENTS = np.array([[0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 1]], np.int32)
READER = zoo.bert(9, 3, 8, 2, 2, length=6, dropout=0)


def test_bert_computes_what_its_paper_says() -> None:
    params = scattered(READER, 3)
    named: Any = {"ids": Array(IDS), "segments": Array(SEGMENTS)}
    expected = by_hand(params, IDS, SEGMENTS, 2, 2)
    np.testing.assert_allclose(READER(arrays(params), named).numpy(), expected, rtol=1e-9)
    alone = READER(arrays(params), Array(IDS)).numpy()
    np.testing.assert_allclose(alone, by_hand(params, IDS, SEGMENTS * 0, 2, 2), rtol=1e-9)


def test_the_last_layer_of_bert_computes_the_first_position_alone() -> None:
    def gradients(i: GraphInputs) -> dict[str, Array]:
        def loss(params: Mapping[str, Array]) -> Array:
            return xp.sum(READER(params, i["ids"]) ** 2)

        return {f"by {n}": g for n, g in grad(loss)({name: i[name] for name in READER.specs()}).items()}

    specs = {name: TensorSpec(spec.shape) for name, spec in READER.specs().items()}
    graph = optimise(trace_named(gradients, specs | {"ids": TensorSpec(IDS.shape, "int32")}))
    gates = [node.output.type.shape for node in graph.nodes if node.primitive == "sigmoid"]
    assert set(gates) == {(2, 6, 32), (2, 1, 32)}


def test_padding_changes_nothing() -> None:
    params = arrays(scattered(READER, 4))
    padded = np.concatenate([IDS[:1, :4], np.zeros((1, 2), np.int32)], axis=1)
    short = READER(params, Array(IDS[:1, :4])).numpy()
    np.testing.assert_allclose(READER(params, Array(padded)).numpy(), short, rtol=1e-9)
    seen = zoo.bert(9, 3, 8, 2, 2, length=6, dropout=0, padding=None)
    assert not np.allclose(seen(params, Array(padded)).numpy(), short, rtol=1e-3)


def test_a_decoder_sees_no_later_token_and_reads_its_own_table() -> None:
    model = zoo.GPT2(11, 8, 2, 2, 6, dropout=0)
    params = scattered(model, 5)
    ids = np.array([[3, 1, 4, 1, 5]], np.int32)
    other = ids.copy()
    other[0, 3] = 9
    one, two = (model(arrays(params), Array(x)).numpy() for x in (ids, other))
    assert one.shape == (1, 5, 11)
    np.testing.assert_array_equal(one[:, :3], two[:, :3])
    assert not np.allclose(one[:, 3], two[:, 3])
    doubled = {name: 2 * value if name in ("norm.weight", "norm.bias") else value for name, value in params.items()}
    np.testing.assert_allclose(model(arrays(doubled), Array(ids)).numpy(), 2 * one, rtol=1e-9)


def called(model: nn.Module, x: object) -> Callable[[], object]:
    given: Any = x
    return lambda: model(arrays(model.init(0)), given)


LONG = Array(np.zeros((1, 7), np.int32))
REFUSED: dict[str, tuple[Callable[[], object], type[InputError], str]] = {
    "a short row": (lambda: zoo.mobilenet_v3(rows=[(3, 16)]), InputError, "the row (3, 16) is not"),  # pyright: ignore[reportArgumentType]
    "an activation": (
        lambda: zoo.Bottleneck(4, 8, 4, activation="tanh"), InputError, "'relu' or 'hswish', not 'tanh'"),  # pyright: ignore[reportArgumentType]
    "no group": (lambda: zoo.ResidualBlock(4, 4, groups=0), InputError, "groups must be a whole number"),
    "long ids": (called(READER, LONG), ShapeError, "at most 6 positions"),
    "long text": (called(zoo.GPT2(9, 8, 2, 1, 6), LONG), ShapeError, "at most 6 positions"),
    "a name missing": (called(READER, {"ids": LONG}), InputError, "ids and segments; it was given ids"),
    "no layer": (lambda: zoo.bert(layers=0), InputError, "bert: layers must be"),
    "heads": (lambda: zoo.bert(heads=5), InputError, "5 heads must divide size 256"),
    "a rate": (lambda: BertEmbedding(9, 4, dropout=1.0), InputError, "rate must be"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "error", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused_by_name(make: Callable[[], object], error: type[InputError], reason: str) -> None:
    with pytest.raises(error) as refused:
        make()
    assert reason in refused.value.message
