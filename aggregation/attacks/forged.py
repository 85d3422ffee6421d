"""Updates that attackers make from the honest ones, without training."""

import numpy as np
import numpy.typing as npt

from coterie.aggregation.attacks.attack import Forge, Updates

Wide = npt.NDArray[np.float64]


def _repeat_for_all(vector: np.ndarray[tuple[int, ...], np.dtype[np.floating]], own: Updates) -> Updates:
    """Every attacker sends this."""
    with np.errstate(over="ignore"):
        return np.tile(vector.astype(np.float32), (own.shape[0], 1))


def _mean(honest: Updates) -> Wide:
    return honest.mean(axis=0, dtype=np.float64)


def inner_product(factor: float) -> Forge:
    """The honest mean times −factor (inner product manipulation: Xie, Koyejo, Gupta: "Fall of Empires", 2019). 1 is the
    sign flip; below n/f − 1 it shrinks the mean without turning it.
    """
    return lambda honest, own, generator: _repeat_for_all(-factor * _mean(honest), own)


def little_is_enough(z: float) -> Forge:
    """The honest mean plus z standard deviations of each coordinate (Baruch, Baruch, Goldberg: "A Little Is Enough",
    2019, algorithm 3): within the spread of the honest.
    """

    def forge(honest: Updates, own: Updates, generator: np.random.Generator) -> Updates:
        spread = honest.astype(np.float64).std(axis=0, ddof=1) if honest.shape[0] > 1 else 0.0
        return _repeat_for_all(_mean(honest) + z * spread, own)

    return forge


def mimic(place: int) -> Forge:
    """All copy one honest client, so that its data counts f times more (Karimireddy, He, Jaggi, 2022, section 3)."""
    return lambda honest, own, generator: _repeat_for_all(honest[place % honest.shape[0]], own)


def gaussian(sigma: float) -> Forge:
    """Noise around zero, each attacker its own."""
    return lambda honest, own, generator: generator.normal(0.0, sigma, own.shape).astype(np.float32)


def constant(value: float) -> Forge:
    """The same number everywhere: NaN, infinity."""
    return lambda honest, own, generator: np.full_like(own, value)


def min_max() -> Forge:
    """The honest mean moved against its own direction, just as far as no distance to an honest update exceeds the
    largest between two honest ones (Shejwalkar, Houmansadr: "Manipulating the Byzantine", 2021, equation 8, with the
    inverse unit vector).
    """

    def forge(honest: Updates, own: Updates, generator: np.random.Generator) -> Updates:
        mean, apart, unit, squares = _spread(honest)
        allowed = float(squares.max())
        # ‖m + γ u − x_i‖² ≤ allowed for all i is a quadratic in γ for each i; the least root holds for all.
        along, within = apart @ unit, np.einsum("ij,ij->i", apart, apart)
        roots = -along + np.sqrt(np.maximum(along * along - within + allowed, 0.0))
        return _repeat_for_all(mean + max(float(roots.min()), 0.0) * unit, own)

    return forge


def min_sum() -> Forge:
    """As `min_max`, but as far as the sum of squared distances to the honest updates exceeds no honest one's (equation
    9): nearer to them, harder to tell.
    """

    def forge(honest: Updates, own: Updates, generator: np.random.Generator) -> Updates:
        mean, apart, unit, squares = _spread(honest)
        # The honest differences from their mean sum to nothing, so only γ² n is added to the sum at the mean.
        room = float(squares.sum(axis=1).max() - np.einsum("ij,ij->", apart, apart)) / honest.shape[0]
        return _repeat_for_all(mean + max(room, 0.0) ** 0.5 * unit, own)

    return forge


def _spread(honest: Updates) -> tuple[Wide, Wide, Wide, Wide]:
    """The honest mean, its differences from each of them, the unit vector against it, their squared distances from each
    other.
    """
    mean = _mean(honest)
    apart = mean - honest
    products = apart @ apart.T
    own = np.diagonal(products)
    length = float(np.linalg.norm(mean))
    unit = -mean / length if length else np.zeros_like(mean)
    return mean, apart, unit, np.maximum(own[:, None] + own[None, :] - 2 * products, 0.0)


def replacement(boost: float) -> Forge:
    """Each attacker's own update, scaled up so that it outweighs the others (Bagdasaryan, Veit, Hua, Estrin, Shmatikov:
    "How To Backdoor Federated Learning", 2020, equation 3).
    """
    return lambda honest, own, generator: (own * np.float32(boost)).astype(np.float32)


def sybil(spread: float) -> Forge:
    """Copies of one attacker's update, all but equal, so that they are each other's nearest neighbours (Fung, Yoon,
    Beschastnikh, 2020): turned around and with the honest length.
    """

    def forge(honest: Updates, own: Updates, generator: np.random.Generator) -> Updates:
        mean = _mean(honest)
        noise = generator.normal(0.0, 1.0, own.shape) * spread * np.linalg.norm(mean) / np.sqrt(mean.size)
        return (-mean + noise).astype(np.float32)

    return forge


def free_rider() -> Forge:
    """Nothing at all, from clients that want the model without the work."""
    return lambda honest, own, generator: np.zeros_like(own)


def as_trained(honest: Updates, own: Updates, generator: np.random.Generator) -> Updates:
    """What training on the attackers' rows gave."""
    return own.copy()
