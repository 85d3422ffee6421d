"""The zoo's models: their sizes, their blocks against formulas, and every entry of the table as a file."""

from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.compute import nn, optim
from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.ir import NDArray
from coterie.compute.nn import zoo
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.metrics import accuracy
from coterie.compute.onnx.checker import check_graph
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.runtime.executable import Executable
from coterie.compute.training import Trainer
from coterie.compute.training.cost import inference_file, training_graph
from coterie.errors import ArgumentValueError, InputError, ShapeError

Params = dict[str, NDArray]
each = pytest.mark.parametrize("entry", zoo.ENTRIES, ids=lambda one: f"{one.task}-{one.name}")


def arrays(values: Mapping[str, NDArray]) -> dict[str, Array]:
    return {name: Array(value) for name, value in values.items()}


# Of the literature, where it counts them: the PyTorch reference implementations of ResNet-20 for CIFAR-10 with
# projections and of MobileNetV2 have 272 474 and 3 504 872 (with a weight and a bias for each normalised channel, as
# GroupNorm has). The others by hand.
COUNTS = {
    "logistic_regression": (zoo.logistic_regression(784, 10), 784 * 10 + 10),
    "lenet of 62 classes": (zoo.lenet(62), 61_706 + 52 * 85),
    "fedavg_cnn of 62 classes": (zoo.fedavg_cnn(62), 1_663_370 + 52 * 513),
    "resnet20": (zoo.resnet(channels=3, blocks=3), 272_474),
    "resnet": (zoo.resnet(), 77_754),
    "mobilenet_v2": (zoo.mobilenet(3, 1000, zoo.MOBILENET_V2, stem=32, stem_stride=2, last=1280), 3_504_872),
    "mobilenet": (zoo.mobilenet(), 32_234),
    "char_gru": (zoo.char_gru(), 86 * 8 + 3 * 64 * (8 + 64 + 2) + 64 * 86 + 86),
    "char_gru of two layers": (
        zoo.char_gru(86, 8, 256, 2),
        86 * 8 + 3 * 256 * (8 + 256 + 2) + 3 * 256 * (256 + 256 + 2) + 256 * 86 + 86,
    ),
    "char_transformer": (
        zoo.char_transformer(),
        86 * 64 + 32 * 64 + 2 * (12 * 64 * 64 + 13 * 64) + 2 * 64 + 64 * 86 + 86,
    ),
    "wide_and_deep": (
        zoo.WideAndDeep((3, 4, 5), 2, 2, size=6, hidden=(7,), crosses=((0, 2),)),
        12 * 6 + (12 + 3 * 5) * 2 + 2 * 2 + (3 * 6 + 2) * 7 + 7 + 7 * 2 + 2,
    ),
}


@pytest.mark.parametrize(("model", "count"), COUNTS.values(), ids=COUNTS)
def test_a_model_has_as_many_parameters_as_its_source_says(model: nn.Module, count: int) -> None:
    assert model.count() == count


ENTRY_COUNTS = {
    ("images", "logistic_regression"): 7_850,
    ("images", "mlp"): 101_770,
    ("images", "lenet"): 61_706,
    ("images", "fedavg_cnn"): 1_663_370,
    ("images", "resnet"): 77_754,
    ("images", "mobilenet"): 32_234,
    ("rows", "logistic_regression"): 218,
    ("rows", "mlp"): 9_122,
    ("rows", "wide_and_deep"): 8_286,
    ("text", "char_gru"): 18_734,
    ("text", "char_transformer"): 110_142,
}


def test_the_table_has_these_models_of_these_sizes() -> None:
    assert {(entry.task, entry.name): entry.parameters for entry in zoo.ENTRIES} == ENTRY_COUNTS
    assert [entry.task for entry in zoo.ENTRIES] == sorted(
        (entry.task for entry in zoo.ENTRIES), key=[*zoo.TASKS].index
    )


def test_the_page_lists_the_table() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "models.md").read_text(encoding="utf-8")
    rows = page.split("## The zoo")[1].split("\n| model |")[1].split("\n\n")[0].splitlines()[2:]
    told = [
        f"| `{one.name}` | `{one.task}` | {one.parameters:,} | {one.source} |".replace(",", " ") for one in zoo.ENTRIES
    ]
    assert rows == told


@each
def test_a_model_gives_the_same_in_a_file_as_eagerly(entry: zoo.Entry) -> None:
    file, feeds = inference_file(entry.build(), entry.inputs, batch=3)
    check_graph(file)
    (served,) = Executable(file).run(feeds).values()
    x: Any = arrays(feeds)
    eager = entry.build()(arrays(entry.build().init(0)), x["x"] if set(x) == {"x"} else x).numpy()
    assert served.shape == (3, entry.classes)
    np.testing.assert_allclose(served, eager, rtol=1e-4, atol=1e-5)
    assert not np.allclose(served[0], served[1])  # it looks at its input


@pytest.mark.parametrize("entry", [one for one in zoo.ENTRIES if one.name not in ("fedavg_cnn", "char_gru")],
                         ids=lambda one: f"{one.task}-{one.name}")  # fmt: skip
def test_the_training_step_of_a_model_is_a_portable_file(entry: zoo.Entry) -> None:
    check_graph(to_onnx(training_graph(entry.build(), entry.inputs), name="step"))


def scattered(model: nn.Module, seed: int) -> Params:
    """Parameters far from where models start, in float64."""
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=spec.shape) * 0.5 for name, spec in model.specs().items()}


BLOCKS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "residual": (zoo.ResidualBlock(4, 4, groups=2), (2, 4, 4, 4)),
    "residual with a projection": (zoo.ResidualBlock(2, 4, stride=2, groups=2), (2, 2, 5, 5)),
    "inverted residual": (zoo.InvertedResidual(2, 2, expansion=2, groups=2), (2, 2, 4, 4)),
    "inverted residual without expansion": (zoo.InvertedResidual(2, 3, expansion=1, stride=2), (2, 2, 4, 4)),
}


@pytest.mark.parametrize(("block", "shape"), BLOCKS.values(), ids=BLOCKS)
def test_gradients_of_a_block_are_finite_differences(
    block: nn.Module, shape: tuple[int, ...], check_gradients: Callable[..., None]
) -> None:
    x = np.random.default_rng(5).normal(size=shape)

    def scalar(params: dict[str, Array]) -> Array:
        return xp.sum(xp.tanh(block(params, Array(x))))

    check_gradients(scalar, scattered(block, 6))


def test_a_residual_block_without_convolutions_is_its_shortcut() -> None:
    x = np.random.default_rng(0).normal(size=(2, 8, 6, 6)).astype(np.float32)
    kept = zoo.ResidualBlock(8, 8)
    silent = {name: np.zeros_like(value) if "conv" in name else value for name, value in kept.init(1).items()}
    np.testing.assert_array_equal(kept(arrays(silent), Array(x)).numpy(), np.maximum(x, 0))
    halved = zoo.ResidualBlock(8, 8, stride=2)
    # A projection by one channel each picks every second pixel, and the normalisation follows.
    silent = {name: np.zeros_like(value) if "conv" in name else value for name, value in halved.init(1).items()}
    silent["conv3.weight"] = np.eye(8, dtype=np.float32)[:, :, None, None]
    picked = x[:, :, ::2, ::2]
    normal = (picked - picked.mean(axis=(2, 3), keepdims=True)) / np.sqrt(picked.var(axis=(2, 3), keepdims=True) + 1e-5)
    np.testing.assert_allclose(halved(arrays(silent), Array(x)).numpy(), np.maximum(normal, 0), atol=1e-5)


def test_an_inverted_residual_adds_its_input_only_where_shapes_are_kept() -> None:
    x = np.random.default_rng(0).normal(size=(1, 8, 4, 4)).astype(np.float32)
    for block, added in (
        (zoo.InvertedResidual(8, 8), True),
        (zoo.InvertedResidual(8, 16), False),
        (zoo.InvertedResidual(8, 8, stride=2), False),
    ):
        params = {name: np.zeros_like(value) if "project.0" in name else value for name, value in block.init(1).items()}
        out = block(arrays(params), Array(x)).numpy()
        np.testing.assert_array_equal(out, x if added else np.zeros_like(out))


def test_wide_and_deep_is_a_linear_model_over_indicators_beside_a_network() -> None:
    vocabularies, crosses = (3, 2, 4), ((0, 1), (1, 2))
    model = zoo.WideAndDeep(vocabularies, 2, 3, size=5, hidden=(6,), crosses=crosses)
    params = scattered(model, 3)
    rng = np.random.default_rng(4)
    ids = np.stack([rng.integers(0, n, 7) for n in vocabularies], axis=1).astype(np.int32)
    numbers = rng.normal(size=(7, 2))
    # Every indicator written out: one for each value of each column, then one for each pair of values.
    shown = [np.eye(n)[ids[:, column]] for column, n in enumerate(vocabularies)]
    pairs = [
        np.stack(
            [(ids[:, (i, j)] == both).all(axis=1) for both in product(range(vocabularies[i]), range(vocabularies[j]))]
        )
        for i, j in crosses
    ]
    wide = (
        np.concatenate([*shown, *(pair.T for pair in pairs)], axis=1) @ params["indicators"]
        + numbers @ params["slopes"].T
    )
    tables = np.split(params["embedding.weight"], np.cumsum(vocabularies)[:-1])
    first = np.concatenate([*(one @ table for one, table in zip(shown, tables, strict=True)), numbers], axis=1)
    hidden = np.maximum(first @ params["deep.0.weight"].T + params["deep.0.bias"], 0)
    deep = hidden @ params["deep.2.weight"].T + params["deep.2.bias"]
    given: Any = {"categories": Array(ids), "numbers": Array(numbers)}
    np.testing.assert_allclose(model(arrays(params), given).numpy(), wide + deep, rtol=1e-10)


def test_a_cross_learns_what_single_columns_cannot_say() -> None:
    rng = np.random.default_rng(1)
    ids = rng.integers(0, 2, (256, 2)).astype(np.int32)
    rows = {"categories": ids, "numbers": np.zeros((256, 1), np.float32), "y": (ids[:, 0] ^ ids[:, 1]).astype(np.int32)}
    reached: dict[bool, float] = {}
    for crossed in (False, True):
        # No hidden layer: the deep part is linear in the embeddings, so only a cross can tell equal from unequal.
        model = zoo.WideAndDeep((2, 2), 1, 2, size=2, hidden=(), crosses=((0, 1),) if crossed else ())
        trainer = Trainer(model, softmax_cross_entropy, optim.adam(0.05), metrics={"accuracy": accuracy})
        trainer.fit(rows, epochs=8)
        reached[crossed] = trainer.evaluate(rows)["accuracy"]
    assert reached[True] == 1.0 and reached[False] < 0.8


def test_models_of_characters_read_the_last_position() -> None:
    ids = np.random.default_rng(2).integers(0, 11, (3, 6)).astype(np.int32)
    for whole, last in (
        (zoo.transformer(11, 8, 2, 1, 6), zoo.char_transformer(11, 8, 2, 1, 6)),
        (zoo.gru(11, 8), zoo.char_gru(11, 8, 8)),
    ):
        params = whole.init(3)
        # Picking the last step is a layer of its own, so the linear layer behind it is one further on.
        place = len(whole.layers) - 1
        moved = {name.replace(f"{place}.", f"{place + 1}.", 1) if name.startswith(f"{place}.") else name: value
                 for name, value in params.items()}  # fmt: skip
        every = whole(arrays(params), Array(ids)).numpy()
        np.testing.assert_allclose(last(arrays(moved), Array(ids)).numpy(), every[:, -1], rtol=1e-5, atol=1e-6)


def test_examples_are_what_a_model_can_digest() -> None:
    bounded = zoo.Input((3,), (2, 5, 9)).example(500)
    assert (bounded.dtype.name, bounded.shape) == ("int32", (500, 3))
    np.testing.assert_array_equal(bounded.min(axis=0), 0)
    np.testing.assert_array_equal(bounded.max(axis=0), [1, 4, 8])
    numbers = zoo.Input((2, 2)).example(500)
    assert (numbers.dtype.name, numbers.shape) == ("float32", (500, 2, 2))
    assert -1 <= numbers.min() < -0.9 < 0.9 < numbers.max() < 1
    np.testing.assert_array_equal(numbers, zoo.Input((2, 2)).example(500))


def _called(model: nn.Module, x: object) -> Callable[[], object]:
    given: Any = x
    return lambda: model(arrays(model.init(0)), given)


MIXED = zoo.WideAndDeep((3, 4), 2, 2)
IDS, NUMBERS = Array(np.zeros((2, 2), np.int32)), Array(np.zeros((2, 2), np.float32))
REFUSED: dict[str, tuple[Callable[[], object], type[InputError], str]] = {
    "one array": (_called(MIXED, NUMBERS), InputError, "takes arrays by name, categories and numbers"),
    "a name missing": (_called(MIXED, {"categories": IDS}), InputError, "it was given categories"),
    "columns": (_called(MIXED, {"categories": IDS[:, :1], "numbers": NUMBERS}), ShapeError, "[B, 2], got [2, 1]"),
    "a cross": (lambda: zoo.WideAndDeep((3, 4), 2, 2, crosses=((1, 2),)), InputError, r"cross (1, 2) is no pair"),
    "a cross of itself": (lambda: zoo.WideAndDeep((3, 4), 2, 2, crosses=((1, 1),)), InputError, "is no pair"),
    "no value": (lambda: zoo.WideAndDeep((3, 0), 2, 2), InputError, "vocabularies must be a whole number"),
    "columns that are a number": (lambda: zoo.WideAndDeep(5, 1, 2), InputError, "a size for each column"),  # pyright: ignore[reportArgumentType]
    "a cross of three": (
        lambda: zoo.WideAndDeep((3, 4, 5), 1, 2, crosses=((0, 1, 2),)), InputError, "cross (0, 1, 2) is no pair"),  # pyright: ignore[reportArgumentType]
    "no width": (lambda: zoo.resnet(widths=()), InputError, "at least one width"),
    "one width": (lambda: zoo.resnet(widths=16), InputError, "at least one width, as in (16, 32, 64); got 16"),  # pyright: ignore[reportArgumentType]
    "no block": (lambda: zoo.resnet(blocks=0), InputError, "resnet: blocks must be"),
    "a short stage": (lambda: zoo.mobilenet(stages=[(1, 2, 3)]), InputError, "the stage (1, 2, 3) is not"),  # pyright: ignore[reportArgumentType]
    "a stage of nothing": (lambda: zoo.mobilenet(stages=[(1, 16, 0, 1)]), InputError, "mobilenet: blocks must be"),
    "no recurrent layer": (lambda: zoo.char_gru(layers=0), InputError, "char_gru: layers must be"),
    "no transformer layer": (lambda: zoo.char_transformer(layers=0), InputError, "transformer: layers must be"),
    "a stride": (lambda: zoo.ResidualBlock(4, 4, stride=0), InputError, "stride must be a whole number"),
    "an expansion": (lambda: zoo.InvertedResidual(4, 4, expansion=0), InputError, "expansion must be a whole number"),
    "a task": (lambda: zoo.entries("speech"), ArgumentValueError, "no task 'speech'"),  # pyright: ignore[reportArgumentType]
    "a model": (lambda: zoo.entry("rows", "lenet"), ArgumentValueError, "no model 'lenet' for rows"),
    "a step alone": (_called(zoo.LastStep(), NUMBERS), ShapeError, "[B, T, D], got [2, 2]"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "error", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused_by_name(make: Callable[[], object], error: type[InputError], reason: str) -> None:
    with pytest.raises(error) as refused:
        make()
    assert reason in refused.value.message
