"""FedSAM in one file: clients step along the gradient at the worst weights nearby, which finds flatter minima.

Qu et al.: "Generalized Federated Learning via Sharpness Aware Minimization" (2022). Each step takes the gradient of the
same batch at w + rho · g / ‖g‖.

    experiment = replace(experiment, algorithm=FedSAM(rho=0.05))
"""

from collections.abc import Mapping

from coterie.aggregation.horizontal.algorithm import Algorithm, ClientPart, Step, squared_norm
from coterie.aggregation.methods import register
from coterie.compute import numpy as xp
from coterie.compute.array import Array


def sharpest(gradient: Mapping[str, Array], step: Step) -> Mapping[str, Array]:
    """The gradient at the worst weights within rho."""
    far = step.hyper["rho"] / (xp.sqrt(squared_norm(gradient, gradient)) + 1e-12)
    return step.gradient_at({name: step.params[name] + far * g for name, g in gradient.items()})


def FedSAM(rho: float = 0.05) -> Algorithm:
    """rho: how far away the gradient is taken; 0 is FedAvg."""
    hyper = {"rho": float(rho)}
    return Algorithm(name="fedsam", parameters=hyper, client=ClientPart(hyper=hyper, gradient=sharpest))


register("fedsam", FedSAM)
