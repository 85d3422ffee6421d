"""Bring your own trainer: scikit-learn's SGDClassifier on the handwritten digits, federated.

    python examples/sklearn_sgd.py            (needs scikit-learn)

The platform knows the model only as two arrays. What `fit` does with them is its own business; the SDK takes the
difference, encodes and uploads it. `Device(..., trainer=TRAINER)` runs the same trainer against a coordinator.
"""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import log_loss

from coterie.aggregation.experiment import Experiment
from coterie.aggregation.external_model import ExternalModel
from coterie.client_sdk.device.trainers.external import EvaluateResult, ExternalTrainer, FitResult, FitTask, Params
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.simulation import dirichlet, simulate, split

CLASSES = np.arange(10)
SCHEMA = DataSchema((Feature(name="pixels", shape=(64,), low=0, high=16),), Label(name="digit", low=0, high=9))


def classifier(params: Params, seed: int) -> SGDClassifier:
    """A classifier that goes on from the round's weights; ``partial_fit`` never starts from zero."""
    model = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=0.05, random_state=seed)
    # partial_fit makes room for all classes even where this client has only some of them.
    model.partial_fit(np.zeros((10, 64)), CLASSES, classes=CLASSES)
    model.coef_, model.intercept_ = params["coef"].astype(np.float64), params["intercept"].astype(np.float64)
    return model


def means(model: SGDClassifier, x: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Loss and accuracy, as means over rows."""
    loss = log_loss(y, model.predict_proba(x), labels=CLASSES)
    return {"loss": float(loss), "accuracy": float(model.score(x, y))}


def fit(params: Params, task: FitTask) -> FitResult:
    """Train for the task's epochs on this client's rows."""
    x, y = task.rows["pixels"].astype(np.float64) / 16, task.rows["digit"]
    model = classifier(params, task.seed % 2**32)
    for _ in range(task.epochs):
        model.partial_fit(x, y)
    return {"coef": model.coef_, "intercept": model.intercept_}, len(y), task.epochs * len(y), means(model, x, y)


def evaluate(params: Params, task: FitTask) -> EvaluateResult:
    """Measure the round's model on the rows that this client holds out."""
    x, y = task.rows["pixels"].astype(np.float64) / 16, task.rows["digit"]
    return len(y), means(classifier(params, 0), x, y)


TRAINER = ExternalTrainer(fit, evaluate)

EXPERIMENT = Experiment(
    name="sklearn-sgd",
    model=ExternalModel({"coef": (10, 64), "intercept": (10,)}, metrics=("accuracy",)),
    schema=SCHEMA,
    epochs=3,
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
