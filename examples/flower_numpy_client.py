"""A client class written for Flower, federated by coterie: softmax regression in plain NumPy on the handwritten digits.

    python examples/flower_numpy_client.py            (needs scikit-learn for the data; Flower is neither needed nor
    imported)

`DigitsClient` is what a Flower user already has: lists of arrays in and out. `flower_trainer` makes a trainer of it,
given a function that builds the client from a task's rows. `Device(..., trainer=TRAINER)` runs it against a
coordinator.
"""

import numpy as np
from sklearn.datasets import load_digits

from coterie.aggregation.experiment import Experiment
from coterie.aggregation.external_model import ExternalModel
from coterie.client_sdk.device.flower import flower_trainer
from coterie.client_sdk.device.trainers.external import FitTask
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.simulation import dirichlet, simulate, split

SCHEMA = DataSchema((Feature(name="pixels", shape=(64,), low=0, high=16),), Label(name="digit", low=0, high=9))


class DigitsClient:
    """As for Flower: ``fit`` and ``evaluate`` over lists of arrays."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self.x, self.y = x / 16.0, y

    def fit(self, parameters, config):
        """Gradient descent over shuffled batches."""
        weights, bias = (parameter.copy() for parameter in parameters)
        rng = np.random.default_rng(config["seed"])
        for _ in range(config["local_epochs"]):
            for batch in np.array_split(rng.permutation(len(self.y)), -(-len(self.y) // config["batch_size"])):
                x, error = self.x[batch], self._probabilities(self.x[batch], weights, bias)
                error[np.arange(len(batch)), self.y[batch]] -= 1
                weights -= 0.5 * x.T @ error / len(batch)
                bias -= 0.5 * error.mean(0)
        loss, examples, metrics = self.evaluate([weights, bias], config)
        return [weights, bias], examples, {"loss": loss, **metrics}

    def evaluate(self, parameters, config):
        """Mean loss, number of rows, accuracy."""
        probabilities = self._probabilities(self.x, *parameters)
        loss = -np.log(np.maximum(probabilities[np.arange(len(self.y)), self.y], 1e-9)).mean()
        return float(loss), len(self.y), {"accuracy": float((probabilities.argmax(1) == self.y).mean())}

    @staticmethod
    def _probabilities(x: np.ndarray, weights: np.ndarray, bias: np.ndarray) -> np.ndarray:
        logits = x @ weights + bias
        exponentials = np.exp(logits - logits.max(1, keepdims=True))
        return exponentials / exponentials.sum(1, keepdims=True)


def make_client(task: FitTask) -> DigitsClient:
    """The client for one task: rows to train on for ``fit``, held-out rows for ``evaluate``."""
    return DigitsClient(task.rows["pixels"], task.rows["digit"])


TRAINER = flower_trainer(make_client)

EXPERIMENT = Experiment(
    name="flower-numpy-client",
    model=ExternalModel({"weights": (64, 10), "bias": (10,)}, metrics=("accuracy",)),
    schema=SCHEMA,
    batch_size=32,
    epochs=2,
    rounds=RoundPolicy(rounds=10, cohort=8),
)


def main() -> None:
    """Ten clients, each with a skewed part of the digits."""
    digits = load_digits()
    arrays = {"pixels": digits.data.astype(np.float32), "digit": digits.target.astype(np.int32)}
    clients = split(arrays, dirichlet(arrays["digit"], 10, alpha=0.5, seed=0))
    for record in simulate(EXPERIMENT, clients, trainer=TRAINER):
        print(f"round {record.round}: accuracy {record.metrics['accuracy']:.3f}, loss {record.metrics['loss']:.3f}")


if __name__ == "__main__":
    main()
