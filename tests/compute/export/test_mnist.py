"""The budget of int8 on real digits: three tenths of the size, half a point of accuracy."""

from pathlib import Path

import numpy as np

from coterie.compute.array import as_array
from coterie.compute.export import Examples, ExportOptions, export
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.zoo import lenet
from coterie.compute.optim import adam
from coterie.compute.trace import TensorSpec, trace_named
from coterie.compute.training import Trainer

TRAIN, TEST = 6000, 2000


def test_int8_lenet_is_small_and_as_accurate_on_mnist(data_dir: Path) -> None:
    """Calibrated on rows of the training set, measured on the test set."""
    with np.load(data_dir / "mnist.npz", allow_pickle=False) as file:
        x, y = (file["x_train"][:TRAIN, None] / 255).astype(np.float32), file["y_train"][:TRAIN].astype(np.int32)
        unseen = (file["x_test"][:TEST, None] / 255).astype(np.float32)
        labels = file["y_test"][:TEST]
    trainer = Trainer(lenet(), softmax_cross_entropy, adam(1e-3), label="y", batch_size=64, seed=0)
    trainer.fit({"x": x, "y": y})
    weights = {name: as_array(value) for name, value in trainer.params.items()}
    graph = trace_named(
        lambda given: {"logits": lenet()(weights, given["x"])}, {"x": TensorSpec((50, 1, 28, 28), "float32")}
    )
    report = export(
        graph,
        ExportOptions(precision="int8", repeats=1),
        examples=Examples(inputs={"x": unseen}, labels=labels),
        calibration=Examples(inputs={"x": x[:256]}),
    ).report
    assert report.before.score is not None and report.after.score is not None
    assert report.before.score > 0.8
    assert report.before.score - report.after.score <= 0.005
    assert report.size_ratio <= 0.3
    assert (report.rows, report.calibrated) == (TEST, 256)
