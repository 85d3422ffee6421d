"""A loop over one step in several lengths: the bits of plain runs, one state for all, and nothing that is copied."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from coterie.compute import numpy as xp
from coterie.compute import to_onnx, trace_named
from coterie.compute.autodiff import value_and_grad
from coterie.compute.runtime.executable import Executable
from coterie.compute.runtime.in_place import stepped_in_place
from coterie.compute.runtime.length_loop import LengthLoop, ShorterStep
from coterie.compute.runtime.slots import HostSlot
from coterie.compute.runtime.tensors import TensorInfo
from coterie.compute.trace import GraphInputs, TensorSpec
from coterie.errors import InputError
from tests.compute.providers.fakes import Copies, RecordedSlot

Arrays = Mapping[str, NDArray[Any]]
WIDTH, LONGEST, SHORTER = 8, 9, (2, 5)
CARRY = {"next/w": "w", "next/m": "m"}
CONSTANTS = {"lr": np.full(1, 0.05, np.float32)}
# Lengths of the rows of each batch: as it is, shorter than it is, changing with each step and not.
TAKEN = (9, 2, 1, 5, 5, 3, 9, 6, 2, 5, 2, 9)


def written(length: int, *, late: bool = False, width: int = WIDTH) -> bytes:
    """A step with momentum over rows [4, length]. late: whether a result reads the old momentum too."""

    def step(inputs: GraphInputs) -> dict[str, Any]:
        held = xp.reshape(inputs["x"], (4, length, 1))

        def objective(weights: Any) -> Any:
            return xp.mean(xp.tanh(xp.sum(held * weights[0:1], axis=1) @ weights) ** 2)

        loss, gradient = value_and_grad(objective)(inputs["w"])
        moment = 0.9 * inputs["m"] + gradient
        seen = loss + (xp.sum(inputs["m"]) if late else 0.0)
        return {"next/w": inputs["w"] - inputs["lr"] * moment, "next/m": moment, "loss": seen}

    specs = {
        "w": TensorSpec((width, width)), "m": TensorSpec((width, width)),
        "lr": TensorSpec((1,)), "x": TensorSpec((4, length)),
    }  # fmt: skip
    return to_onnx(trace_named(step, specs), name="step")


def start() -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=(WIDTH, WIDTH)).astype(np.float32) for name in ("w", "m")}


def batches(taken: Sequence[int] = TAKEN) -> list[NDArray[Any]]:
    rng = np.random.default_rng(1)
    found = rng.uniform(0.1, 1, (len(taken), 4, LONGEST)).astype(np.float32)
    for rows, length in zip(found, taken, strict=True):
        rows[:, length:] = 0
    return list(found)


class Desk:
    """Steps at all lengths, and what their loop took of memory and copied there."""

    def __init__(self, late: Sequence[int] = ()) -> None:
        self.copies, self.taken, self.loaded = Copies(), list[str](), list[int]()
        self.files = {length: written(length, late=length in late) for length in (*SHORTER, LONGEST)}
        self.loop = LengthLoop(
            self._loaded(LONGEST),
            [ShorterStep({"x": length}, self.files[length], lambda at=length: self._loaded(at)) for length in SHORTER],
            {"x": 0.0},
            carry=CARRY,
            constants=CONSTANTS,
            state=start(),
        )

    def _loaded(self, length: int) -> Executable:
        self.loaded.append(length)
        return Executable(self.files[length], memory=self._slot)

    def _slot(self, info: TensorInfo) -> RecordedSlot:
        self.taken.append(info.name)
        return RecordedSlot(HostSlot.make(info), self.copies, lambda: None)

    def by_hand(self, rows: Sequence[NDArray[Any]]) -> list[Arrays]:
        """What each step gives when state is fed back by hand, each batch at the shortest length that holds it."""
        steps = {length: Executable(data) for length, data in self.files.items()}
        state, found = start(), list[Arrays]()
        for batch in rows:
            longest = int(np.flatnonzero(batch.any(axis=0))[-1]) + 1
            length = next(each for each in (*SHORTER, LONGEST) if longest <= each)
            outputs = steps[length].run({**state, **CONSTANTS, "x": np.ascontiguousarray(batch[:, :length])})
            state = {into: outputs[source] for source, into in CARRY.items()}
            found.append(outputs)
        return found


# In none, in one, and in all of the steps a result reads momentum that another node replaces.
LATE: tuple[tuple[int, ...], ...] = ((), (2,), (LONGEST,), (2, 5, LONGEST))


@pytest.mark.parametrize("late", LATE, ids=str)
def test_each_step_has_the_bits_of_a_plain_run_at_its_length(late: tuple[int, ...]) -> None:
    desk = Desk(late)
    for _ in range(2):
        for rows, right in zip(batches(), desk.by_hand(batches()), strict=True):
            desk.loop.step({"x": rows})
            assert {name: value.tobytes() for name, value in desk.loop.read([*right]).items()} == {
                name: value.tobytes() for name, value in right.items()
            }
            state = desk.loop.state()
            assert all(state[into].tobytes() == right[source].tobytes() for source, into in CARRY.items())
        desk.loop.load(start(), constants=CONSTANTS)
    assert desk.loaded == [LONGEST, *SHORTER]


@pytest.mark.parametrize("late", LATE, ids=str)
def test_state_lies_once_and_is_in_place_where_all_lengths_prove_it(late: tuple[int, ...]) -> None:
    desk = Desk(late)
    lying = {length: stepped_in_place(data, CARRY) for length, data in desk.files.items()}
    assert {length for length, names in lying.items() if "m" not in names} == set(late)
    for rows in batches():
        desk.loop.step({"x": rows})
    sets = {name: 1 if all(name in names for names in lying.values()) else 2 for name in CARRY.values()}
    assert {name: desk.taken.count(name) for name in (*sets, "lr")} == {**sets, "lr": 1}
    assert desk.taken.count("x") == 3


def test_a_change_of_length_copies_nothing_and_a_new_start_copies_once() -> None:
    desk = Desk()
    for rows in batches():
        desk.loop.step({"x": rows})
    assert desk.copies.sent == {"w": 1, "m": 1, "lr": 1, "x": len(TAKEN)} and not desk.copies.fetched
    desk.loop.load(start(), constants=CONSTANTS)
    assert desk.copies.sent == {"w": 2, "m": 2, "lr": 2, "x": len(TAKEN)} and not desk.copies.fetched


def test_constants_that_are_loaded_reach_every_length() -> None:
    desk = Desk()
    for rows in batches():
        desk.loop.step({"x": rows})
    desk.loop.load(start(), constants={"lr": np.zeros(1, np.float32)})
    for rows in batches():
        desk.loop.step({"x": rows})
    assert desk.loop.state()["w"].tobytes() == start()["w"].tobytes()


def test_a_step_of_another_state_is_refused_by_name() -> None:
    """A file whose weights are wider; it is found when it is first needed, and the step is not taken."""
    other = written(2, width=WIDTH + 1)
    short = ShorterStep({"x": 2}, other, lambda: Executable(other))
    full = Executable(written(LONGEST))
    loop = LengthLoop(full, [short], {"x": 0.0}, carry=CARRY, constants=CONSTANTS, state=start())
    with pytest.raises(InputError, match=r"no input w: float32\[8, 8\], which it would share"):
        loop.step({"x": batches((2,))[0]})
    assert loop.state()["w"].tobytes() == start()["w"].tobytes()


SHORT = batches((2,))[0]


@pytest.mark.parametrize("feeds", [{}, {"x": SHORT, "y": SHORT}, {"x": np.concatenate([SHORT, SHORT])}], ids=len)
def test_feeds_that_the_full_length_does_not_take_are_refused_by_name(feeds: Arrays) -> None:
    """Rows beyond the batch too, which would be cut off without a word."""
    loop = Desk().loop
    with pytest.raises(InputError, match=r"step: .*'[xy]'"):
        loop.step(feeds)
    assert loop.state()["w"].tobytes() == start()["w"].tobytes()
