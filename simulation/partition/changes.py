"""What makes clients' rows differ though they were drawn alike: noise, turned images, wrong labels.

Each is a value that knows what it does to the k-th of n clients, and is a function of its seed alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.protocol.arrays import ArraysByName
from coterie.protocol.canonical import sha256_hex
from coterie.simulation.partition.checks import Change, real, refuse, require, whole


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Feature shift: Gaussian noise whose variance grows from client to client, for the k-th of n clients
    ``variance * (k + 1) / n``.

    That is the noise-based feature imbalance of Li et al. (2022, NIID-Bench).
    feature: the array's name. Whole numbers are rounded and kept within what their type holds.
    """

    feature: str
    variance: float
    seed: int

    def __post_init__(self) -> None:
        require(
            0 <= real(self.variance, "the variance of noise") < np.inf,
            f"the variance of noise must be finite and not negative: {self.variance}",
        )
        whole(self.seed, "the seed of noise")

    def apply(self, rows: ArraysByName, client: int, clients: int) -> dict[str, NDArray[Any]]:
        """The client's rows with noise."""
        array = _array(rows, self.feature)
        require(array.dtype.kind in "iuf", f"{self.feature!r} must hold real numbers to be noised, not {array.dtype}")
        deviation = float(np.sqrt(self.variance * (client + 1) / clients))
        noisy = array + _stream(self.seed, "noise", client).normal(0.0, deviation, array.shape)
        return {**rows, self.feature: _cast(noisy, array.dtype)}

    def to_json(self) -> dict[str, Any]:
        """``{"change": "noise", …}``"""
        return {"change": "noise", **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class Turns:
    """Feature shift: the k-th client's images are turned by ``k mod turns`` quarter turns, counter-clockwise.

    That is rotated MNIST as Ghosh et al. (2020, IFCA) cluster it: with 2, half of the clients see digits on their
    heads; with 4, there are four groups.
    feature: images ``[rows, height, width, …]``, square for odd turns.
    """

    feature: str
    turns: int = 4

    def apply(self, rows: ArraysByName, client: int, clients: int) -> dict[str, NDArray[Any]]:
        """The client's rows with turned images."""
        array = _array(rows, self.feature)
        require(array.ndim >= 3, f"{self.feature!r} must be images [rows, height, width, …], not {list(array.shape)}")
        quarters = (client % self.turns) * (4 // self.turns)
        turned = np.rot90(array, quarters, axes=(1, 2))
        require(turned.shape == array.shape, f"{self.feature!r} must be square images to be turned by a quarter")
        return {**rows, self.feature: np.ascontiguousarray(turned)}

    def __post_init__(self) -> None:
        require(whole(self.turns, "turns") in (1, 2, 4), f"turns must be 1, 2 or 4, not {self.turns}")

    def to_json(self) -> dict[str, Any]:
        """``{"change": "turns", …}``"""
        return {"change": "turns", **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class LabelNoise:
    """Wrong labels: each label of a client is, at the client's rate, replaced by another class, all alike likely.

    Rates rise evenly from ``low`` at the first client to ``high`` at the last.
    label: the array's name.
    classes: how many there are, 0 .. classes-1.
    """

    label: str
    classes: int
    high: float
    low: float = 0.0
    seed: int

    def __post_init__(self) -> None:
        low, high = real(self.low, "the lowest rate"), real(self.high, "the highest rate")
        require(0 <= low <= high <= 1, f"rates must be 0 <= low <= high <= 1, not {self.low} and {self.high}")
        require(whole(self.classes, "classes") >= 2, f"label noise needs at least 2 classes, not {self.classes}")
        whole(self.seed, "the seed of label noise")

    def rate(self, client: int, clients: int) -> float:
        """The share of wrong labels to expect at this client."""
        return self.low + (self.high - self.low) * (client / (clients - 1) if clients > 1 else 1.0)

    def apply(self, rows: ArraysByName, client: int, clients: int) -> dict[str, NDArray[Any]]:
        """The client's rows with wrong labels among them."""
        labels = _array(rows, self.label)
        require(labels.dtype.kind in "biuf", f"{self.label!r} must hold classes as whole numbers, not {labels.dtype}")
        known = bool(((labels >= 0) & (labels < self.classes) & (labels == np.floor(labels))).all())
        require(known, f"{self.label!r} holds labels that are none of the {self.classes} classes from 0")
        draw = _stream(self.seed, "label_noise", client)
        wrong = draw.random(labels.shape) < self.rate(client, clients)
        others = (labels + draw.integers(1, self.classes, labels.shape)) % self.classes
        return {**rows, self.label: np.where(wrong, others, labels).astype(labels.dtype)}

    def to_json(self) -> dict[str, Any]:
        """``{"change": "label_noise", …}``"""
        return {"change": "label_noise", **asdict(self)}


def known_change(fields: Mapping[str, Any]) -> Change:
    """The change that `to_json` told of. Raises ConfigurationError (``partition_invalid``) for anybody else's."""
    kinds: Mapping[str, Callable[..., Change]] = {"noise": Noise, "turns": Turns, "label_noise": LabelNoise}
    name = str(fields.get("change"))
    require(name in kinds, f"the partition has the change {name!r}, which is not one of {', '.join(kinds)}")
    try:
        return kinds[name](**{key: value for key, value in fields.items() if key != "change"})
    except TypeError as error:
        raise refuse(f"the change {name!r} cannot be read: {error}") from error


def _array(rows: Mapping[str, NDArray[Any]], name: str) -> NDArray[Any]:
    require(name in rows, f"there is no array {name!r} to change, but {', '.join(rows) or 'none'}")
    return rows[name]


def _stream(seed: int, what: str, client: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(int(sha256_hex(f"{seed}/{what}/{client}".encode()), 16)))


def _cast(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    if dtype.kind not in "iu":
        return values.astype(dtype)
    bounds = np.iinfo(dtype)
    return np.clip(np.round(values), bounds.min, bounds.max).astype(dtype)
