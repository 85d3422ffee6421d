"""A feature owner's program: it completes residuals under encryption, adds them up, and has its own sums opened."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.vertical.exchange import Hear, Side, Tell, unusable
from coterie.aggregation.vertical.linear import sums
from coterie.aggregation.vertical.linear.batches import (
    batches_of,
    check_batches,
    check_columns,
    largest_batch,
    parts_of_batch,
)
from coterie.aggregation.vertical.linear.columns import Standard, standard_of
from coterie.aggregation.vertical.linear.label_side import MOST_COLUMNS
from coterie.aggregation.vertical.linear.links import LINKS
from coterie.aggregation.vertical.linear.messages import place_of
from coterie.aggregation.vertical.linear.model import Coefficients, Curvature, curvature_of, start, step
from coterie.aggregation.vertical.linear.terms import LinearTerms
from coterie.errors import ArgumentValueError
from coterie.privacy.he.batches import CipherPool
from coterie.privacy.he.key_arrays import public_key
from coterie.privacy.he.keys import PaillierPublicKey, check_public_key
from coterie.privacy.he.wire import Ciphers, check_ciphers
from coterie.randomness import derive, stream

_MASK_BYTES = 8


@dataclass(frozen=True, eq=False)
class Opening:
    """What the label owner has told before the first step.

    used: rows that are trained on, in the order in which batches take them.
    columns: of the label owner, with the intercept.
    second: the curvature of the loss by a score.
    """

    key: PaillierPublicKey
    used: NDArray[np.int64]
    columns: int
    second: float


@dataclass(frozen=True, eq=False)
class FeatureData:
    """The feature owner's rows as a model takes them. rows: ``[used, columns]``."""

    standard: Standard
    rows: NDArray[np.float64]
    curvature: Curvature

    def start(self) -> Coefficients:
        """The coefficients before the first step."""
        return start(self.rows.shape[1])


def feature_data(
    terms: LinearTerms, columns: dict[str, NDArray[np.float64]], rows: int, used: NDArray[np.int64], second: float
) -> FeatureData:
    """columns: ``[rows]`` each. used, second: as of `Opening`."""
    standard = standard_of(columns, used, rows)
    own = standard.apply(columns, rows)[used]
    check_columns(terms, own, standard.names, terms.feature_owner)
    penalty = np.full(own.shape[1], terms.l2)
    return FeatureData(standard, own, curvature_of(own, np.ones(len(own)), second, penalty))


@dataclass(frozen=True, eq=False)
class LinearFeatureSetting:
    """What a feature owner works with in a training.

    seed: 32 bytes that nobody else knows. pool: of the label owner's key.
    """

    terms: LinearTerms
    role: str
    opening: Opening
    data: FeatureData
    seed: bytes = field(repr=False)
    pool: CipherPool


def open_feature_side(terms: LinearTerms, columns: int, rows: int) -> Side[Opening]:
    """Hear the key, the rows and the curvature, and tell how many columns there are. rows: of this role's table."""
    owner, place = terms.label_owner, place_of("opening")
    heard = yield Hear(owner, (place,), terms.key_bits + 4 * rows + 64)
    arrays = heard.arrays
    key = public_key(arrays)
    check_public_key(key, owner, terms.key_bits)
    used = arrays["rows"].astype(np.int64)
    if not len(used) or used.min() < 0 or used.max() >= rows or len(np.unique(used)) != len(used):
        unusable(owner, place, f"numbers of rows that are twice there, or beyond {rows}")
    own, second = arrays["columns"], arrays["curvature"]
    if own.shape != (1,) or not 1 <= own[0] <= MOST_COLUMNS or second.shape != (1,) or not 0 < second[0] < np.inf:
        unusable(owner, place, "no number of columns, or no curvature")
    yield Tell(owner, place_of("columns"), {"count": np.array([columns], np.int32)})
    check_batches(terms, len(used), {terms.feature_owner: columns, owner: int(own[0]) - 1})
    return Opening(key, used, int(own[0]), float(second[0]))


def step_feature_side(setting: LinearFeatureSetting, now: Coefficients) -> Side[Coefficients]:
    """Take part in the next step."""
    terms, opening, data, pool = setting.terms, setting.opening, setting.data, setting.pool
    owner, number, link = terms.label_owner, now.steps, LINKS[setting.terms.link]
    batches = batches_of(terms, len(opening.used))
    batch = batches[number % len(batches)]
    layout = sums.layout_for(pool.public, link, largest_batch(terms, len(opening.used)), opening.columns)
    totals: list[Ciphers] = []
    for part, rows in enumerate(parts_of_batch(batch)):
        place = place_of("residuals", number, part)
        count = (rows.stop - rows.start) * (1 + link.products)
        heard = yield Hear(owner, (place,), count * len(layout.groups) * pool.public.width)
        ciphers = check_ciphers(heard.arrays["ciphers"], pool.public, f"{owner}'s {place}", pool.arithmetic)
        if len(ciphers) != count * len(layout.groups):
            unusable(owner, place, f"{len(ciphers)} ciphertexts, where {count * len(layout.groups)} are the rows'")
        totals.append(_summed(setting, now, rows, ciphers.reshape(len(layout.groups), count, -1)))
    summed = pool.add(*totals)
    own, mine = summed[: len(layout.groups)], summed[len(layout.groups) :]
    masks = _masks(layout, len(mine), derive(setting.seed, f"masks {number}"))
    said = {
        "own": pool.blind(own, [0] * len(own), derive(setting.seed, f"own {number}")),
        "masked": pool.blind(mine, list(map(layout.packing.pack, masks)), derive(setting.seed, f"masked {number}")),
    }
    yield Tell(owner, place_of("sums", number), said)
    place = place_of("opened", number)
    heard = yield Hear(owner, (place,), len(mine) * pool.public.width)
    try:
        opened = sums.from_bytes(heard.arrays["sums"], layout)
    except ArgumentValueError:
        unusable(owner, place, "no sums of this key")
    if len(opened) != len(mine):
        unusable(owner, place, f"{len(opened)} sums for {len(mine)} columns")
    found = [total - mask[0] for total, mask in zip(opened, masks, strict=True)]
    if max(map(abs, found)) > layout.mask >> sums.MASK_BITS:
        unusable(owner, place, "a sum that is larger than all rows together")
    gradient = sums.means(found, sums.THEIR_BITS, batch.stop - batch.start)
    return step(terms, data.curvature, now, gradient, setting.role)


def _summed(setting: LinearFeatureSetting, now: Coefficients, rows: slice, ciphers: Ciphers) -> Ciphers:
    """The label owner's sums over some rows, of each group of its columns; then this role's. ciphers: by group."""
    link, of_rows = LINKS[setting.terms.link], setting.data.rows[rows]
    left = link.left(of_rows @ now.values)
    weights = np.hstack([np.ones((len(left), 1), np.int64), left])
    ones = np.ones((len(left), 1), np.int64)
    first, *others = ciphers
    both = setting.pool.combine_rows(first, weights, np.hstack([ones, sums.whole_columns(of_rows)]))
    rest = [setting.pool.combine_rows(group, weights, ones) for group in others]
    return np.concatenate([both[:1], *rest, both[1:]])


def _masks(layout: sums.SlotLayout, count: int, seed: bytes) -> list[list[int]]:
    """A number for each slot that a sum may be in, below the mask's bound."""
    slots, width = layout.groups[0].stop, layout.mask.bit_length() // 8 + _MASK_BYTES
    found: list[list[int]] = []
    for number in range(count):
        data = stream(seed, number * slots * width, (number + 1) * slots * width)
        whole = [int.from_bytes(data[at : at + width], "little") for at in range(0, len(data), width)]
        found.append([value % (2 * layout.mask) - layout.mask for value in whole])
    return found
