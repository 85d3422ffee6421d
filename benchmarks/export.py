"""What an export costs and gains: a network on MNIST, delivered with fewer and fewer digits.

    COTERIE_DATA=DIR python benchmarks/export.py [--json] [--quick] [--only int8 …] [--model lenet] [--batch 1]
                                                [--repeats 200]

The network, LeNet-5 unless told, is trained for two epochs on the 60 000 training images (Adam, batches of 64) and
exported in every way of the table. Each file is run beside the float32 file that a run delivers, in a bare ONNX Runtime
on one thread, the files taking turns. int8 is calibrated on 512 training images; accuracy is that on the 10 000 test
images.

Each way prints three lines (see lines.py): the bytes of the file beside those of the model's before, the accuracy that
is lost, and the latency beside that of the model's file before. Budgets, for LeNet: the int8 file of ``int8`` at most
0.3 of the bytes of float32, and at most half a point less accurate. Latency has none: what integers gain depends on the
processor's instructions and on the size of the layers, so it is measured and told. DIR holds mnist.npz.
"""

import argparse
import os
import platform
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from lines import Line, Peer, at_most, show

from coterie.compute.export import Examples, ExportOptions, export
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.module import Module
from coterie.compute.nn.zoo import fedavg_cnn, lenet
from coterie.compute.onnx.weights import embed_weights
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.optim import adam
from coterie.compute.passes import optimise
from coterie.compute.quant.settings import QuantSettings
from coterie.compute.trace import TensorSpec, trace_named
from coterie.compute.training import Trainer

Arrays = Mapping[str, npt.NDArray[Any]]

# Of the model and the way.
SIZE_BUDGETS = {("lenet", "int8"): at_most(0.3, "ratio")}
LOSS_BUDGETS = {("lenet", "int8"): at_most(0.005)}
MODELS: Mapping[str, Callable[[], Module]] = {"lenet": lenet, "fedavg_cnn": fedavg_cnn}
WAYS: Mapping[str, Mapping[str, Any]] = {
    "float32": {},
    "float16": {"precision": "float16"},
    "int8": {"precision": "int8"},
    "int8 percentile": {"precision": "int8", "quantisation": QuantSettings(calibration="percentile")},
    "int8 kl": {"precision": "int8", "quantisation": QuantSettings(calibration="kl")},
    "int8 per tensor": {"precision": "int8", "quantisation": QuantSettings(per_channel=False)},
    "int8 weights": {"precision": "int8", "quantisation": QuantSettings(activations=None)},
}


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="JSON lines")
    parser.add_argument("--quick", action="store_true", help="one epoch on 6 000 images, to see that it runs")
    parser.add_argument("--only", nargs="+", choices=tuple(WAYS), default=tuple(WAYS), metavar="WAY")
    parser.add_argument("--model", choices=tuple(MODELS), default="lenet")
    parser.add_argument("--batch", type=int, default=1, help="rows of one run")
    parser.add_argument("--repeats", type=int, default=200, help="timed runs")
    options = parser.parse_args()
    train, test = load(quick=options.quick)
    file = trained(MODELS[options.model](), train, options.batch, epochs=1 if options.quick else 2)
    missed = False
    for way in options.only:
        for line in measure(options.model, way, file, train, test, options.repeats):
            show(line, as_json=options.json)
            missed = missed or line.met is False
    sys.exit(1 if missed else 0)


def load(*, quick: bool) -> tuple[Arrays, Arrays]:
    """Training and test images in [0, 1], [N, 1, 28, 28], and digits."""
    folder = os.environ.get("COTERIE_DATA")
    if folder is None:
        sys.exit("COTERIE_DATA must name the folder with mnist.npz.")
    with np.load(Path(folder) / "mnist.npz", allow_pickle=False) as file:
        parts = {
            part: {
                "x": (file[f"x_{part}"][:count, None] / 255).astype(np.float32),
                "y": file[f"y_{part}"][:count].astype(np.int32),
            }
            for part, count in (("train", 6_000 if quick else 60_000), ("test", 10_000))
        }
    return parts["train"], parts["test"]


def trained(model: Module, train: Arrays, batch: int, *, epochs: int) -> bytes:
    """A model as a run delivers it: the graph of a plan with the weights inside, for batches of this size."""
    trainer = Trainer(model, softmax_cross_entropy, adam(1e-3), label="y", batch_size=64, seed=0)
    trainer.fit(train, epochs)
    weights = {name: np.asarray(value) for name, value in trainer.params.items()}
    specs = {name: TensorSpec(value.shape, "float32") for name, value in weights.items()}
    graph = trace_named(
        lambda given: {"output": model({name: given[name] for name in weights}, given["x"])},
        specs | {"x": TensorSpec((batch, 1, 28, 28), "float32")},
    )
    return embed_weights(to_onnx(optimise(graph), name="infer"), weights)


def measure(model: str, way: str, file: bytes, train: Arrays, test: Arrays, repeats: int) -> tuple[Line, ...]:
    """One export, beside the file that it is made of."""
    made = export(
        file,
        ExportOptions(**WAYS[way], repeats=repeats),
        examples=Examples(inputs={"x": test["x"]}, labels=test["y"]),
        calibration=Examples(inputs={"x": train["x"][:512]}),
    ).report
    loss = (made.before.score or 0.0) - (made.after.score or 0.0)
    case, before, after = f"{model}, {way}", made.before, made.after
    machine = {"runtime": made.runtime, "machine": platform.processor() or platform.machine()}
    operators = {"operators": sum(after.operators.values())}
    scores = {"accuracy": after.score, "accuracy_before": before.score, "same_answers": made.same_answers}
    sizes, budget = Peer("before", before.bytes), SIZE_BUDGETS.get((model, way))
    times, microseconds = Peer("before", 1000 * before.milliseconds), 1000 * after.milliseconds
    return (
        Line(f"{case}, file", after.bytes, "bytes", sizes, budget, operators),
        Line(f"{case}, accuracy", loss, "of the answers lost", None, LOSS_BUDGETS.get((model, way)), scores),
        Line(f"{case}, latency", microseconds, "us", times, details={"batch": made.batch, **machine}),
    )


if __name__ == "__main__":
    main()
