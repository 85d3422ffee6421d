"""Makes protocol/vectors/plan.json: `python tests/client_sdk/make_plan_vectors.py` rewrites the file.

A whole training, from the plan and the rows to the update's bytes. Its numbers are small multiples of powers of two, so
that float32 holds every one of them exactly and the order of additions does not matter: any runtime on any machine
gives these bytes. The plan stays as the file has it, since a newer compiler may write other graphs of the same meaning;
`--compile` makes it anew.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from coterie.aggregation.compiling.compile import compile_plan
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.plan.bundle import Plan
from coterie.aggregation.plan.manifest import Manifest
from coterie.client_sdk.device.holdout import split
from coterie.client_sdk.device.trainers.base import LocalTask, LocalWork
from coterie.client_sdk.device.trainers.plan import PlanTrainer
from coterie.compute.nn import Dropout, Linear, Sequential
from coterie.compute.nn.losses import mean_squared_error
from coterie.compute.optim import sgd
from coterie.protocol.canonical import canonical_json, sha256_hex
from coterie.protocol.conversion import to_json
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.protocol.tensors import decode_tensors, encode_tensors
from coterie.protocol.update import encode_update

Json = dict[str, Any]
FILE = Path(__file__).parents[2] / "protocol" / "vectors" / "plan.json"
ROWS: Json = {
    "x": [[1, 3], [5, 1], [3, -1], [-1, 1], [3, 5], [1, 1], [-1, 3], [3, 3]],
    "y": [1, 2, 0, -1, 2, 1, 0, 1],
}
TASK: Json = {"id": "task_" + "4" * 32, "experiment": "exp_" + "1" * 32, "round": 3}
TRAINING: Json = {"batch_size": 2, "epochs": 2, "max_steps": 5, "holdout": 0.25}
PLAIN: Json = {"seed": 7, "hyper": {}, "weight_cap": 100, "training": TRAINING}
CASES: tuple[Json, ...] = (
    {**PLAIN, "name": "ends inside the second pass"},
    {**PLAIN, "name": "weighs no more than its cap", "weight_cap": 4, "seed": 2**53 - 1},
    {**PLAIN, "name": "has a rate of its own", "hyper": {"lr": 0.5}, "seed": 11},
    {**PLAIN, "name": "counts rows that stood in no batch", "training": {**TRAINING, "max_steps": 2}},
    {**PLAIN, "name": "counts rows once, in one pass or more", "training": {**TRAINING, "max_steps": None}, "seed": 9},
)
REFUSED: tuple[Json, ...] = (
    {"name": "a field that is not known", "change": {"more": 1}, "code": "plan_manifest"},
    {"name": "another format", "change": {"format": "coterie-plan-2"}, "code": "plan_manifest"},
    {"name": "a shape that is not known", "change": {"shape": "diagonal"}, "code": "plan_manifest"},
)


def compiled() -> tuple[Json, dict[str, str], str]:
    """The manifest, the graphs and the version, bytes in hex."""
    made = compile_plan(
        Experiment(
            name="vector",
            model=Sequential(Dropout(0.5), Linear(2, 1)),
            schema=DataSchema(
                (Feature(name="x", dtype="float32", shape=(2,), offset=1.0, scale=0.5),),
                Label(name="y", dtype="float32"),
            ),
            loss=mean_squared_error,
            optimizer=sgd(0.25),
            **TRAINING,
            rounds=RoundPolicy(rounds=1, cohort=1),
        )
    )
    first = {name: np.full(array.shape, 0.5, np.float32) for name, array in made.initial.items()}
    graphs = {name: data.hex() for name, data in made.plan.graphs.items()}
    return to_json(made.plan.manifest), graphs, encode_tensors(first).hex()


def plan_of(manifest: Json, graphs: dict[str, str]) -> Plan:
    """The plan of a manifest and its graphs, in hex."""
    return Plan(
        Manifest.from_bytes(canonical_json(manifest)), {name: bytes.fromhex(data) for name, data in graphs.items()}
    )


def trained(plan: Plan, version: bytes, rows: Json, case: Json) -> Json:
    """What a device makes of a case: weight, steps, metric sums and the file that it sends."""
    arrays = {name: np.array(column, np.float32) for name, column in rows.items()}
    kept, _ = split(plan.manifest.schema.check(arrays, "rows"), plan.manifest.training.holdout)
    task = LocalTask(
        experiment=TASK["experiment"],
        round=TASK["round"],
        seed=case["seed"],
        hyper=case["hyper"],
        weight_cap=case["weight_cap"],
    )
    result = PlanTrainer().train(LocalWork(plan=plan, task=task, weights=decode_tensors(version), rows=kept))
    update = encode_update(
        task=TASK["id"],
        plan=plan.id,
        base=sha256_hex(version),
        weight=result.weight,
        steps=result.steps,
        specs=plan.manifest.sections,
        sections={name: np.asarray(values) for name, values in result.sections.items()},
        codecs={spec.name: "float32" for spec in plan.manifest.sections},
    )
    sums = {name: float(value) for name, value in zip(plan.manifest.metrics, result.sections["metrics"], strict=True)}
    told = {"weight": result.weight, "steps": result.steps, "metrics": sums}
    return {**case, "plan": plan.id, **told, "update": update.data.hex(), "sha256": sha256_hex(update.data)}


def rendered(plan: tuple[Json, dict[str, str], str] | None = None) -> dict[str, str]:
    """File name → content, as it is committed.

    plan: another one than the file's.
    """
    file: Json = {} if plan is not None else json.loads(FILE.read_text("ascii"))
    manifest, graphs, version = plan or (file["manifest"], file["graphs"], file["version"])
    cases = [
        trained(plan_of({**manifest, "training": case["training"]}, graphs), bytes.fromhex(version), ROWS, case)
        for case in CASES
    ]
    whole: Json = {
        "title": "A whole training: a plan, a version and rows, and the update that comes of them",
        "provenance": "coterie's own definition, made by its reference implementation "
        "(`tests/client_sdk/make_plan_vectors.py`). Every number of it is a small multiple of a power of two, so any "
        "runtime gives these bytes",
        "how": "`manifest`: with a case's `training` in its place, its canonical JSON is the blob `plan`. `graphs`: "
        "the blob of each stage, by its name, and `version`: a safetensors file, in hex. `rows`: all rows of the "
        "device, in the order in which it keeps them. `cases`: tasks of the kind `train` in the open, with the ids of "
        "`task`, and what comes of them: `metrics` are the sums, `update` is the file that is sent, with every section "
        "as float32, its header filled with spaces and `__metadata__` first. `refused_manifests`: the manifest with a "
        "field changed",
        "task": TASK,
        "rows": ROWS,
        "version": version,
        "manifest": manifest,
        "graphs": graphs,
        "cases": cases,
        "refused_manifests": list(REFUSED),
    }
    return {FILE.name: json.dumps(whole, indent=1, allow_nan=False) + "\n"}


if __name__ == "__main__":
    for name, content in rendered(compiled() if sys.argv[1:] == ["--compile"] else None).items():
        (FILE.parent / name).write_text(content, encoding="ascii")
