"""Datasets of MindSpore: slices, generators, and the chain of what is done to them."""

# Scripts as their authors write them, without types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false

import numpy as np
import pytest

from coterie.compute import mindspore as ms
from coterie.compute.mindspore.dataset import Dataset, GeneratorDataset, NumpySlicesDataset


def test_datasets() -> None:
    rows = NumpySlicesDataset({"x": np.arange(10), "y": np.arange(10) * 2}, shuffle=False)
    batched = rows.map(lambda x: x + 1, "x").batch(4)
    assert batched.get_dataset_size() == 3 and batched.batch(4, drop_remainder=True).get_dataset_size() == 2
    told = [row["x"].asnumpy().tolist() for row in batched.create_dict_iterator()]
    assert told == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10]]
    shuffled = [x for x, _ in rows.shuffle(10).create_tuple_iterator(output_numpy=True)]
    assert sorted(shuffled) == list(range(10)) and shuffled != list(range(10))
    made = GeneratorDataset(lambda: ((np.float32(i), i) for i in range(3)), ["a", "b"], shuffle=False)
    assert [b.asnumpy().item() for _, b in made] == [0, 1, 2]
    with pytest.raises(ValueError, match="column names"):
        GeneratorDataset([(1, 2)], ["a"])


def test_datasets_have_the_chain_of_mindspore() -> None:
    def values(dataset: Dataset, name: str = "x") -> list[int]:
        return [int(row[name]) for row in dataset.create_dict_iterator(output_numpy=True)]

    rows = NumpySlicesDataset({"x": np.arange(12), "y": np.arange(12) * 2}, shuffle=False)
    assert values(rows.filter(lambda x: x % 3 == 0, "x").skip(1).take(2)) == [3, 6]
    assert values(rows.filter(lambda x, y: x + y > 27)) == [10, 11] and values(rows.take()) == list(range(12))
    assert values(rows.take(2).repeat(2)) == [0, 1, 0, 1] and values(rows.take(2) + rows.skip(10)) == [0, 1, 10, 11]
    assert values(rows.project("y").rename("y", "z").take(3).zip(rows.take(3)), "z") == [0, 2, 4]
    assert rows.rename(["x"], ["a"]).get_col_names() == ["a", "y"]
    assert values(rows.map([lambda x: x + 1, lambda x: x * 10], "x", "y").take(2), "y") == [10, 20]
    left, right = rows.split([0.75, 0.25])
    assert sorted(values(left) + values(right)) == list(range(12)) and left.get_dataset_size() == 9
    twice = rows.batch(5).repeat(2)
    assert [len(x) for x, _ in twice] == [5, 5, 2] * 2 and twice.get_dataset_size() == 6
    with pytest.raises(ValueError, match="before batch"):
        twice.map(lambda x: x)


def test_every_pass_has_an_order_of_its_own_and_a_seed_brings_all_back() -> None:
    def passes() -> list[list[int]]:
        ms.set_seed(3)
        dataset = NumpySlicesDataset({"x": np.arange(20)}).batch(20)
        return [x.tolist() for _ in range(2) for (x,) in dataset.create_tuple_iterator(2, output_numpy=True)]

    found = passes()
    assert len({tuple(order) for order in found}) == 4 and all(sorted(order) == list(range(20)) for order in found)
    assert found == passes()
