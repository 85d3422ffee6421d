"""What organisations with different columns pay: ciphertexts, and trees grown under encryption.

    python benchmarks/vertical.py --task paillier [--json] [--quick] [--bits 2048 3072]
    COTERIE_DATA=DIR python benchmarks/vertical.py --task trees [--json] [--quick] [--bits 2048] [--trees 64]

`paillier`: milliseconds of processor time of one encryption (by the public key, and by the key's owner), one addition
and one decryption, minima of blocks of calls; beside each the same of the library phe (with gmpy2), where it is
installed. The budgets are for 2048 bits.

`trees`: the default_credit data of FATE's examples (30 000 rows; the label owner has 13 columns and the label, the
feature owner 10), trees of depth 3 and at most 64 bins. `seconds` is the time of all trees, both parties one after the
other on this machine, over `--processes` processes each (`processor_seconds` is theirs together); with fewer `--trees`
than 64 both are worked out for 64 from these and from one tree alone, and `details` say so. `same_trees` is
the number of nodes in which those trees differ from the joined table's. `auc` is of training on the joined table, whose
trees are the same: on all rows trained on, and on a held-out third with 64 trees of the other rows, with XGBoost's
beside it where it is installed.
"""

import argparse
import gzip
import os
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from os import urandom
from pathlib import Path
from typing import Any

import numpy as np
from lines import Budget, Line, Peer, at_least, at_most, show
from numpy.typing import NDArray

from coterie.aggregation.vertical.trees.binning import BinnedColumns, bin_columns
from coterie.aggregation.vertical.trees.in_process import GrownTogether, grow_centrally, grow_together
from coterie.aggregation.vertical.trees.label_side import LabelState
from coterie.aggregation.vertical.trees.terms import TreeTerms
from coterie.aggregation.whole_metrics import auc
from coterie.privacy.he.fixed_base import WINDOW, window_for
from coterie.privacy.he.keys import PaillierPrivateKey, make_key
from coterie.privacy.he.paillier import Decryption, with_private, with_public

BUDGETS_MS = {"encrypt": 0.6, "add": 0.01, "decrypt": 5.0}
TREES, DEPTH, BINS = 64, 3, 64
CASES: dict[str, tuple[dict[str, Any], Budget]] = {
    "all_rows": ({}, at_most(900)),
    "goss": ({"top_share": 0.2, "other_share": 0.1}, at_most(400)),
}
Table = dict[str, NDArray[np.float64]]


def fastest(call: Callable[[], object], calls: int, blocks: int) -> float:
    """Milliseconds of processor time of one call: the least of several blocks."""
    found: list[float] = []
    for _ in range(blocks):
        start = time.process_time()
        for _ in range(calls):
            call()
        found.append((time.process_time() - start) / calls * 1e3)
    return min(found)


def paillier(bits: int, quick: bool) -> Iterator[Line]:
    """The figures of one size of keys."""
    blocks = 2 if quick else 15
    key = make_key(bits)
    window = WINDOW if quick else window_for(10**6)
    everybody, owner = with_public(key.public, window=window), with_private(key, window=window)
    decryption = Decryption(key)
    first, second = everybody.encrypt(12345, urandom), everybody.encrypt(-5, urandom)
    calls: dict[str, tuple[Callable[[], object], int]] = {
        "encrypt": (lambda: everybody.encrypt(12345, urandom), 50),
        "encrypt_by_owner": (lambda: owner.encrypt(12345, urandom), 50),
        "add": (lambda: everybody.add(first, second), 2000),
        "decrypt": (lambda: decryption.decrypt(first), 10),
    }
    others = peers(key)
    for name, (call, count) in calls.items():
        peer = others.get(name)
        beside = None if peer is None else fastest(peer, max(1, count // 10), 1 if quick else 5)
        limit = BUDGETS_MS.get(name)
        yield Line(
            f"paillier_{bits}_{name}",
            fastest(call, 2 if quick else count, blocks),
            "ms",
            None if peer is None else Peer("phe", beside),
            None if bits != 2048 or limit is None else at_most(limit),
        )


def peers(key: PaillierPrivateKey) -> dict[str, Callable[[], object]]:
    """The same calls of phe."""
    if find_spec("phe") is None:
        return {}
    phe: Any = import_module("phe.paillier")
    public = phe.PaillierPublicKey(key.public.modulus)
    private = phe.PaillierPrivateKey(public, key.p, key.q)
    one = public.encrypt(12345)
    return {
        "encrypt": lambda: public.raw_encrypt(12345),
        "add": lambda: one + one,
        "decrypt": lambda: private.raw_decrypt(one.ciphertext(be_secure=False)),
    }


def default_credit(folder: Path) -> tuple[Table, Table, NDArray[np.float64]]:
    """The label owner's columns, the feature owner's, and the labels, of the same rows."""

    def read(name: str) -> tuple[list[str], NDArray[np.float64]]:
        with gzip.open(folder / f"default_credit_hetero_{name}.csv.gz", "rt", encoding="utf-8") as file:
            names = file.readline().strip().split(",")
            return names, np.loadtxt(file, delimiter=",", ndmin=2)

    (guest_names, guest), (host_names, host) = read("guest"), read("host")
    if not np.array_equal(guest[:, 0], host[:, 0]):
        raise SystemExit("The rows of the two files are not about the same people.")
    own = {f"guest_{n}": guest[:, i] for i, n in enumerate(guest_names) if n not in ("id", "y")}
    other = {f"host_{n}": host[:, i] for i, n in enumerate(host_names) if n != "id"}
    return own, other, guest[:, guest_names.index("y")]


def trees(folder: Path, options: argparse.Namespace) -> Iterator[Line]:
    """The figures of trees."""
    own, other, labels = default_credit(folder)
    if options.quick:
        own, other = ({name: values[:200] for name, values in table.items()} for table in (own, other))
        labels = labels[:200]
    bits = options.bits[0]
    terms = TreeTerms(label_owner="guest", feature_owners=("host",), trees=TREES, depth=DEPTH, bins=BINS, key_bits=bits)
    binned = {"guest": bin_columns(own, BINS), "host": bin_columns(other, BINS)}
    grown = 1 if options.quick else options.trees
    key, seed = make_key(bits), urandom(32)
    for name in options.cases:
        changes, budget = CASES[name]
        asked = replace(terms, trees=grown, **changes)

        def timed(terms: TreeTerms) -> tuple[GrownTogether, float, float]:
            start, busy = time.perf_counter(), processor_seconds()
            made = grow_together(terms, binned, labels, key, seed=seed, processes=options.processes)
            return made, time.perf_counter() - start, processor_seconds() - busy

        apart, seconds, busy = timed(asked)
        if 1 < grown < TREES:
            # What is done once for all trees must not be taken 64 times.
            _, first, first_busy = timed(replace(asked, trees=1))
            more = (TREES - grown) / (grown - 1)
            seconds, busy = seconds + (seconds - first) * more, busy + (busy - first_busy) * more
        joined = grow_centrally(asked, binned, labels, seed=seed)
        yield Line(
            f"trees_{bits}_{name}_seconds",
            seconds,
            "s",
            budget=budget,
            details={
                "trees_grown": grown,
                "extrapolated": 1 < grown < TREES,
                "processor_seconds": busy,
                "rows": len(labels),
                "depth": DEPTH,
                "bins": BINS,
                "processes_of_each_party": options.processes,
                "megabytes_sent": sum(apart.sent.values()) / 1e6 * TREES / grown,
            },
        )
        yield Line(f"trees_{bits}_{name}_same_trees", differing(apart.owner, joined.owner), "nodes", budget=at_most(0))
    yield from quality(terms, binned, labels, own, other)


def processor_seconds() -> float:
    """Of this process and of those that it started and that have ended."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def differing(one: LabelState, other: LabelState) -> int:
    """Nodes in which two forests differ."""
    pairs = zip(one.forest.trees, other.forest.trees, strict=True)
    return sum(
        abs(len(first) - len(second)) + sum(a != b for a, b in zip(first, second, strict=False))
        for first, second in pairs
    )


def quality(
    terms: TreeTerms, binned: dict[str, BinnedColumns], labels: NDArray[np.float64], own: Table, other: Table
) -> Iterator[Line]:
    """AUC with and without the partner, on rows trained on and on others."""
    held = np.random.default_rng(0).random(len(labels)) < 1 / 3
    joined = grow_centrally(terms, binned, labels)
    yield Line("trees_auc_train_is_test", auc(joined.owner.margins, labels), "AUC", peer=xgboost(own, other, labels))
    apart = grow_centrally(terms, binned, labels, held_out=held)
    yield Line(
        "trees_auc_held_out",
        auc(apart.owner.margins[held], labels[held]),
        "AUC",
        peer=xgboost(own, other, labels, held),
        budget=at_least(0.77),
        details={"train": auc(apart.owner.margins[~held], labels[~held]), "rows_held_out": int(held.sum())},
    )
    lonely = grow_centrally(
        terms,
        {"guest": binned["guest"], "host": bin_columns({"none": np.zeros(len(labels))}, 2)},
        labels,
        held_out=held,
    )
    yield Line("trees_auc_held_out_label_owner_alone", auc(lonely.owner.margins[held], labels[held]), "AUC")


def xgboost(
    own: Table, other: Table, labels: NDArray[np.float64], held: NDArray[np.bool_] | None = None
) -> Peer | None:
    """The AUC of XGBoost's histogram trees on the joined table with the same terms."""
    if find_spec("xgboost") is None:
        return None
    library: Any = import_module("xgboost")
    table = np.stack([*own.values(), *other.values()], axis=1)
    train = np.ones(len(labels), np.bool_) if held is None else ~held
    test = train if held is None else held
    model = library.XGBClassifier(
        n_estimators=TREES, max_depth=DEPTH, learning_rate=0.3, max_bin=BINS, tree_method="hist", n_jobs=1
    ).fit(table[train], labels[train])
    return Peer("XGBoost", auc(model.predict_proba(table[test])[:, 1], labels[test]))


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Ciphertexts, and trees grown under encryption.")
    parser.add_argument("--task", choices=("paillier", "trees"), default="paillier")
    parser.add_argument("--bits", type=int, nargs="+", default=[2048])
    parser.add_argument("--trees", type=int, default=TREES)
    parser.add_argument("--cases", nargs="+", choices=tuple(CASES), default=list(CASES))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.task == "trees" and not os.environ.get("COTERIE_DATA"):
        raise SystemExit("Set COTERIE_DATA to the folder of data.")
    found = (
        (line for bits in options.bits for line in paillier(bits, options.quick))
        if options.task == "paillier"
        else trees(Path(os.environ["COTERIE_DATA"]), options)
    )
    for line in found:
        show(line, as_json=options.json)


if __name__ == "__main__":
    main()
