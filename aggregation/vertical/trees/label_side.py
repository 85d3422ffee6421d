"""The label owner's program: it encrypts gradients, reads sums, chooses splits and keeps the forest.

The same program with every party's columns at hand, and no partner, is central training on the joined table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import frexp

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.vertical.exchange import Hear, Side, Tell, unusable
from coterie.aggregation.vertical.trees import level as levels
from coterie.aggregation.vertical.trees.binning import BinnedColumns
from coterie.aggregation.vertical.trees.forest import LEAF, Forest, Node, OwnSplits
from coterie.aggregation.vertical.trees.histograms import BinSums, built_here, sum_bins
from coterie.aggregation.vertical.trees.level import Choice, NodeRows
from coterie.aggregation.vertical.trees.losses import LOSSES
from coterie.aggregation.vertical.trees.messages import from_bits, place_of, to_bits
from coterie.aggregation.vertical.trees.sampling import Sample, sample_rows
from coterie.aggregation.vertical.trees.splitting import BinLayout, Split, Totals, best_split, leaf_value
from coterie.aggregation.vertical.trees.terms import FRACTION_BITS, TreeTerms
from coterie.errors import ArgumentValueError
from coterie.privacy.he import fixed_point
from coterie.privacy.he.batches import CipherPool
from coterie.privacy.he.key_arrays import public_arrays
from coterie.privacy.he.packing import SlotPacking, packing_for
from coterie.privacy.he.wire import check_ciphers
from coterie.protocol.arrays import ArraysByName
from coterie.protocol.session_job import MOST_BINS
from coterie.randomness import derive

MOST_COLUMNS = 65_536


@dataclass(frozen=True, eq=False)
class LabelSetting:
    """What the label owner works with, the same for all trees of a training.

    labels: ``[rows]``.
    held_out: rows that no tree is grown on, ``[rows]``; their loss says when to stop.
    local: by party, the columns that are at hand: the label owner's own, and in central training all.
    seed: 32 bytes that nobody else knows.
    pool: of the label owner's key; None in central training.
    """

    terms: TreeTerms
    labels: NDArray[np.float64]
    held_out: NDArray[np.bool_]
    local: Mapping[str, BinnedColumns]
    seed: bytes = field(repr=False)
    pool: CipherPool | None = None

    @property
    def partners(self) -> tuple[str, ...]:
        """The parties whose columns are not at hand."""
        return tuple(role for role in self.terms.parties if role not in self.local)


@dataclass(frozen=True, eq=False)
class LabelState:
    """How far the label owner is.

    margins: ``[rows]``, of those held out too.
    best_margins: those after the best tree so far.
    layouts: of each partner's columns.
    splits: those that are chosen of columns at hand, by party.
    counts: how many splits are chosen of each party's columns.
    losses: the mean loss of each tree, on the rows trained on, and on those held out (NaN without any).
    over: whether growing has stopped before all trees are grown.
    """

    forest: Forest
    margins: NDArray[np.float64]
    best_margins: NDArray[np.float64]
    layouts: Mapping[str, BinLayout] = field(default_factory=dict[str, BinLayout])
    splits: Mapping[str, OwnSplits] = field(default_factory=dict[str, OwnSplits])
    counts: Mapping[str, int] = field(default_factory=dict[str, int])
    losses: tuple[tuple[float, float], ...] = ()
    over: bool = False


@dataclass(frozen=True, eq=False)
class _Growing:
    """A node of the level that is grown now. number: in the tree. sums: of each party's bins."""

    number: int
    rows: NodeRows
    totals: Totals
    sums: Mapping[str, BinSums]


def open_label_side(setting: LabelSetting) -> Side[LabelState]:
    """Tell partners the key and hear how many bins each of their columns has, once before the first tree."""
    layouts: dict[str, BinLayout] = {}
    if setting.pool is not None:
        said = public_arrays(setting.pool.public)
        for role in setting.partners:
            yield Tell(role, place_of("opening"), said)
    for role in setting.partners:
        place = place_of("columns")
        heard = yield Hear(role, (place,), 5 * MOST_COLUMNS)
        counts, missing = heard.arrays["bins"], heard.arrays["missing"]
        most = setting.terms.bins + 1
        if len(counts) != len(missing) or len(counts) > MOST_COLUMNS:
            unusable(role, place, "columns that do not fit together")
        if not ((counts >= 1) & (counts <= min(most, MOST_BINS + 1)) & (missing <= 1)).all():
            unusable(role, place, f"a column with no bin, or with more than {most}")
        layouts[role] = [(int(count), bool(lacks)) for count, lacks in zip(counts, missing, strict=True)]
    start = LOSSES[setting.terms.loss].start(setting.labels[~setting.held_out])
    local = {role: OwnSplits() for role in setting.local}
    margins = np.full(len(setting.labels), start)
    return LabelState(
        Forest(start),
        margins,
        margins,
        layouts=layouts,
        splits=local,
        counts=dict.fromkeys(setting.terms.parties, 0),
    )


def grow_label_side(setting: LabelSetting, state: LabelState) -> Side[LabelState]:
    """Grow the next tree, or tell partners that there is none where the loss on rows held out says so."""
    terms, tree = setting.terms, len(state.forest.trees)
    if _is_over(terms, state):
        for role in setting.partners:
            yield Tell(role, place_of("over", tree))
        return replace(state, over=True)
    alone = tree < terms.trees_alone
    gradients, hessians = LOSSES[terms.loss].slopes(setting.labels, state.margins)
    sample = sample_rows(gradients, hessians, ~setting.held_out, terms, derive(setting.seed, f"sample {tree}"))
    bits = FRACTION_BITS - frexp(max(np.abs(sample.pairs).max(), 2.0**-100))[1]
    pairs = np.zeros((len(setting.labels), 2), np.int64)
    pairs[sample.rows] = fixed_point.encode(sample.pairs, bits)
    for role in setting.partners:
        if alone:
            yield Tell(role, place_of("own", tree))
    if setting.partners and not alone:
        told = _encrypted(setting, sample, pairs, tree)
        for role in setting.partners:
            yield Tell(role, place_of("gradients", tree), told)
    counted = np.zeros(len(setting.labels), np.bool_)
    counted[sample.rows] = True
    grown = _Tree(setting, state, tree, pairs, bits, counted, terms.parties[:1] if alone else terms.parties)
    return _with_tree(setting, (yield from grown.grow()), grown)


class _Tree:
    """One tree while it grows."""

    def __init__(
        self,
        setting: LabelSetting,
        state: LabelState,
        tree: int,
        pairs: NDArray[np.int64],
        bits: int,
        counted: NDArray[np.bool_],
        parties: Sequence[str],
    ) -> None:
        self._setting, self._tree, self._pairs, self._bits, self._counted = setting, tree, pairs, bits, counted
        self._local = [role for role in parties if role in setting.local]
        self._partners = [role for role in parties if role not in setting.local]
        self._parties = parties
        self._layouts = {
            **state.layouts,
            **{role: list(zip(binned.counts, binned.missing, strict=True)) for role, binned in setting.local.items()},
        }
        self.nodes: list[Node] = [Node()]
        self.margins = state.margins.copy()
        self.splits, self.counts = dict(state.splits), dict(state.counts)
        self.state = state

    def grow(self) -> Side[LabelState]:
        """Every level, and then the leaves."""
        rows: NodeRows = np.arange(len(self._counted))
        growing = [_Growing(0, rows, self._totals(rows), {})]
        for level in range(self._setting.terms.depth):
            growing = yield from self._sums(growing, level)
            chosen = [self._best(node) for node in growing]
            sides = yield from self._sides(growing, chosen, level)
            growing = self._next(growing, chosen, sides)
            if not growing:
                break
        for node in growing:
            self._end(node)
        return self.state

    def _sums(self, growing: Sequence[_Growing], level: int) -> Side[list[_Growing]]:
        """The same nodes with the sums of all parties' bins; ``sums`` holds their parents' before."""
        built = built_here([int(self._counted[node.rows].sum()) for node in growing])
        found: list[dict[str, BinSums]] = [{} for _ in growing]
        for role in self._local:
            for place in built:
                rows = growing[place].rows
                found[place][role] = sum_bins(self._setting.local[role], self._pairs, rows[self._counted[rows]])
        for role in self._partners:
            for place, sums in zip(built, (yield from self._heard_sums(role, len(built), level)), strict=True):
                found[place][role] = sums
        for place in built if level else ():
            for role in self._parties:
                found[place ^ 1][role] = growing[place].sums[role] - found[place][role]
        return [replace(node, sums=sums) for node, sums in zip(growing, found, strict=True)]

    def _heard_sums(self, role: str, nodes: int, level: int) -> Side[list[BinSums]]:
        pool, packing = self._cipher_tools()
        place = place_of("histograms", self._tree, level)
        bins = sum(count for count, _ in self._layouts[role])
        each = packing.slots // 2
        expected = -(-nodes * bins // each)
        heard = yield Hear(role, (place,), expected * pool.public.width)
        told = f"{role}'s {place}"
        ciphers = check_ciphers(heard.arrays["ciphers"], pool.public, told, pool.arithmetic)
        if len(ciphers) != expected:
            unusable(role, place, f"{len(ciphers)} ciphertexts, where {expected} hold the sums")
        numbers: list[int] = []
        for plain in pool.decrypt(ciphers):
            try:
                numbers += packing.unpack(plain, 2 * min(each, nodes * bins - len(numbers) // 2))
            except ArgumentValueError:
                unusable(role, place, "a ciphertext that holds no sums")
        if max(map(abs, numbers), default=0) > len(self._counted) << FRACTION_BITS:
            unusable(role, place, "sums that are larger than all rows together")
        # Column by column; of each its nodes; of each its bins; of each the gradient, then the hessian.
        flat = np.array(numbers, np.int64).reshape(-1, 2)
        parts: list[NDArray[np.int64]] = []
        at = 0
        for count, _ in self._layouts[role]:
            parts.append(flat[at : at + nodes * count].reshape(nodes, count, 2))
            at += nodes * count
        whole = np.concatenate([np.empty((nodes, 0, 2), np.int64), *parts], axis=1)
        return [np.ascontiguousarray(sums.T) for sums in whole]

    def _cipher_tools(self) -> tuple[CipherPool, SlotPacking]:
        pool = self._setting.pool
        if pool is None:
            raise ArgumentValueError("Partners need a key.", hint="Give a CipherPool.", code="public_key")
        return pool, row_packing(pool, len(self._counted))

    def _best(self, node: _Growing) -> tuple[str, Split] | None:
        """The best split of all parties, and whose it is."""
        best: tuple[str, Split] | None = None
        for role in self._parties:
            split = best_split(node.sums[role], self._layouts[role], node.totals, self._setting.terms, self._bits)
            if split is not None and (best is None or split.gain > best[1].gain):
                best = (role, split)
        return best

    def _sides(
        self, growing: Sequence[_Growing], chosen: Sequence[tuple[str, Split] | None], level: int
    ) -> Side[list[NDArray[np.bool_] | None]]:
        """Which rows of each node go left: of columns at hand now, of others as their owners say."""
        sides: list[NDArray[np.bool_] | None] = [None] * len(growing)
        for place, (node, choice) in enumerate(zip(growing, chosen, strict=True)):
            if choice is not None and choice[0] in self._setting.local:
                role, split = choice
                binned = self._setting.local[role]
                sides[place] = binned.goes_left(split.column, split.place, split.missing_left, node.rows)
                self.splits[role] = self.splits[role].with_split(binned, split.column, split.place, split.missing_left)
        last = level + 1 == self._setting.terms.depth
        owners = [None if choice is None else choice[0] for choice in chosen]
        own = to_bits(levels.joined([side for side in sides if side is not None]))
        for role in self._partners:
            told = {"choice": _choices(role, chosen, self._setting.local), "sides": own[:0] if last else own}
            yield Tell(role, place_of("splits", self._tree, level), told)
        for role in self._partners:
            theirs = [place for place, owner in enumerate(owners) if owner == role]
            if theirs:
                place = place_of("sides", self._tree, level)
                nodes = [growing[index].rows for index in theirs]
                count = sum(map(len, nodes))
                heard = yield Hear(role, (place,), -(-count // 8))
                bits = from_bits(heard.arrays["sides"], count, role, place)
                for index, side in zip(theirs, levels.cut(bits, nodes), strict=True):
                    sides[index] = side
        for role in self._partners:
            others = [
                side
                for side, owner in zip(sides, owners, strict=True)
                if side is not None and owner in self._partners and owner != role
            ]
            if others and not last:
                bits = to_bits(levels.joined(others))
                yield Tell(role, place_of("others", self._tree, level), {"sides": bits})
        return sides

    def _next(
        self,
        growing: Sequence[_Growing],
        chosen: Sequence[tuple[str, Split] | None],
        sides: Sequence[NDArray[np.bool_] | None],
    ) -> list[_Growing]:
        """The nodes of the next level; those that are not split end here."""
        found: list[_Growing] = []
        for node, choice, side in zip(growing, chosen, sides, strict=True):
            if choice is None or side is None:
                self._end(node)
                continue
            role, split = choice
            number = len(self.nodes)
            self.nodes[node.number] = Node(
                party=self._setting.terms.parties.index(role),
                number=self.counts[role],
                column=split.column,
                left=number,
                right=number + 1,
                gain=split.gain,
            )
            self.counts[role] += 1
            for offset, rows in enumerate((node.rows[side], node.rows[~side])):
                self.nodes.append(Node())
                found.append(_Growing(number + offset, rows, self._totals(rows), node.sums))
        return found

    def _end(self, node: _Growing) -> None:
        """A leaf."""
        value = leaf_value(node.totals, self._setting.terms, self._bits)
        self.nodes[node.number] = Node(party=LEAF, value=value)
        self.margins[node.rows] += value

    def _totals(self, rows: NodeRows) -> Totals:
        gradient, hessian = self._pairs[rows].sum(axis=0).tolist()
        return gradient, hessian


def row_packing(pool: CipherPool, rows: int) -> SlotPacking:
    """Slots that hold the sum of all rows. Both sides know it without being told."""
    return packing_for(pool.public, rows << FRACTION_BITS)


def _encrypted(setting: LabelSetting, sample: Sample, pairs: NDArray[np.int64], tree: int) -> ArraysByName:
    pool = setting.pool
    if pool is None:
        raise ArgumentValueError("Partners need a key.", hint="Give a CipherPool.", code="public_key")
    packing = row_packing(pool, len(setting.labels))
    plain = [packing.pack(pair) for pair in pairs[sample.rows].tolist()]
    ciphers = pool.encrypt(plain, derive(setting.seed, f"gradients {tree}"))
    return {"rows": sample.rows.astype(np.int32), "ciphers": ciphers}


def _choices(
    role: str, chosen: Sequence[tuple[str, Split] | None], local: Mapping[str, BinnedColumns]
) -> NDArray[np.int32]:
    """What one feature owner is told of each node."""
    told: list[Choice] = []
    for choice in chosen:
        if choice is None:
            told.append(Choice(levels.NOBODY))
        elif choice[0] == role:
            split = choice[1]
            told.append(Choice(levels.YOURS, split.column, split.place, int(split.missing_left)))
        else:
            told.append(Choice(levels.LABEL_OWNER if choice[0] in local else levels.OTHER))
    return np.array([(each.who, each.column, each.place, each.missing_left) for each in told], np.int32)


def _with_tree(setting: LabelSetting, state: LabelState, grown: _Tree) -> LabelState:
    each = LOSSES[setting.terms.loss].each(setting.labels, grown.margins)
    held = setting.held_out
    losses = (float(each[~held].mean()), float(each[held].mean()) if held.any() else float("nan"))
    found = replace(
        state,
        forest=replace(state.forest, trees=(*state.forest.trees, tuple(grown.nodes))),
        margins=grown.margins,
        splits=grown.splits,
        counts=grown.counts,
        losses=(*state.losses, losses),
    )
    is_best = best_tree(found) == len(state.losses)
    return replace(found, best_margins=grown.margins) if is_best else found


def _is_over(terms: TreeTerms, state: LabelState) -> bool:
    held = [loss for _, loss in state.losses]
    return terms.patience > 0 and len(held) - 1 - best_tree(state) >= terms.patience


def best_tree(state: LabelState) -> int:
    """The tree after which the loss on rows held out was least; the last one where none are held out."""
    held = [loss for _, loss in state.losses]
    if not held or np.isnan(held[-1]):
        return len(held) - 1
    return int(np.argmin(held))
