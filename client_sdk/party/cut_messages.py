"""The numbers of one batch on their way over the cut: protected and compressed as the plan says, and read again."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.plan.session_manifest import RolePart
from coterie.aggregation.plan.shapes import PartShape
from coterie.aggregation.plan.stage import SAMPLE_WEIGHT, TaskName
from coterie.errors import InputError
from coterie.privacy.cut import embeddings, gradients
from coterie.protocol.arrays import ArraysByName
from coterie.protocol.cut import CutPolicy
from coterie.protocol.cut_tensors import read, types_of, written
from coterie.protocol.finite import all_finite
from coterie.protocol.tensors import TensorFile
from coterie.randomness import derive, uniforms


@dataclass(frozen=True)
class CutKeys:
    """Keys of one tensor of one batch, of a secret of the role.

    place: names the tensor and the batch, and no other.
    """

    secret: bytes
    place: str

    def key(self, purpose: str) -> bytes:
        """32 bytes for one purpose."""
        return derive(self.secret, f"{purpose} {self.place}")

    def draws(self, count: int) -> NDArray[np.float32]:
        """Uniform numbers in [0, 1), for rounding."""
        return uniforms(self.key("rounding"), 0, count)


def _embeddings(
    cut: CutPolicy, part: RolePart, values: NDArray[Any], batch: ArraysByName, keys: CutKeys
) -> NDArray[Any]:
    """Filling at the end of a batch is its first row again, and is sent as that is: of noise drawn anew, the recipient
    could take the mean.
    """
    if cut.embedding is None:
        return values
    real = _real(batch)
    sent = embeddings.protect(values[:real], cut.embedding, keys.key("noise"))
    return np.concatenate([sent, np.repeat(sent[:1], len(values) - real, axis=0)])


def _gradients(
    cut: CutPolicy, part: RolePart, values: NDArray[Any], batch: ArraysByName, keys: CutKeys
) -> NDArray[Any]:
    """Gradients of filling are zero, and stay so."""
    if cut.gradient is None:
        return values
    real = _real(batch)
    labels = batch[part.schema.label.name][:real]
    return np.concatenate([gradients.protect(values[:real], labels, cut.gradient, keys.key("noise")), values[real:]])


def _real(batch: ArraysByName) -> int:
    """How many rows of a batch count; the others fill it up, at its end."""
    return int((batch[SAMPLE_WEIGHT] > 0).sum())


_PROTECT: Mapping[PartShape, Callable[[CutPolicy, RolePart, NDArray[Any], ArraysByName, CutKeys], NDArray[Any]]] = {
    "split_features": _embeddings,
    "split_labels": _gradients,
}


def protected(cut: CutPolicy, part: RolePart, values: NDArray[Any], batch: ArraysByName, keys: CutKeys) -> NDArray[Any]:
    """What a role may send of its numbers for a batch, ``[B, …]``."""
    flat = values.reshape(len(values), -1)
    return _PROTECT[part.shape](cut, part, flat, batch, keys).reshape(values.shape)


def write_message(
    cut: CutPolicy, task: TaskName, key: str, values: NDArray[Any], keys: CutKeys
) -> Mapping[str, NDArray[Any]]:
    """The tensors that are sent. A training rounds at random, so that its steps are right on average."""
    return written(cut.compression, key, values, keys.draws if task == "train" else None)


def read_message(
    cut: CutPolicy, file: TensorFile, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, NDArray[np.float32]]:
    """The numbers of a message by key.

    shapes: of the keys that may come. Raises InputError (``malformed``) for anything that is not one of them whole.
    """
    types = {key: types_of(cut.compression, key, shape) for key, shape in shapes.items()}
    known = {name: key for key, each in types.items() for name in each}
    other = next((name for name in file.tensors if name not in known), None)
    for name, info in file.tensors.items():
        if name == other or (info.dtype.name, info.shape) != types[known[name]][name]:
            raise _malformed(f"{name} as {info.dtype}{list(info.shape)}, which the plan does not say")
    found: dict[str, NDArray[np.float32]] = {}
    for key in sorted({known[name] for name in file.tensors}):
        missing = next((name for name in types[key] if name not in file.tensors), None)
        if missing is not None:
            raise _malformed(f"{key} without {missing}")
        found[key] = read(cut.compression, key, {name: file.tensor(name) for name in types[key]}, shapes[key])
        if not all_finite(found[key].reshape(-1)):
            raise _malformed(f"{key} with numbers that are not finite")
    return found


def _malformed(what: str) -> InputError:
    return InputError(f"{what}.", code="malformed")
