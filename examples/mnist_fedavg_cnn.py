"""FedAvg on MNIST: the CNN of McMahan et al. (2017), twenty clients with skewed labels.

In this process:          coterie simulate examples/mnist_fedavg_cnn.py        (with COTERIE_DATA=DIR)
                          python examples/mnist_fedavg_cnn.py --data DIR
On a coordinator:         python examples/mnist_fedavg_cnn.py --data DIR --url http://127.0.0.1:8765 --token
coterie_admin_…
  and a client's rows:    python examples/mnist_fedavg_cnn.py --data DIR --write-clients mnist_clients/

DIR holds mnist.npz with x_train, y_train, x_test, y_test (uint8); COTERIE_DATA serves when --data is not given.
The experiment is one value: `simulate` and `submit` take it unchanged.
"""

import argparse
import os
import sys
from pathlib import Path

import numpy as np

from coterie.aggregation.experiment import Experiment
from coterie.client_sdk import submit
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.metrics import accuracy
from coterie.compute.nn.zoo import fedavg_cnn
from coterie.compute.optim import sgd
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.simulation import dirichlet, simulate_full, split

CLIENTS = 20
TRAIN_ROWS = 6000
TEST_ROWS = 1000

# Devices hold raw pixels; scaling them to [0, 1] is compiled into the graphs.
SCHEMA = DataSchema(
    features=(Feature(name="image", dtype="uint8", shape=(1, 28, 28), scale=1 / 255),),
    label=Label(name="digit", low=0, high=9),
)


def experiment(test: dict[str, np.ndarray] | None = None, *, rounds: int = 10) -> Experiment:
    """Each round ten of the twenty clients train for two epochs; every version is measured on test rows.

    test: those rows; the first thousand of MNIST's own when None.
    """
    return Experiment(
        name="mnist-fedavg-cnn",
        model=fedavg_cnn(),
        schema=SCHEMA,
        loss=softmax_cross_entropy,
        metrics={"accuracy": accuracy},
        optimizer=sgd(0.05, momentum=0.9),
        batch_size=32,
        epochs=2,
        codecs=("int8", "float32"),
        rounds=RoundPolicy(rounds=rounds, cohort=10, evaluate_every=0),
        # Updates of 8 bits travel one by one; under secure aggregation, the default for ten clients, sums would be.
        secure_aggregation=False,
        evaluation=rows(load(os.environ.get("COTERIE_DATA")), "test", TEST_ROWS) if test is None else test,
    )


def clients(file: dict[str, np.ndarray] | None = None, *, train_rows: int = TRAIN_ROWS) -> list[dict[str, np.ndarray]]:
    """Twenty clients whose labels are skewed by Dirichlet(0.5). file: the arrays of mnist.npz; read when None."""
    train = rows(load(os.environ.get("COTERIE_DATA")) if file is None else file, "train", train_rows)
    return split(train, dirichlet(train["digit"], CLIENTS, alpha=0.5, seed=1))


def rows(file: dict[str, np.ndarray], part: str, count: int) -> dict[str, np.ndarray]:
    """The first ``count`` rows of a part, in the schema's shapes."""
    images, digits = file[f"x_{part}"][:count], file[f"y_{part}"][:count]
    return {"image": images.reshape(-1, 1, 28, 28), "digit": digits.astype(np.int32)}


def load(folder: str | None) -> dict[str, np.ndarray]:
    """The arrays of mnist.npz, or a clear end of the program."""
    path = Path(folder or "") / "mnist.npz"
    if not folder or not path.is_file():
        wanted = f"There is no {path}." if folder else "No data: COTERIE_DATA is not set and --data was not given."
        sys.exit(
            f"{wanted}\nGive --data DIR, a folder that holds mnist.npz (x_train, y_train, x_test, y_test as uint8)."
        )
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def main() -> None:
    """Simulate, or submit and wait."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("COTERIE_DATA"), help="folder with mnist.npz")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--train-rows", type=int, default=TRAIN_ROWS, help="rows shared out among the clients")
    parser.add_argument("--test-rows", type=int, default=TEST_ROWS)
    parser.add_argument("--url", help="a coordinator; without it everything happens here")
    parser.add_argument("--token", help="the coordinator's admin token")
    parser.add_argument("--key", default=".coterie/researcher.key", help="signs the plan; made when absent")
    parser.add_argument("--write-clients", type=Path, help="only write one .npz per client into this folder")
    chosen = parser.parse_args()

    file = load(chosen.data)
    shares = clients(file, train_rows=chosen.train_rows)
    wanted = experiment(rows(file, "test", chosen.test_rows), rounds=chosen.rounds)

    if chosen.write_clients:
        chosen.write_clients.mkdir(parents=True, exist_ok=True)
        for number, client in enumerate(shares):
            np.savez(chosen.write_clients / f"client{number:02d}.npz", **client)
        print(f"{CLIENTS} files in {chosen.write_clients}; join with one: coterie client URL --data FILE --token TOKEN")
    elif chosen.url:
        run = submit(wanted, chosen.url, token=chosen.token or "", key=chosen.key)
        print(f"experiment {run.id}; waiting for its {chosen.rounds} rounds (join clients in other terminals)")
        for record in run.wait():
            print(f"round {record.round}: {record.state}, {record.metrics}")
        print("model:", run.download("mnist.onnx"))
    else:
        result = simulate_full(wanted, shares, on_event=print, workers=os.cpu_count() or 1)
        print("model:", result.save_infer("mnist.onnx"))


if __name__ == "__main__":
    main()
