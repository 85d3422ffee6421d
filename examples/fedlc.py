"""FedLC in one file: clients calibrate their logits by how many rows of each class they have.

Zhang et al.: "Federated Learning with Label Distribution Skew via Logits Calibration" (2022). Each client minimises the
cross-entropy of f_c − tau · n_c^(−1/4), where n_c are its rows of class c: a class that it lacks has no part in it.

    experiment = replace(experiment, algorithm=FedLC(classes=10))
"""

from functools import partial

from coterie.aggregation.horizontal.algorithm import Algorithm, Begin, ClientPart, Objective, Probe
from coterie.aggregation.methods import register
from coterie.compute import numpy as xp
from coterie.compute.array import Array


def is_class(number: int, rows: Probe) -> Array:
    """1 for a row of this class; the sum over a client's rows is their number."""
    return xp.astype(xp.equal(rows.label, number), "float32")


def margins(classes: int, before: Begin) -> dict[str, Array]:
    """n_c^(−1/4), held constant while the client trains."""
    counts = xp.concat([before.probe[f"class_{number}"] for number in range(classes)])
    return {"margin": xp.maximum(counts, 1e-8) ** -0.25}


def calibrated(losses: Array, batch: Objective) -> Array:
    """The experiment's own loss, of logits less their margins."""
    return batch.loss(batch.prediction - batch.hyper["tau"] * batch.constants["margin"])


def FedLC(classes: float, tau: float = 1.0) -> Algorithm:
    """classes: how many the label has; tau: how far rare classes are held back."""
    number = int(classes)
    return Algorithm(
        name="fedlc",
        parameters={"classes": float(number), "tau": float(tau)},
        client=ClientPart(
            hyper={"tau": float(tau)},
            probe={f"class_{k}": partial(is_class, k) for k in range(number)},
            begin=partial(margins, number),
            objective=calibrated,
        ),
    )


register("fedlc", FedLC)
