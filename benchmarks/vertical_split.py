"""A split network beside the same network on the joined table, and what compression and protections at its cut cost.

    COTERIE_DATA=DIR python benchmarks/vertical_split.py [--json] [--quick] [--data-sets breast default_credit]
        [--only joined compression protection] [--seeds 3]

DIR holds breast_hetero_{guest,host}.csv and default_credit_hetero_{guest,host}.csv.gz, two tables of the same rows
each: the guest has the label. Both sides run a part of 16 hidden units that ends in 8 numbers a row; the top has one
layer over them. Breast is measured by five folds, default_credit by one fifth held out; areas under the curve are means
over the seeds of first weights (and over the folds), on rows that were trained on and on those that were not.

    joined       the area of the split network (`VerticalRun`: the messages of a session, without a coordinator), of the
                 same network on all columns in one place (`Trainer`, from the same first weights, batches in the same
                 order), and of the guest's columns alone. The gap of split and joined on held-out rows may be 0.01.
    compression  bytes of all messages of a training, beside float32; the held-out area in the details
    protection   the held-out area, beside that without protection; what the attacks of `coterie.privacy.audit.cut`
                 make of the host's gradients (labels, by norm and direction: 0.5 is blind) and of its embeddings (its
                 columns, from 1000 known rows: 1 is all, 0 none) in the details. The last epoch is attacked.

Time is that of `VerticalRun.train`, both roles one after the other on one core.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from lines import Line, Peer, at_most, show
from numpy.typing import NDArray

from coterie.aggregation.vertical.compile import compile_split
from coterie.aggregation.vertical.split import FeatureRole, LabelRole, SplitNetwork
from coterie.client_sdk.party.role_work import RoleWork
from coterie.compute import nn, optim
from coterie.compute import numpy as xp
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.training import Trainer
from coterie.privacy.audit.cut import column_leak
from coterie.privacy.audit.membership import auc
from coterie.protocol.cut import CutPolicy, EmbeddingNoise, GradientNoise, RandomisedLabels
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.randomness import seed_of
from coterie.simulation import VerticalRun, simulate_vertical

GAP_BUDGET = at_most(0.01)
HIDDEN, WIDTH, KNOWN = 16, 8, 1000
FORMS = ("float16", "int8", "int4", "int2", "int1", "topk:0.25")
PROTECTIONS: Mapping[str, CutPolicy] = {
    "none": CutPolicy(),
    "max_norm": CutPolicy(gradient=GradientNoise(kind="max_norm")),
    "gaussian 1": CutPolicy(gradient=GradientNoise(kind="gaussian", scale=1.0)),
    "gaussian 4": CutPolicy(gradient=GradientNoise(kind="gaussian", scale=4.0)),
    "marvell 1": CutPolicy(gradient=GradientNoise(kind="marvell", scale=1.0)),
    "marvell 4": CutPolicy(gradient=GradientNoise(kind="marvell", scale=4.0)),
    "labels 2": CutPolicy(label=RandomisedLabels(epsilon=2.0)),
    "labels 1": CutPolicy(label=RandomisedLabels(epsilon=1.0)),
    "embeddings 0.2": CutPolicy(embedding=EmbeddingNoise(clip=1.0, deviation=0.2)),
    "embeddings 1": CutPolicy(embedding=EmbeddingNoise(clip=1.0, deviation=1.0)),
}

Arrays = NDArray[Any]


@dataclass(frozen=True)
class DataSet:
    """Two tables of the same rows. folds: into how many parts rows are cut, of which `tried` are held out in turn."""

    name: str
    guest: Arrays
    host: Arrays
    y: Arrays
    folds: int
    tried: int
    batch_size: int
    epochs: int
    rate: float

    def parts(self) -> Iterator[tuple[Arrays, Arrays]]:
        """Rows to train on and rows held out."""
        order = np.random.Generator(np.random.PCG64(0)).permutation(len(self.y))
        for fold in range(self.tried):
            held = np.zeros(len(order), bool)
            held[fold :: self.folds] = True
            yield order[~held], order[held]


def read(folder: Path, name: str, ending: str) -> tuple[Arrays, Arrays, Arrays]:
    """Columns of the guest and the host, and the label."""
    tables: list[Arrays] = []
    for side in ("guest", "host"):
        path = folder / f"{name}_hetero_{side}{ending}"
        if not path.is_file():
            sys.exit(f"There is no {path}. Set COTERIE_DATA to the folder that holds it.")
        table = np.loadtxt(path, delimiter=",", skiprows=1)
        tables.append(table[np.argsort(table[:, 0], kind="stable")])
    guest, host = tables
    if not np.array_equal(guest[:, 0], host[:, 0]):
        sys.exit(f"{folder}: the two tables of {name} are not about the same rows.")
    return guest[:, 2:].astype(np.float32), host[:, 1:].astype(np.float32), guest[:, 1].astype(np.int32)


def data_sets(folder: Path, names: list[str], *, quick: bool) -> Iterator[DataSet]:
    """Those that are asked for."""
    if "breast" in names:
        guest, host, y = read(folder, "breast", ".csv")
        yield DataSet("breast", guest, host, y, 5, 1 if quick else 5, 32, 2 if quick else 15, 0.01)
    if "default_credit" in names:
        guest, host, y = read(folder, "default_credit", ".csv.gz")
        some = slice(0, 3000 if quick else None)
        yield DataSet("default_credit", guest[some], host[some], y[some], 5, 1, 256, 1 if quick else 8, 0.003)


def bottom(columns: int) -> nn.Module:
    """A role's part."""
    return nn.Sequential(nn.Linear(columns, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH))


def top(roles: int) -> nn.Module:
    """What makes the prediction of embeddings."""
    return nn.Sequential(nn.Tanh(), nn.Linear(WIDTH * roles, 2))


def network(data: DataSet, cut: CutPolicy) -> SplitNetwork:
    """Of guest and host."""
    host = FeatureRole(
        role="host", features=(Feature(name="host", shape=data.host.shape[1:]),), model=bottom(data.host.shape[1])
    )
    guest = LabelRole(
        role="guest",
        schema=DataSchema((Feature(name="guest", shape=data.guest.shape[1:]),), Label(name="y", classes=(0, 1))),
        model=bottom(data.guest.shape[1]),
        top=top(2),
    )
    return SplitNetwork(
        name=data.name,
        features=(host,),
        labels=guest,
        loss=softmax_cross_entropy,
        optimizer=optim.adam(data.rate),
        batch_size=data.batch_size,
        epochs=data.epochs,
        evaluation_batch=4096,
        cut=cut,
    )


class Joined(nn.Module):
    """The parts of both sides and the top, in one place. columns: of each side, by the name of its feature."""

    def __init__(self, columns: Mapping[str, int]) -> None:
        self._parts = {name: bottom(count) for name, count in columns.items()} | {"top": top(len(columns))}

    def specs(self) -> dict[str, nn.ParameterSpec]:
        """Parameters of all parts."""
        return {f"{part}.{name}": spec for part, each in self._parts.items() for name, spec in each.specs().items()}

    def __call__(self, params: Any, x: Any, mode: Any = nn.EVAL) -> Any:
        """Logits. x: the columns of each side by name, or those of the only side."""
        sides = [name for name in self._parts if name != "top"]
        given = {sides[0]: x} if len(sides) == 1 else x

        def run(part: str, value: Any) -> Any:
            mine = {name: params[f"{part}.{name}"] for name in self._parts[part].specs()}
            return self._parts[part](mine, value)

        return run("top", xp.concat([run(name, given[name]) for name in sides], axis=1))


def area(logits: Arrays, y: Arrays) -> float:
    """Under the receiver's curve."""
    margin = logits[:, 1] - logits[:, 0]
    return auc(margin[y == 1].tolist(), margin[y == 0].tolist())


def split_areas(run: VerticalRun, data: DataSet, rows: Arrays) -> float:
    """Of the split network on some rows."""
    return area(run.predict({"guest": {"guest": data.guest[rows]}, "host": {"host": data.host[rows]}}), data.y[rows])


def labelled(data: DataSet, rows: Arrays) -> dict[str, dict[str, Arrays]]:
    """What both sides train on."""
    return {"guest": {"guest": data.guest[rows], "y": data.y[rows]}, "host": {"host": data.host[rows]}}


def trained(data: DataSet, cut: CutPolicy, rows: Arrays, seed: int) -> VerticalRun:
    """A split network trained on some rows."""
    return simulate_vertical(network(data, cut), labelled(data, rows), seed=seed)


def begun(data: DataSet, seed: int) -> tuple[VerticalRun, dict[str, Arrays]]:
    """A split network that is not trained yet, and its first weights by the names that `Joined` has for them."""
    plan = compile_split(network(data, CutPolicy()))
    secrets = {role: seed_of("vertical_split", str(seed), role) for role in plan.manifest.roles}
    first: dict[str, Arrays] = {}
    for role, secret in secrets.items():
        for name, value in RoleWork(plan, role, secret=secret, session="").first_tensors().items():
            part, _, inner = name.partition("/")
            if part != "optimizer":
                first[f"{role if part == 'model' else part}.{inner}"] = value
    return VerticalRun(plan, secrets), first


def in_one_place(
    data: DataSet, names: tuple[str, ...], train: Arrays, held: Arrays, first: Mapping[str, Arrays], seed: int
) -> tuple[float, float]:
    """Areas of a network over the columns of these sides: on the rows that it was trained on, and held out.

    first: weights to begin with. seed: of the order of batches, and of weights that are not given.
    """
    columns = {name: getattr(data, name) for name in names}
    model = Joined({name: array.shape[1] for name, array in columns.items()})
    trainer = Trainer(
        model, softmax_cross_entropy, optim.adam(data.rate), batch_size=data.batch_size, seed=seed, initial=first
    )
    trainer.fit({**{name: array[train] for name, array in columns.items()}, "y": data.y[train]}, data.epochs)

    def of(rows: Arrays) -> float:
        given = {name: xp.asarray(array[rows]) for name, array in columns.items()}
        params = {name: xp.asarray(value) for name, value in trainer.params.items()}
        return area(np.asarray(model(params, given if len(given) > 1 else next(iter(given.values())))), data.y[rows])

    return of(train), of(held)


def joined(data: DataSet, seeds: int) -> Iterator[Line]:
    """The split network beside the joined one."""
    found: dict[str, list[float]] = {}
    seconds = 0.0
    for train, held in data.parts():
        for seed in range(seeds):
            run, first = begun(data, seed)
            began = time.monotonic()
            run.train(labelled(data, train))
            seconds += time.monotonic() - began
            found.setdefault("split, train", []).append(split_areas(run, data, train))
            found.setdefault("split", []).append(split_areas(run, data, held))
            order = run.plan.manifest.training.seed
            both = in_one_place(data, ("guest", "host"), train, held, first, order)
            alone = in_one_place(data, ("guest",), train, held, {}, seed)
            for name, (seen, unseen) in (("joined", both), ("alone", alone)):
                found.setdefault(f"{name}, train", []).append(seen)
                found.setdefault(name, []).append(unseen)
    means = {name: round(float(np.mean(values)), 4) for name, values in found.items()}
    spread = round(float(np.std(found["split"])), 4)
    details = {**means, "deviation": spread, "epochs": data.epochs, "runs": len(found["split"])}
    yield Line(f"{data.name}, held out", means["split"], "AUC", Peer("joined", means["joined"]), details=details)
    signed = float(np.mean(found["split"]) - np.mean(found["joined"]))
    yield Line(f"{data.name}, gap", abs(signed), "AUC", None, GAP_BUDGET, {"signed": round(signed, 5)})
    epochs = data.epochs * len(found["split"])
    yield Line(f"{data.name}, epoch", seconds / epochs, "s", details={"rows": len(next(data.parts())[0])})


def compression(data: DataSet, seeds: int) -> Iterator[Line]:
    """Bytes of each form beside float32."""
    train, held = next(data.parts())
    plain = 0
    for form in ("float32", *FORMS):
        runs = [trained(data, CutPolicy(compression=form), train, seed) for seed in range(seeds)]
        sent = sum(each.size for each in runs[0].traffic.values())
        plain = plain or sent
        details = {"held out": round(float(np.mean([split_areas(run, data, held) for run in runs])), 4)}
        yield Line(f"{data.name}, {form}", sent / 1e6, "MB", Peer("float32", plain / 1e6), details=details)


def protection(data: DataSet, seeds: int) -> Iterator[Line]:
    """Utility of each protection beside what attacks find."""
    train, held = next(data.parts())
    plain: float | None = None
    for name, cut in PROTECTIONS.items():
        runs = [trained(data, cut, train, seed) for seed in range(seeds)]
        leaks = [run.label_leak("host") for run in runs]
        seen = [run.seen("host", "guest", "embedding") for run in runs]
        columns = data.host[train]
        known = min(KNOWN, len(train) // 2)
        told = [column_leak(each.values, columns[each.rows], known=known) for each in seen]
        found = float(np.mean([split_areas(run, data, held) for run in runs]))
        plain = found if plain is None else plain
        details = {
            "norm": round(float(np.mean([leak.norm for leak in leaks])), 3),
            "direction": round(float(np.mean([leak.direction for leak in leaks])), 3),
            "columns": round(float(np.mean(told)), 3),
        }
        yield Line(f"{data.name}, {name}", found, "AUC", Peer("no protection", plain), details=details)


MEASURES = {"joined": joined, "compression": compression, "protection": protection}


def main() -> None:
    """Print the lines of each data set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("COTERIE_DATA", "."), help="folder of the tables")
    parser.add_argument("--data-sets", nargs="+", choices=("breast", "default_credit"), default=None)
    parser.add_argument("--only", nargs="+", choices=tuple(MEASURES), default=list(MEASURES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one seed, few rows and epochs: only that it runs")
    parser.add_argument("--json", action="store_true", help="JSON lines")
    chosen = parser.parse_args()
    names = chosen.data_sets or (["breast"] if chosen.quick else ["breast", "default_credit"])
    for data in data_sets(Path(chosen.data), names, quick=chosen.quick):
        for measure in chosen.only:
            for line in MEASURES[measure](data, 1 if chosen.quick else chosen.seeds):
                show(line, as_json=chosen.json)


if __name__ == "__main__":
    main()
