"""A feature owner's program: it adds up ciphertexts by the bins of its columns, and parts rows as it is told."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.vertical.exchange import ExchangePlace, Hear, Heard, Side, Tell, unusable
from coterie.aggregation.vertical.trees import level as levels
from coterie.aggregation.vertical.trees.binning import BinnedColumns
from coterie.aggregation.vertical.trees.forest import OwnSplits
from coterie.aggregation.vertical.trees.histograms import built_here
from coterie.aggregation.vertical.trees.label_side import row_packing
from coterie.aggregation.vertical.trees.level import Choice, NodeRows
from coterie.aggregation.vertical.trees.messages import from_bits, place_of, to_bits
from coterie.aggregation.vertical.trees.terms import TreeTerms
from coterie.errors import ArgumentValueError
from coterie.privacy.he.batches import CipherPool
from coterie.privacy.he.key_arrays import public_key
from coterie.privacy.he.keys import PaillierPublicKey, check_public_key
from coterie.privacy.he.wire import Ciphers, check_ciphers
from coterie.randomness import derive


@dataclass(frozen=True, eq=False)
class FeatureSetting:
    """What a feature owner works with, the same for all trees of a training.

    role: its own.
    seed: 32 bytes that nobody else knows.
    pool: of the label owner's key, once that is known.
    """

    terms: TreeTerms
    role: str
    binned: BinnedColumns
    seed: bytes = field(repr=False)
    pool: CipherPool | None = None


@dataclass(frozen=True)
class FeatureState:
    """How far a feature owner is.

    trees: that are grown.
    over: whether the label owner has stopped.
    """

    key: PaillierPublicKey
    trees: int = 0
    splits: OwnSplits = field(default_factory=OwnSplits)
    over: bool = False


def open_feature_side(setting: FeatureSetting) -> Side[FeatureState]:
    """Hear the key, and tell how many bins each column has, once before the first tree."""
    owner, terms = setting.terms.label_owner, setting.terms
    heard = yield Hear(owner, (place_of("opening"),), terms.key_bits)
    key = public_key(heard.arrays)
    check_public_key(key, owner, terms.key_bits)
    said = {
        "bins": np.array(setting.binned.counts, np.int32),
        "missing": np.array(setting.binned.missing, np.uint8),
    }
    yield Tell(owner, place_of("columns"), said)
    return FeatureState(key)


def grow_feature_side(setting: FeatureSetting, state: FeatureState) -> Side[FeatureState]:
    """Take part in the next tree, or hear that there is none."""
    owner, tree = setting.terms.label_owner, state.trees
    pool, rows = setting.pool, setting.binned.rows
    if pool is None:
        raise ArgumentValueError("Sums need the key.", hint="Give a CipherPool.", code="public_key")
    places = tuple(place_of(kind, tree) for kind in ("gradients", "own", "over"))
    heard = yield Hear(owner, places, rows * (pool.public.width + 4))
    if heard.place.name == "over":
        return replace(state, over=True)
    if heard.place.name == "own":
        return replace(state, trees=tree + 1)
    position, ciphers = _gradients(setting, heard, pool)
    splits = state.splits
    nodes: list[NodeRows] = [np.arange(rows)]
    for level in range(setting.terms.depth):
        yield _sums(setting, pool, nodes, position, ciphers, place_of("histograms", tree, level))
        place = place_of("splits", tree, level)
        heard = yield Hear(owner, (place,), 16 * len(nodes) + rows)
        choices = _choices(setting, heard, len(nodes))
        sides: list[NDArray[np.bool_] | None] = [None] * len(nodes)
        for index, choice in enumerate(choices):
            if choice.who == levels.YOURS:
                asked = (choice.column, choice.place, bool(choice.missing_left))
                sides[index] = setting.binned.goes_left(*asked, nodes[index])
                splits = splits.with_split(setting.binned, *asked)
        own = [side for side in sides if side is not None]
        if own:
            yield Tell(owner, place_of("sides", tree, level), {"sides": to_bits(levels.joined(own))})
        if level + 1 == setting.terms.depth:
            break
        _fill(sides, nodes, choices, levels.LABEL_OWNER, heard, owner)
        if any(choice.who == levels.OTHER for choice in choices):
            heard = yield Hear(owner, (place_of("others", tree, level),), rows)
            _fill(sides, nodes, choices, levels.OTHER, heard, owner)
        nodes = levels.part(nodes, sides)
        if not nodes:
            break
    return replace(state, trees=tree + 1, splits=splits)


def _gradients(setting: FeatureSetting, heard: Heard, pool: CipherPool) -> tuple[NDArray[np.int64], Ciphers]:
    """The ciphertexts, and of each row which is its own; -1 for a row that is left out."""
    owner, rows = setting.terms.label_owner, heard.arrays["rows"].astype(np.int64)
    ciphers = check_ciphers(heard.arrays["ciphers"], pool.public, f"{owner}'s {heard.place}", pool.arithmetic)
    if len(rows) != len(ciphers) or not len(rows):
        unusable(owner, heard.place, f"{len(ciphers)} ciphertexts for {len(rows)} rows")
    if rows[0] < 0 or rows[-1] >= setting.binned.rows or bool((np.diff(rows) <= 0).any()):
        unusable(owner, heard.place, f"numbers of rows that do not rise, or of more than {setting.binned.rows}")
    position = np.full(setting.binned.rows, -1, np.int64)
    position[rows] = np.arange(len(rows))
    return position, ciphers


def _sums(
    setting: FeatureSetting,
    pool: CipherPool,
    nodes: Sequence[NodeRows],
    position: NDArray[np.int64],
    ciphers: Ciphers,
    place: ExchangePlace,
) -> Tell:
    """The sums of the nodes that are built at a level, packed, and blinded so that they tell the sums alone."""
    counted = [rows[position[rows] >= 0] for rows in nodes]
    built = [counted[index] for index in built_here([len(rows) for rows in counted])]
    rows = np.concatenate(built)
    node = np.repeat(np.arange(len(built)), [len(each) for each in built])
    counts = setting.binned.counts
    groups = setting.binned.codes[rows].astype(np.int64) + node[:, None] * np.array(counts, np.int64)
    sums = pool.sum_groups(ciphers[position[rows]], groups, [count * len(built) for count in counts])
    whole = np.concatenate([np.empty((0, pool.public.width), np.uint8), *sums])
    packing = row_packing(pool, setting.binned.rows)
    packed = pool.join(whole, packing, 2, derive(setting.seed, f"{place}"))
    return Tell(setting.terms.label_owner, place, {"ciphers": packed})


def _choices(setting: FeatureSetting, heard: Heard, nodes: int) -> list[Choice]:
    owner, told = setting.terms.label_owner, heard.arrays["choice"]
    if told.shape != (nodes, 4):
        unusable(owner, heard.place, f"choices of shape {list(told.shape)} for {nodes} nodes")
    choices = [Choice(*row) for row in told.tolist()]
    binned = setting.binned
    for choice in choices:
        if not levels.NOBODY <= choice.who <= levels.OTHER or choice.missing_left not in (0, 1):
            unusable(owner, heard.place, "a choice of no kind that there is")
        if choice.who == levels.YOURS:
            if not 0 <= choice.column < len(binned.names):
                unusable(owner, heard.place, f"column {choice.column}, of {len(binned.names)}")
            last = len(binned.edges[choice.column]) - (not binned.missing[choice.column])
            if not 0 <= choice.place <= last:
                unusable(owner, heard.place, f"a place in column {choice.column} that it does not have")
    return choices


def _fill(
    sides: list[NDArray[np.bool_] | None],
    nodes: Sequence[NodeRows],
    choices: Sequence[Choice],
    who: int,
    heard: Heard,
    owner: str,
) -> None:
    """Put in the sides that a message brings, of the nodes of somebody's columns."""
    places = [index for index, choice in enumerate(choices) if choice.who == who]
    chosen = [nodes[index] for index in places]
    bits = from_bits(heard.arrays["sides"], sum(map(len, chosen)), owner, heard.place)
    for index, side in zip(places, levels.cut(bits, chosen), strict=True):
        sides[index] = side
