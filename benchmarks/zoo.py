"""What the models of the zoo cost on this machine, and how well they do after a short training.

    COTERIE_DATA=DIR python benchmarks/zoo.py [--json] [--only mlp lenet ...] [--rounds 40] [--clock wall|cpu] [--quick]
    [--write "MACHINE IN WORDS"]

DIR holds mnist.npz, adult_train.csv.gz, adult_test.csv.gz and shakespeare.jsonl.gz. For every model of every task one
line (see lines.py): the latency of one inference, beside that of the yardstick; parameters; step_us of a training step
of 32 examples; size_bytes of the inference file; memory_bytes that the memory planner finds for the step;
resident_bytes by which a process grows that loads the step and runs it; accuracy on the task's test rows after a
training with Adam of so many steps of 32 as ``STEPS`` says, from the same seed and rate for all. One thread. --quick
leaves out the training. --write keeps the figures as the table that ``zoo.select`` reads, under that name of the
machine.
"""

import argparse
import csv
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from lines import Line, Peer, show
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from coterie.compute import optim
from coterie.compute.nn import zoo
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.metrics import accuracy
from coterie.compute.nn.zoo import cost as zoo_cost
from coterie.compute.nn.zoo.table import CHARACTERS, VOCABULARIES, WINDOW
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.runtime.yardstick import yardstick_us
from coterie.compute.training import Trainer, measure
from coterie.compute.training.cost import training_graph

STEPS = {"images": 800, "rows": 2000, "text": 2000}
RATE, BATCH, TEST_ROWS = 2e-3, 32, 2000
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
COLUMNS = ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week")
CATEGORIES = (
    "workclass", "education", "marital-status", "occupation", "relationship", "race", "sex", "native-country",
)  # fmt: skip

Rows = dict[str, NDArray[Any]]


def images(folder: Path) -> tuple[Rows, Rows]:
    """MNIST: training and test rows."""
    with np.load(folder / "mnist.npz") as file:
        x, y, x_test, y_test = (file[name] for name in ("x_train", "y_train", "x_test", "y_test"))

    def rows(x: NDArray[Any], y: NDArray[Any]) -> Rows:
        return {"x": (x[:, None] / np.float32(255)).astype(np.float32), "y": y.astype(np.int32)}

    return rows(x, y), rows(x_test[:TEST_ROWS], y_test[:TEST_ROWS])


def table(folder: Path) -> tuple[Rows, Rows]:
    """Adult: numbers standardised by the training part, categories as ids; and both beside each other as indicators."""
    parts: list[list[dict[str, str]]] = []
    for name in ("adult_train.csv.gz", "adult_test.csv.gz"):
        with gzip.open(folder / name, "rt", newline="") as file:
            parts.append(list(csv.DictReader(file)))
    values = [sorted({row[column] for row in parts[0]}) for column in CATEGORIES]
    if tuple(map(len, values)) != VOCABULARIES:
        sys.exit(f"The categories of Adult are {tuple(map(len, values))}, not {VOCABULARIES}.")
    raw = [np.log1p(np.array([[float(row[c]) for c in COLUMNS] for row in rows])) for rows in parts]
    mean, deviation = raw[0].mean(axis=0), raw[0].std(axis=0)

    def rows(part: list[dict[str, str]], numbers: NDArray[Any]) -> Rows:
        scaled = ((numbers - mean) / deviation).astype(np.float32)
        ids = np.array(
            [[known.index(row[c]) for c, known in zip(CATEGORIES, values, strict=True)] for row in part], np.int32
        )
        shown = [np.eye(len(known), dtype=np.float32)[ids[:, at]] for at, known in enumerate(values)]
        label = np.array([row["income"].startswith(">") for row in part], np.int32)
        return {"x": np.concatenate([scaled, *shown], axis=1), "categories": ids, "numbers": scaled, "y": label}

    return rows(parts[0], raw[0]), rows(parts[1], raw[1])


def text(folder: Path) -> tuple[Rows, Rows]:
    """Shakespeare: every third window and the character after it; the last fifth of each role's lines for testing."""
    with gzip.open(folder / "shakespeare.jsonl.gz", "rt", encoding="utf-8") as file:
        lines = [record["text"].split("\n") for record in map(json.loads, file)]
    characters = sorted({character for role in lines for line in role for character in f"{line}\n"})
    if len(characters) != CHARACTERS:
        sys.exit(f"The texts have {len(characters)} characters, not {CHARACTERS}.")
    number = {character: at for at, character in enumerate(characters)}

    def rows(parts: list[list[str]]) -> Rows:
        joined = np.array([number[one] for part in parts for one in "\n".join(part)], np.int32)
        taken = sliding_window_view(joined, WINDOW + 1)[::3]
        return {"x": np.ascontiguousarray(taken[:, :-1]), "y": np.ascontiguousarray(taken[:, -1])}

    cuts = [round(0.8 * len(role)) for role in lines]
    train = rows([role[:cut] for role, cut in zip(lines, cuts, strict=True)])
    test = rows([role[cut:] for role, cut in zip(lines, cuts, strict=True)])
    return train, {name: value[:: len(value) // TEST_ROWS][:TEST_ROWS] for name, value in test.items()}


DATA = {"images": images, "rows": table, "text": text}


def reached(entry: zoo.Entry, train: Rows, test: Rows) -> float:
    """Accuracy on the test rows after the training."""
    names = ["x"] if isinstance(entry.inputs, zoo.Input) else list(entry.inputs)
    trainer = Trainer(
        entry.build(), softmax_cross_entropy, optim.adam(RATE), metrics={"accuracy": accuracy}, batch_size=BATCH
    )
    chosen = [{name: rows[name] for name in (*names, "y")} for rows in (train, test)]
    steps = STEPS[entry.task]
    epochs = -(-steps * BATCH // len(train["y"]))
    trainer.fit(chosen[0], epochs, steps=steps)
    return trainer.evaluate(chosen[1])["accuracy"]


# A device has the step as a file, so the process that loads and runs it has not made it.
RUNNING = """
import pathlib, re, sys
import numpy as np
from coterie.compute.runtime.executable import Executable
file = pathlib.Path(sys.argv[1]).read_bytes()
if len(file):
    executable = Executable(file)
    feeds = {t.name: np.zeros(t.shape, t.dtype) for t in executable.inputs}
    for _ in range(5):
        executable.run(feeds)
# Not getrusage: what it says of a new program is at least what its parent had.
print(re.search(r"VmHWM:\\s+(\\d+) kB", pathlib.Path("/proc/self/status").read_text())[1])
"""


def resident_bytes(entry: zoo.Entry) -> int:
    """By how many bytes a process that loads the training step and runs it is larger at its peak than one that has only
    loaded the runtime.
    """
    step = to_onnx(training_graph(entry.build(), entry.inputs), name="step")
    peaks: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, data in (("none", b""), ("step", step)):
            path = Path(folder) / name
            path.write_bytes(data)
            done = subprocess.run([sys.executable, "-c", RUNNING, path], capture_output=True, text=True, check=True)
            peaks.append(int(done.stdout) * 1024)
    return peaks[1] - peaks[0]


def main() -> None:
    """Measure the models."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--json", action="store_true", help="one JSON line a model")
    parser.add_argument("--only", nargs="*", default=None, help="names of models")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--quick", action="store_true", help="no training, no accuracy")
    parser.add_argument("--write", metavar="MACHINE", default=None)
    options = parser.parse_args()
    if options.write is not None and (options.only is not None or options.quick):
        parser.error("--write needs all models with their accuracy")
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    clock = CLOCKS[options.clock]
    folder = Path(os.environ.get("COTERIE_DATA", ""))
    if not options.quick and not (folder / "mnist.npz").is_file():
        sys.exit("Set COTERIE_DATA to the folder of the data, or leave the training out with --quick.")
    yardstick = yardstick_us(rounds=options.rounds, clock=clock)
    show(Line("yardstick", yardstick, "us"), as_json=options.json)
    data: dict[str, tuple[Rows, Rows]] = {}
    found: dict[tuple[str, str], tuple[zoo.Cost, float]] = {}
    for entry in zoo.ENTRIES:
        if options.only is not None and entry.name not in options.only:
            continue
        cost = measure(entry.build(), entry.inputs, rounds=options.rounds, clock=clock)
        share: float | None = None
        if not options.quick:
            if entry.task not in data:
                data[entry.task] = DATA[entry.task](folder)
            share = reached(entry, *data[entry.task])
            found[entry.task, entry.name] = (cost, share)
        costs = {name: value for name, value in asdict(cost).items() if name != "latency_us"}
        details = {"accuracy": share, "parameters": entry.parameters, **costs, "resident_bytes": resident_bytes(entry)}
        peer = Peer("yardstick", yardstick)
        show(Line(f"{entry.task}/{entry.name}", cost.latency_us, "us", peer, details=details), as_json=options.json)
    if options.write is not None:
        costs = zoo.Costs(machine=options.write, yardstick_us=yardstick, models=found)
        zoo_cost.FILE.write_text(json.dumps(costs.to_json(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
