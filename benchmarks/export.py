"""What an export costs and gains: a network on MNIST, delivered with fewer and fewer digits.

    COTERIE_DATA=DIR python benchmarks/export.py [--json] [--quick] [--only int8 …] [--model lenet] [--batch 1]
                                                [--repeats 200]

The network, LeNet-5 unless told, is trained for two epochs on the 60 000 training images (Adam, batches of 64) and
exported in every way of the table. Each file is run beside the float32 file that a run delivers, in a bare ONNX Runtime
on one thread, the files taking turns. int8 is calibrated on 512 training images; accuracy is that on the 10 000 test
images.

Budgets, for LeNet: the int8 file of ``int8`` at most 0.3 of the bytes of float32, and at most half a point less
accurate. Latency has none: what integers gain depends on the processor's instructions and on the size of the layers, so
it is measured and told. DIR holds mnist.npz.
"""

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

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

SIZE_BUDGET, LOSS_BUDGET = 0.3, 0.005
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
    parser.add_argument("--json", action="store_true", help="one JSON line for each way, and one of all")
    parser.add_argument("--quick", action="store_true", help="one epoch on 6 000 images, to see that it runs")
    parser.add_argument("--only", nargs="+", choices=tuple(WAYS), default=tuple(WAYS), metavar="WAY")
    parser.add_argument("--model", choices=tuple(MODELS), default="lenet")
    parser.add_argument("--batch", type=int, default=1, help="rows of one run")
    parser.add_argument("--repeats", type=int, default=200, help="timed runs")
    options = parser.parse_args()
    train, test = load(quick=options.quick)
    file = trained(MODELS[options.model](), train, options.batch, epochs=1 if options.quick else 2)
    found = [
        {"model": options.model}
        | measure(way, file, train, test, options.repeats, judged=way == "int8" and options.model == "lenet")
        for way in options.only
    ]
    for each in found:
        print(json.dumps(each) if options.json else line(each), flush=True)
    whole = {"case": "all", "machine": platform.processor() or platform.machine(), "met": all(e["met"] for e in found)}
    print(json.dumps(whole) if options.json else line(whole), flush=True)
    sys.exit(0 if whole["met"] else 1)


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


def measure(way: str, file: bytes, train: Arrays, test: Arrays, repeats: int, *, judged: bool) -> dict[str, Any]:
    """One export, beside the file that it is made of."""
    made = export(
        file,
        ExportOptions(**WAYS[way], repeats=repeats),
        examples=Examples(inputs={"x": test["x"]}, labels=test["y"]),
        calibration=Examples(inputs={"x": train["x"][:512]}),
    ).report
    loss = (made.before.score or 0.0) - (made.after.score or 0.0)
    return {
        "case": way,
        "bytes": made.after.bytes,
        "size_ratio": round(made.size_ratio, 4),
        "accuracy": made.after.score,
        "accuracy_before": made.before.score,
        "accuracy_loss": round(loss, 4),
        "same_answers": made.same_answers,
        "latency_us": round(1000 * made.after.milliseconds, 1),
        "latency_ratio": round(made.latency_ratio, 3),
        "batch": made.batch,
        "operators": sum(made.after.operators.values()),
        "runtime": made.runtime,
        "met": not judged or (made.size_ratio <= SIZE_BUDGET and loss <= LOSS_BUDGET),
    }


def line(result: Mapping[str, Any]) -> str:
    """A result for people."""
    return "  ".join(f"{name} {value}" for name, value in result.items())


if __name__ == "__main__":
    main()
