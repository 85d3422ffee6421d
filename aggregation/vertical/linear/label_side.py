"""The label owner's program: it encrypts its side of residuals, reads sums over a batch, and opens masked ones."""

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
from coterie.aggregation.vertical.linear.links import LINKS, LinearLink
from coterie.aggregation.vertical.linear.messages import place_of
from coterie.aggregation.vertical.linear.model import Coefficients, Curvature, curvature_of, start, step
from coterie.aggregation.vertical.linear.terms import LinearTerms
from coterie.errors import ArgumentValueError
from coterie.privacy.he.batches import CipherPool
from coterie.privacy.he.key_arrays import public_arrays
from coterie.privacy.he.wire import check_ciphers
from coterie.randomness import derive, long_words

MOST_COLUMNS = 65_536


@dataclass(frozen=True, eq=False)
class LabelData:
    """The label owner's rows as a model takes them.

    used: rows that are trained on, in the order in which batches take them.
    rows: ``[used, columns]``, the intercept's 1 first. labels: ``[used]``, in units of ``unit``.
    weights: ``[used]``, with mean 1.
    unit: what labels were moved by and divided by.
    """

    link: LinearLink
    standard: Standard
    used: NDArray[np.int64]
    rows: NDArray[np.float64]
    labels: NDArray[np.float64]
    weights: NDArray[np.float64]
    unit: tuple[float, float]

    @property
    def second(self) -> float:
        """The curvature of the loss by a score, which the feature owner is told."""
        return self.link.curvature(self.labels)

    def curvature(self, l2: float) -> Curvature:
        """Of the label owner's own coefficients."""
        penalty = np.full(self.rows.shape[1], l2)
        penalty[0] = 0.0
        return curvature_of(self.rows, self.weights, self.second, penalty)

    def start(self) -> Coefficients:
        """The coefficients before the first step."""
        return start(self.rows.shape[1], self.link.start(self.labels))

    def parts(self, now: Coefficients, rows: slice, role: str) -> NDArray[np.int64]:
        """What is encrypted of rows, by place in ``used``."""
        of_rows = self.rows[rows]
        right = self.link.right(of_rows @ now.values, self.labels[rows])
        return sums.parts_of(right, self.weights[rows], of_rows, now.steps, role)


def label_data(
    terms: LinearTerms,
    columns: dict[str, NDArray[np.float64]],
    labels: NDArray[np.float64],
    weights: NDArray[np.float64],
    held_out: NDArray[np.bool_],
    seed: bytes,
) -> LabelData:
    """weights: ``[rows]``, or empty. seed: the order of rows is drawn of it."""
    link = LINKS[terms.link]
    rows = np.flatnonzero(~held_out)
    used = rows[np.argsort(long_words(derive(seed, "order"), 0, len(rows)), kind="stable")]
    standard = standard_of(columns, used, len(labels))
    own = standard.apply(columns, len(labels))[used]
    check_columns(terms, own, standard.names, terms.label_owner)
    middle, scale = link.unit(labels[used])
    given = weights[used] if len(weights) else np.ones(len(used))
    return LabelData(
        link,
        standard,
        used,
        np.hstack([np.ones((len(used), 1)), own]),
        (labels[used] - middle) / scale,
        given / given.mean(),
        (middle, scale),
    )


@dataclass(frozen=True, eq=False)
class LinearLabelSetting:
    """What the label owner works with in a training. seed: 32 bytes that nobody else knows. pool: of its key."""

    terms: LinearTerms
    data: LabelData
    curvature: Curvature
    seed: bytes = field(repr=False)
    pool: CipherPool


def open_label_side(setting: LinearLabelSetting) -> Side[Coefficients]:
    """Tell the key, the rows and the curvature, and hear how many columns the partner has."""
    partner, data = setting.terms.feature_owner, setting.data
    said = {
        **public_arrays(setting.pool.public),
        "rows": data.used.astype(np.int32),
        "columns": np.array([data.rows.shape[1]], np.int32),
        "curvature": np.array([data.second]),
    }
    yield Tell(partner, place_of("opening"), said)
    place = place_of("columns")
    heard = yield Hear(partner, (place,), 64)
    count = heard.arrays["count"]
    if count.shape != (1,) or not 1 <= count[0] <= MOST_COLUMNS:
        unusable(partner, place, "no number of columns")
    own = data.rows.shape[1] - 1
    check_batches(setting.terms, len(data.used), {partner: int(count[0]), setting.terms.label_owner: own})
    return data.start()


def step_label_side(setting: LinearLabelSetting, now: Coefficients) -> Side[Coefficients]:
    """Take part in the next step."""
    terms, data, pool = setting.terms, setting.data, setting.pool
    partner, owner, number = terms.feature_owner, terms.label_owner, now.steps
    batches = batches_of(terms, len(data.used))
    batch = batches[number % len(batches)]
    layout = sums.layout_for(pool.public, data.link, largest_batch(terms, len(data.used)), data.rows.shape[1])
    for part, rows in enumerate(parts_of_batch(batch)):
        plain = sums.pack_parts(data.parts(now, rows, owner), layout)
        ciphers = pool.encrypt(plain, derive(setting.seed, f"residuals {number} {part}"))
        yield Tell(partner, place_of("residuals", number, part), {"ciphers": ciphers})
    place = place_of("sums", number)
    heard = yield Hear(partner, (place,), (len(layout.groups) + MOST_COLUMNS) * pool.public.width)
    told = f"{partner}'s {place}"
    own, masked = (check_ciphers(heard.arrays[name], pool.public, told, pool.arithmetic) for name in ("own", "masked"))
    if len(own) != len(layout.groups) or not 1 <= len(masked) <= MOST_COLUMNS:
        unusable(partner, place, f"{len(own)} and {len(masked)} ciphertexts")
    try:
        totals = sums.unpack_sums(pool.decrypt(own), layout)
        opened = [sums.first_sum(plain, layout) for plain in pool.decrypt(masked)]
    except ArgumentValueError:
        unusable(partner, place, "a ciphertext that holds no sum")
    yield Tell(partner, place_of("opened", number), {"sums": sums.to_bytes(opened, layout)})
    gradient = sums.means(totals, sums.OWN_BITS, batch.stop - batch.start)
    return step(terms, setting.curvature, now, gradient, owner)
