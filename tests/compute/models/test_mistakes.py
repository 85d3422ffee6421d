"""Mistakes that look like programs: each is refused by name, with the line where it was written."""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from coterie.compute import cond, grad, jit, scan
from coterie.compute import numpy as cnp
from coterie.compute.array import Array
from coterie.compute.data.dataset import Dataset
from coterie.compute.nn import Linear, ReLU, Sequential
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.mode import EVAL, Mode
from coterie.compute.nn.module import Module, ParameterSpec, part, prefixed
from coterie.compute.optim import sgd
from coterie.compute.training import Trainer
from coterie.errors import CoterieError, DataError, InputError, TraceError

HERE = r"test_mistakes\.py:\d+: "
X = Array(np.ones(3, np.float32))


@dataclass(frozen=True)
class Twice(Module):
    """One layer that is called twice: truly shared parameters."""

    layer: Linear

    def specs(self) -> dict[str, ParameterSpec]:
        return prefixed({"layer": self.layer})

    def __call__(self, params: Mapping[str, Array], x: Array, mode: Mode = EVAL) -> Array:
        own = part(params, "layer")
        return self.layer(own, self.layer(own, x, mode), mode)


def test_a_layer_in_two_places_is_refused_where_it_was_written() -> None:
    layer = Linear(4, 4)
    with pytest.raises(InputError, match=HERE + "Sequential: layer 0 and layer 2 are one Linear") as caught:
        Sequential(layer, ReLU(), layer)
    assert caught.value.reason == "tied_parameters" and "a layer for each place" in str(caught.value.hint)
    with pytest.raises(InputError, match="layer 0 and layer 1 are one Sequential"):
        Sequential(*[Sequential(Linear(4, 4))] * 2)
    with pytest.raises(InputError, match=r"layer 0\.0 and layer 2 are one Linear"):
        Sequential(Sequential(layer, ReLU()), ReLU(), layer)
    with pytest.raises(InputError, match=r"layer 0\.0 and layer 1\.0 are one Linear"):
        Sequential(Sequential(layer), Sequential(layer))


def test_equal_layers_and_layers_without_parameters_may_stand_anywhere() -> None:
    relu = ReLU()
    model = Sequential(Linear(4, 4), relu, Linear(4, 4), relu)
    assert set(model.specs()) == {"0.weight", "0.bias", "2.weight", "2.bias"}


def test_a_layer_called_twice_shares_its_parameters() -> None:
    model = Twice(Linear(2, 2))
    weight = np.asarray([[1.0, 2.0], [0.0, 1.0]], np.float32)
    params = {"layer.weight": Array(weight), "layer.bias": Array(np.zeros(2, np.float32))}
    rows = np.asarray([[1.0, 1.0]], np.float32)
    once = Linear(2, 2)
    own = part(params, "layer")
    twice = once(own, once(own, Array(rows)))
    np.testing.assert_array_equal(model(params, Array(rows)).numpy(), twice.numpy())
    assert set(model.specs()) == {"layer.weight", "layer.bias"}


def written(v: Array) -> Array:
    v[0] = 1.0
    return v


def summed(v: Array) -> Array:
    return cnp.sum(written(v))


WRITTEN: dict[str, Callable[[], Any]] = {
    "eagerly": lambda: written(X),
    "jit": lambda: jit(written, fullgraph=True)(X),
    "jit on the host": lambda: jit(written)(X),
    "grad": lambda: grad(summed)(X),
    "scan": lambda: scan(lambda carry, x: (written(carry), x), X, cnp.ones((2, 3))),
    "cond": lambda: cond(cnp.sum(X) > 0.0, lambda: written(X), lambda: X),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_an_array_that_is_written_in_place_is_refused(name: str) -> None:
    with pytest.raises(TraceError, match=HERE + r"an array \(float32\[3\]\) cannot be written in place"):
        WRITTEN[name]()


def test_traced_numbers_written_into_numpy_data_are_refused() -> None:
    held = np.zeros(3, np.float32)

    def into(v: Array) -> Array:
        held[:] = v  # type: ignore[call-overload]
        return v * 2.0

    with pytest.raises(TraceError, match=HERE + r"float32\[3\] is being traced, so a NumPy array of it"):
        jit(into, fullgraph=True)(X)
    assert not held.any()


def test_an_array_kept_in_a_list_from_one_trace_is_refused_in_another() -> None:
    kept: list[Array] = []

    def keeps(v: Array) -> Array:
        kept.append(v * 2.0)
        return cnp.sum(kept[0] + v)

    grad(keeps)(X)
    with pytest.raises(TraceError, match=HERE + ".*of a trace that has ended"):
        grad(keeps)(X)


def test_adding_in_place_makes_a_new_array() -> None:
    def added(v: Array) -> tuple[Array, Array]:
        before = v
        v += 1.0
        return before, v

    for run in (added, jit(added)):
        data = np.zeros(3, np.float32)
        before, after = run(Array(data))
        assert not before.numpy().any() and after.numpy().tolist() == [1.0] * 3 and not data.any()


def trained(rows: Any) -> Any:
    return Trainer(
        Sequential(Linear(4, 3)), softmax_cross_entropy, sgd(0.1), batch_size=4, label="y"
    ).fit(rows, epochs=2)  # fmt: skip


def columns(count: int) -> dict[str, Any]:
    return {"x": np.zeros((count, 4), np.float32), "y": np.zeros(count, np.int32)}


def never(y: Any) -> bool:
    return False


def test_an_epoch_without_rows_is_refused_where_it_was_written() -> None:
    with pytest.raises(InputError, match=HERE + "Batches: needs arrays of one common number of rows, at least one"):
        trained(columns(0))
    emptied = Dataset.of(columns(8)).filter(never, "y")
    for take in (lambda: emptied.batch(4).first(), lambda: trained(emptied.batch(4))):
        with pytest.raises(DataError, match="[Nn]o row is left of") as caught:
            take()
        assert caught.value.reason == "data_empty" and "filter(never" in str(caught.value)
        assert f"written at: {__file__}:" in " ".join(caught.value.__notes__)


@pytest.mark.parametrize(
    ("from_row", "said"), [(0, r"Linear.* got \[4, 5\]"), (9, "differ in x"), (12, "in the first")]
)
def test_an_augmentation_that_changes_the_shape_is_refused_where_it_was_written(from_row: int, said: str) -> None:
    rows = itertools.count()

    def grown(x: Any) -> Any:
        return np.zeros(5 if next(rows) >= from_row else 4, np.float32)

    with pytest.raises(CoterieError, match=said) as caught:
        trained(Dataset.of(columns(8)).map(grown, "x").batch(4))
    told = f"{caught.value} {' '.join(getattr(caught.value, '__notes__', ()))}"
    assert f"{__file__}:" in told
    assert isinstance(caught.value, DataError) == (from_row > 0)
