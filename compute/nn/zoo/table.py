"""What the zoo knows of a model, and the table of its models."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from coterie.compute.ir import NDArray
from coterie.compute.nn.activations import ReLU
from coterie.compute.nn.initialisers import stream
from coterie.compute.nn.linear import Linear
from coterie.compute.nn.module import Module
from coterie.compute.nn.sequential import Flatten, Sequential
from coterie.compute.nn.zoo.dense import logistic_regression, mlp
from coterie.compute.nn.zoo.images import fedavg_cnn, lenet
from coterie.compute.nn.zoo.mobile import mobilenet
from coterie.compute.nn.zoo.residual import resnet
from coterie.compute.nn.zoo.sequences import char_gru, char_transformer
from coterie.compute.nn.zoo.wide_and_deep import WideAndDeep
from coterie.errors import ArgumentValueError

Task: TypeAlias = Literal["images", "rows", "text"]
TASKS: Mapping[Task, str] = {
    "images": "grey images of 28 by 28 pixels, ten classes; measured on MNIST",
    "rows": "rows of a table with numbers and categories, two classes; measured on Adult",
    "text": "the character after a window of 32; measured on Shakespeare",
}
"""What each task of the table is."""


@dataclass(frozen=True)
class Input:
    """What a model is given: arrays [B, *shape], float32, or int32 ids in 0 .. below - 1.

    below: None for float32; one number, or one for each place of the last axis.
    """

    shape: tuple[int, ...]
    below: int | tuple[int, ...] | None = None

    @property
    def dtype(self) -> str:
        """The array's dtype."""
        return "float32" if self.below is None else "int32"

    def example(self, batch: int, name: str = "x") -> NDArray:
        """An array that a model can digest, always the same for a batch and a name: [batch, *shape]."""
        raw = stream(0, name).random_raw(batch * int(np.prod(self.shape, dtype=np.int64)))
        raw = raw.reshape((batch, *self.shape))
        if self.below is None:
            return ((raw >> np.uint64(40)).astype(np.float32) * 2.0**-23 - 1.0).astype(np.float32)
        return (raw % np.asarray(self.below, np.uint64)).astype(np.int32)


Inputs: TypeAlias = Input | Mapping[str, Input]
"""One input, or several by name."""


@dataclass(frozen=True)
class Entry:
    """A model of the zoo for one task.

    build: makes the model. inputs: what it takes. classes: how many logits it gives. source: where it comes from.
    """

    name: str
    task: Task
    build: Callable[[], Module]
    inputs: Inputs
    classes: int
    source: str

    @property
    def parameters(self) -> int:
        """How many numbers the model learns."""
        return self.build().count()


IMAGE = Input((1, 28, 28))
WINDOW, CHARACTERS = 32, 62
# The columns of Adult: six of numbers, and eight of categories with the values found in its training part.
NUMBERS = 6
VOCABULARIES = (9, 16, 7, 15, 6, 5, 2, 42)
_INDICATED = Input((NUMBERS + sum(VOCABULARIES),))
_MIXED = {"categories": Input((len(VOCABULARIES),), VOCABULARIES), "numbers": Input((NUMBERS,))}
_TEXT = Input((WINDOW,), CHARACTERS)


def _mlp_of_images() -> Sequential:
    return Sequential(Flatten(), Linear(784, 128), ReLU(), Linear(128, 10))


def _wide_and_deep() -> WideAndDeep:
    # Education with occupation, and marital status with relationship: two of the pairs that interact.
    return WideAndDeep(VOCABULARIES, NUMBERS, 2, crosses=((1, 3), (2, 4)))


ENTRIES: tuple[Entry, ...] = (
    Entry("logistic_regression", "images", lambda: logistic_regression(784, 10), IMAGE, 10, "Cox 1958"),
    Entry("mlp", "images", _mlp_of_images, IMAGE, 10, "Rumelhart et al. 1986"),
    Entry("lenet", "images", lenet, IMAGE, 10, "LeCun et al. 1998"),
    Entry("fedavg_cnn", "images", fedavg_cnn, IMAGE, 10, "McMahan et al. 2017"),
    Entry("resnet", "images", resnet, IMAGE, 10, "He et al. 2016; Wu and He 2018"),
    Entry("mobilenet", "images", mobilenet, IMAGE, 10, "Sandler et al. 2018"),
    Entry(
        "logistic_regression", "rows", lambda: logistic_regression(_INDICATED.shape[0], 2), _INDICATED, 2, "Cox 1958"
    ),
    Entry("mlp", "rows", lambda: mlp((_INDICATED.shape[0], 64, 32, 2)), _INDICATED, 2, "Rumelhart et al. 1986"),
    Entry("wide_and_deep", "rows", _wide_and_deep, _MIXED, 2, "Cheng et al. 2016"),
    Entry("char_gru", "text", lambda: char_gru(CHARACTERS), _TEXT, CHARACTERS, "Cho et al. 2014"),
    Entry("char_transformer", "text", lambda: char_transformer(CHARACTERS), _TEXT, CHARACTERS, "Vaswani et al. 2017"),
)
"""The table, by task and from small to large."""


def entries(task: Task) -> tuple[Entry, ...]:
    """The models for a task. Raises ArgumentValueError naming the tasks for another one."""
    if task not in TASKS:
        raise ArgumentValueError(
            f"The zoo has no task {task!r}.", hint=f"Its tasks are {', '.join(TASKS)}: {'; '.join(TASKS.values())}."
        )
    return tuple(entry for entry in ENTRIES if entry.task == task)


def entry(task: Task, name: str) -> Entry:
    """One model of a task. Raises ArgumentValueError naming those that there are."""
    found = entries(task)
    for one in found:
        if one.name == name:
            return one
    raise ArgumentValueError(
        f"The zoo has no model {name!r} for {task}.", hint=f"It has {', '.join(one.name for one in found)}."
    )
