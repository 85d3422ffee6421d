"""LeNet as one writes it for MindSpore, with only its imports changed; then the same network, trained federated.

In this process:    python examples/mindspore_lenet.py --data DIR        (or COTERIE_DATA=DIR)
On a coordinator:   coterie submit examples/mindspore_lenet.py           (with COTERIE_DATA=DIR)

DIR holds mnist.npz with x_train, y_train, x_test, y_test (uint8).
"""

# import mindspore.nn as nn
# from mindspore import Model
# from mindspore.dataset import NumpySlicesDataset
# from mindspore.train.callback import LossMonitor
import argparse
import os
import sys
from pathlib import Path

import numpy as np

import coterie.compute.mindspore.nn as nn
from coterie.aggregation.experiment import Experiment
from coterie.compute.mindspore import LossMonitor, Model, Tensor, as_loss, as_module, as_optimizer
from coterie.compute.mindspore.dataset import Dataset, NumpySlicesDataset
from coterie.compute.nn.metrics import accuracy
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.simulation import dirichlet, simulate_full, split

# --- The script, as its author wrote it -------------------------------------------------------------------------------


class LeNet5(nn.Cell):
    """Images [N, 1, 32, 32] → logits [N, 10]."""

    def __init__(self, num_class: int = 10, num_channel: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(num_channel, 6, 5, pad_mode="valid")
        self.conv2 = nn.Conv2d(6, 16, 5, pad_mode="valid")
        self.fc1 = nn.Dense(16 * 5 * 5, 120)
        self.fc2 = nn.Dense(120, 84)
        self.fc3 = nn.Dense(84, num_class)
        self.relu = nn.ReLU()
        self.max_pool2d = nn.MaxPool2d(kernel_size=2, stride=2)
        self.flatten = nn.Flatten()

    def construct(self, x: Tensor) -> Tensor:
        x = self.max_pool2d(self.relu(self.conv1(x)))
        x = self.max_pool2d(self.relu(self.conv2(x)))
        x = self.flatten(x)
        x = self.relu(self.fc1(x))
        x = self.relu(self.fc2(x))
        return self.fc3(x)


def to_float(image: np.ndarray) -> np.ndarray:
    """Pixels in [0, 1]."""
    return image.astype(np.float32) / 255.0


def create_dataset(images: np.ndarray, labels: np.ndarray, batch_size: int = 32) -> Dataset:
    """Images of 32 × 32 in [0, 1], and their digits, in batches."""
    dataset = NumpySlicesDataset((images, labels), ["image", "label"])
    dataset = dataset.map(to_float, input_columns="image")
    return dataset.batch(batch_size, drop_remainder=True)


def train_net(training: Dataset, testing: Dataset, epoch_size: int = 1) -> float:
    """Train in one place; the accuracy on the test rows."""
    network = LeNet5()
    net_loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    net_opt = nn.Momentum(network.trainable_params(), 0.05, 0.9)
    model = Model(network, net_loss, net_opt, metrics={"Accuracy": nn.Accuracy()})
    model.train(epoch_size, training, callbacks=[LossMonitor(50)], dataset_sink_mode=False)
    return model.eval(testing)["Accuracy"]


# --- The same network, loss and optimizer, federated ------------------------------------------------------------------

SCHEMA = DataSchema(
    features=(Feature(name="image", dtype="uint8", shape=(1, 32, 32), scale=1 / 255),),
    label=Label(name="digit", low=0, high=9),
)


def experiment(test: dict[str, np.ndarray] | None = None, *, rounds: int = 5, cohort: int = 5) -> Experiment:
    """Each round a cohort of clients trains for one epoch; test rows, MNIST's when None, measure every version."""
    network = LeNet5()
    net_loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    net_opt = nn.Momentum(network.trainable_params(), 0.05, 0.9)
    return Experiment(
        name="mindspore-lenet",
        model=as_module(network),
        loss=as_loss(net_loss),
        optimizer=as_optimizer(net_opt, network),
        metrics={"accuracy": accuracy},
        schema=SCHEMA,
        batch_size=16,
        rounds=RoundPolicy(rounds=rounds, cohort=cohort, evaluate_every=0),
        evaluation=rows(load(os.environ.get("COTERIE_DATA")), "test", 500) if test is None else test,
    )


def rows(file: dict[str, np.ndarray], part: str, count: int) -> dict[str, np.ndarray]:
    """The first ``count`` rows of a part of MNIST, with a margin of two pixels: LeNet takes 32 × 32."""
    images = np.pad(file[f"x_{part}"][:count], ((0, 0), (2, 2), (2, 2)))[:, None]
    return {"image": images, "digit": file[f"y_{part}"][:count].astype(np.int32)}


def load(folder: str | None) -> dict[str, np.ndarray]:
    """The arrays of mnist.npz, or a clear end of the program."""
    path = Path(folder or "") / "mnist.npz"
    if not folder or not path.is_file():
        sys.exit(f"There is no {path}.\nGive --data DIR, or set COTERIE_DATA: a folder that holds mnist.npz.")
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def main() -> None:
    """Train in one place, then over ten clients with skewed digits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("COTERIE_DATA"), help="folder with mnist.npz")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--train-rows", type=int, default=6000)
    chosen = parser.parse_args()

    file = load(chosen.data)
    train, test = rows(file, "train", chosen.train_rows), rows(file, "test", 500)
    reached = train_net(create_dataset(train["image"], train["digit"]), create_dataset(test["image"], test["digit"]))
    print(f"in one place: accuracy {reached:.3f}")

    clients = split(train, dirichlet(train["digit"], 10, alpha=0.5, seed=1))
    result = simulate_full(experiment(test, rounds=chosen.rounds), clients)
    for record in result.history.rounds:
        print(f"round {record.round}: accuracy {record.metrics['accuracy']:.3f}")


if __name__ == "__main__":
    main()
