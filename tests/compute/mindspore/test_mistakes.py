"""Mistakes in scripts for MindSpore are named, and defaults are MindSpore's."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownParameterType=false, reportMissingParameterType=false

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.compute import mindspore as ms
from coterie.compute.mindspore import Parameter, Tensor, nn, ops
from coterie.errors import ArgumentTypeError, ArgumentValueError, CoterieError, InputError

LOGITS = Tensor(np.random.default_rng(4).normal(size=(5, 3)).astype(np.float32))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_ignored_labels_count_for_nothing(reduction: str) -> None:
    labels = np.asarray([0, -100, 2, -100, 1], np.int32)
    rows = -np.log(np.exp(LOGITS.asnumpy()) / np.exp(LOGITS.asnumpy()).sum(1, keepdims=True))
    values = np.where(labels < 0, 0, rows[np.arange(5), labels * (labels > 0)])
    wanted: Any = {"mean": values.sum() / 3, "sum": values.sum(), "none": values}[reduction]
    for found in (
        nn.CrossEntropyLoss(reduction=reduction)(LOGITS, Tensor(labels)),
        ops.cross_entropy(LOGITS, Tensor(labels), reduction=reduction),
        nn.CrossEntropyLoss(7, reduction)(LOGITS, Tensor(np.where(labels < 0, 7, labels))),
    ):
        np.testing.assert_allclose(found.asnumpy(), wanted, rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: nn.Dense(2, 2, activation="nope"), "no activation 'nope'"),
        (lambda: nn.Conv2d(3, 4, 3, group=2), "2 groups do not divide 3 and 4"),
        (lambda: nn.LayerNorm((2, 3)), "last axis only"),
        (lambda: nn.SGD([], 0.1), "no parameters"),
        (lambda: nn.SGD(nn.Dense(2, 2).trainable_params(), []), "learning_rate is empty"),
    ],
)
def test_wrong_arguments_are_named(make: Callable[[], Any], told: str) -> None:
    with pytest.raises(ArgumentValueError, match=told) as caught:
        make()
    assert caught.value.hint


def test_gradients_take_arguments_by_name() -> None:
    x, y = Tensor(np.asarray([2.0], np.float32)), Tensor(np.asarray([5.0], np.float32))
    assert ms.grad(lambda x, y: x * y)(x, y=y).asnumpy() == 5.0
    assert ms.value_and_grad(lambda x, y: x * y, 1)(y=y, x=x)[1].asnumpy() == 2.0
    net = nn.Dense(1, 1)
    np.testing.assert_allclose(ms.grad(net)(x=x).asnumpy(), net.weight.asnumpy()[0])
    with pytest.raises(ArgumentTypeError, match=r"test_mistakes.py:\d+"):
        ms.grad(lambda x: x)(x, z=y)


def test_a_deleted_layer_is_gone() -> None:
    net = nn.Dense(2, 2)
    del net.bias
    assert [p.name for p in net.get_parameters()] == ["weight"]


def test_a_checkpoint_keeps_names_that_functions_have_too(tmp_path: Path) -> None:
    net = nn.Cell()
    net.file = Parameter(Tensor(np.asarray([1.0, 2.0], np.float32)))
    net.args = Parameter(Tensor(np.asarray([[3]], np.int32)))
    ms.save_checkpoint(net, tmp_path / "a.ckpt")
    found = ms.load_checkpoint(tmp_path / "a.ckpt")
    assert sorted(found) == ["args", "file"]
    np.testing.assert_array_equal(found["file"].asnumpy(), [1.0, 2.0])


def test_a_damaged_checkpoint_is_an_error_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    ms.save_checkpoint(nn.Dense(3, 2), path)
    whole = path.read_bytes()
    np.save(tmp_path / "one.npy", np.zeros(3))
    damaged = [b"", b"x" * 90, whole[: len(whole) // 2], (tmp_path / "one.npy").read_bytes()]
    damaged += [whole[:i] + bytes([whole[i] ^ 0xFF]) + whole[i + 1 :] for i in range(0, len(whole), 7)]
    for content in damaged:
        path.write_bytes(content)
        try:
            ms.load_checkpoint(path)
        except CoterieError as error:
            assert isinstance(error, InputError)
