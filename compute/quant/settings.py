"""How a model is quantised, as one value."""

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from coterie.errors import InputError

Form: TypeAlias = Literal["symmetric", "asymmetric"]
Method: TypeAlias = Literal["minmax", "percentile", "kl"]

FEWEST_BITS, MOST_BITS = 2, 8


@dataclass(frozen=True, kw_only=True)
class QuantSettings:
    """weights: ``symmetric`` (their zero is level 0, what integer kernels are fastest with) or ``asymmetric``.
    activations: the same for what flows between operators, or None to quantise weights alone: the file is as small, and
    computes in float32.
    per_channel: a scale for every output channel of a weight, or one for the whole tensor.
    weight_bits, activation_bits: 2 to 8. Below 8 the levels are fewer and are still stored, and computed with, as
    bytes: for judging accuracy, and (7 bits for weights) for x86 processors without VNNI, whose 16-bit sums of products
    of bytes can saturate.
    calibration: how the range of an activation is chosen from what was observed, see `ranges_of`; percentile: how much
    of it stays inside, for the method of that name.

    Raises InputError for a value outside these.
    """

    weights: Form = "symmetric"
    activations: Form | None = "asymmetric"
    per_channel: bool = True
    weight_bits: int = 8
    activation_bits: int = 8
    calibration: Method = "minmax"
    percentile: float = 99.99

    def __post_init__(self) -> None:
        choices = {
            "weights": (self.weights, get_args(Form)),
            "activations": (self.activations, (*get_args(Form), None)),
            "calibration": (self.calibration, get_args(Method)),
        }
        for name, (value, known) in choices.items():
            if value not in known:
                listed = ", ".join(map(repr, known))
                raise InputError(f"QuantSettings: {name} must be one of {listed}, got {value!r}.")
        check_bits("QuantSettings", weight_bits=self.weight_bits, activation_bits=self.activation_bits)
        if not 50 < self.percentile <= 100:
            raise InputError(f"QuantSettings: percentile must be above 50 and at most 100, got {self.percentile!r}.")


def check_bits(where: str, **bits: int) -> None:
    """Require whole numbers from 2 to 8. Raises InputError naming the first that is none."""
    for name, value in bits.items():
        if type(value) is not int or not FEWEST_BITS <= value <= MOST_BITS:
            raise InputError(
                f"{where}: {name} must be a whole number from {FEWEST_BITS} to {MOST_BITS}, got {value!r}."
            )
