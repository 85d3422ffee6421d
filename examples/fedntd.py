"""FedNTD in one file: clients keep what the round's model says of the classes that a row does not have.

Lee et al.: "Preservation of the Global Knowledge by Not-True Distillation in Federated Learning" (2022). To the loss of
a row comes beta times the divergence of its softmax over the other classes from that of the round's model, at
temperature tau.

    experiment = replace(experiment, algorithm=FedNTD())
"""

from coterie.aggregation.horizontal.algorithm import Algorithm, ClientPart, Objective
from coterie.aggregation.methods import register
from coterie.compute import numpy as xp
from coterie.compute import ops
from coterie.compute.array import Array

OUT_OF_SIGHT = 1e4


def others(logits: Array, batch: Objective) -> Array:
    """Log-probabilities of the classes that are not the row's own, [B, K]."""
    own = ops.one_hot(batch.label, logits.shape[-1])
    return ops.log_softmax(logits / batch.hyper["tau"] - OUT_OF_SIGHT * own)


def distilled(losses: Array, batch: Objective) -> Array:
    """The losses, with the divergence from the round's model."""
    shared = others(batch.predict({name: batch.base[name] for name in batch.params}), batch)
    divergence = xp.sum(xp.exp(shared) * (shared - others(batch.prediction, batch)), axis=-1)
    return losses + batch.hyper["beta"] * divergence


def FedNTD(beta: float = 1.0, tau: float = 1.0) -> Algorithm:
    """beta: how much the round's model counts; 0 is FedAvg. tau: the temperature."""
    hyper = {"beta": float(beta), "tau": float(tau)}
    return Algorithm(name="fedntd", parameters=hyper, client=ClientPart(hyper=hyper, objective=distilled))


register("fedntd", FedNTD)
