"""What an exporter says of a module's parameters: these are the weights, under their own names; and what it has made of
them otherwise is said when the file is read.
"""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto

from coterie.compute import nn, optim
from coterie.compute.nn import losses
from coterie.compute.onnx import load
from coterie.compute.training.trainer import Trainer
from coterie.errors import GraphRefused
from tests.compute.importer.foreign_models import FIXTURES

NORMALISED = ["bn.bias", "bn.weight", "conv.weight", "head.bias", "head.weight"]
WHOLE: dict[str, list[str]] = {
    "normalised_20_whole": NORMALISED,
    "cells_20_whole": [
        "cell.bias_hh", "cell.bias_ih", "cell.weight_hh", "cell.weight_ih", "head.bias", "head.weight"
    ],
    "tied_20_whole": ["0.bias", "2.bias", "2.weight"],
    "copies_20_whole": ["0.bias", "0.weight", "2.bias", "2.weight"],
    "copies_17": ["0.bias", "0.weight", "2.bias", "2.weight"],
}  # fmt: skip


def edited(name: str, change: Any) -> bytes:
    model = ModelProto.FromString((FIXTURES / f"{name}.onnx").read_bytes())
    change(model)
    return model.SerializeToString()


@pytest.mark.parametrize("name", sorted(WHOLE))
def test_the_weights_are_the_parameters_of_the_module(name: str) -> None:
    assert sorted(load(FIXTURES / f"{name}.onnx").parameters) == WHOLE[name]


def test_statistics_are_buffers_and_fixed_tables_and_constants_are_not_trained() -> None:
    model = load(FIXTURES / "normalised_20_whole.onnx")
    assert sorted(model.buffers) == ["bn.running_mean", "bn.running_var"]
    x = np.random.default_rng(0).normal(size=(16, 1, 6, 6)).astype(np.float32)
    y = np.arange(16, dtype=np.int32) % 3
    trainer = Trainer(nn.Imported(model), losses.softmax_cross_entropy, optim.sgd(0.1), batch_size=8)
    trainer.fit({"x": x, "y": y}, epochs=1)
    moved = {name for name, value in trainer.params.items() if not np.array_equal(value, held(model, name))}
    assert moved == {*NORMALISED, "bn.running_mean", "bn.running_var"}


def held(model: Any, name: str) -> Any:
    return {**model.parameters, **model.buffers}[name]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("normalised_20_dynamo", "folded 2 of the module's parameters .* bn.bias, bn.weight.*optimize=False"),
        ("normalised_17", r"folded batch normalisation into 1 convolutions \(onnx::Conv_.*optimize=False"),
    ],
)
def test_batch_normalisation_that_was_folded_is_said(name: str, message: str) -> None:
    with pytest.warns(UserWarning, match=message):
        load(FIXTURES / f"{name}.onnx")


def test_a_sequence_that_is_read_otherwise_is_refused_by_name() -> None:
    def lengthen(model: ModelProto) -> None:
        cut = next(node for node in model.graph.node if node.op_type == "SplitToSequence")
        model.graph.node.append(onnx.helper.make_node("SequenceLength", [cut.output[0]], ["count"], "long"))
        model.graph.output.append(onnx.helper.make_tensor_value_info("count", onnx.TensorProto.INT64, ()))

    with pytest.raises(GraphRefused, match="SplitToSequence|SequenceLength"):
        load(edited("cells_20_whole", lengthen))


def test_words_of_the_metadata_that_are_no_signature_change_nothing() -> None:
    def garble(model: ModelProto) -> None:
        for entry in model.graph.metadata_props:
            entry.value = "no lines of a signature"

    found = load(edited("copies_20_whole", garble))
    assert sorted(found.parameters) == WHOLE["copies_20_whole"]
