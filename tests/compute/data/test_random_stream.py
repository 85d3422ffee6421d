"""Random numbers: the same everywhere, for they are found by counting."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from coterie.compute.data.random_stream import RandomStream


def test_random_numbers_are_known_and_depend_on_all_four_numbers() -> None:
    # Philox4x64-10 of the key and counter that the docstring names, as NumPy's raw stream gives it.
    first = np.random.Philox(key=np.array([5, 1], np.uint64), counter=np.array([0, 0, 3, 2], np.uint64)).random_raw(4)
    stream = RandomStream(5, 1, 2, 3)
    assert stream.words(4).tolist() == first.tolist() == [int(word) for word in RandomStream(5, 1, 2, 3).words(4)]
    others = [RandomStream(5, 1, 2, 4), RandomStream(5, 1, 3, 3), RandomStream(5, 2, 2, 3), RandomStream(6, 1, 2, 3)]
    assert len({int(other.words(1)[0]) for other in others} | {int(first[0])}) == 5


@given(
    st.integers(-(2**63), 2**64), st.integers(0, 2**40), st.integers(0, 2**63), st.integers(0, 2**63),
    st.lists(st.integers(0, 6), max_size=12),
)  # fmt: skip
def test_single_words_are_those_of_numpy_in_whatever_portions_they_are_drawn(
    seed: int, step: int, epoch: int, position: int, portions: list[int]
) -> None:
    """A portion of nothing stands for a single word."""
    key, counter = np.array([seed % 2**64, step], np.uint64), np.array([0, 0, position, epoch], np.uint64)
    stream, drawn = RandomStream(seed, step, epoch, position), list[int]()
    for portion in portions:
        drawn += stream.words(portion).tolist() if portion else [stream.word()]
    assert drawn == np.random.Philox(key=key, counter=counter).random_raw(len(drawn)).tolist()


def test_one_number_is_the_first_of_an_array() -> None:
    for position in range(50):
        alone, array = RandomStream(1, 2, 3, position), RandomStream(1, 2, 3, position)
        assert alone.uniform(-0.3, 1.7) == array.uniform(-0.3, 1.7, (1,))[0]


def test_random_numbers_lie_where_they_should() -> None:
    stream = RandomStream(0, 0, 0, 0)
    numbers = stream.uniform(-2.0, 3.0, (50, 40))
    assert numbers.shape == (50, 40) and numbers.min() >= -2 and numbers.max() < 3
    assert abs(numbers.mean() - 0.5) < 0.1  # 2000 numbers: three deviations
    counts = np.bincount([stream.integer(5) for _ in range(1000)], minlength=5)
    assert len(counts) == 5 and counts.min() > 150  # 200 expected, deviation 12.6
    assert isinstance(stream.uniform(), float)
