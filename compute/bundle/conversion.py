"""Forms of a model for chips with compilers of their own.

coterie brings no such compiler. A package that does offers a ``Converter`` as an entry point of the group
``coterie.converters``; its output is taken into a bundle only when it gives the bundle's answers.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from coterie.compute.bundle.bundle import Bundle
from coterie.compute.bundle.quantisation import QuantisedTensor
from coterie.compute.bundle.verification import Runner, verify
from coterie.compute.extension.plugins import broken_plugin, installed, loaded
from coterie.errors import InputError

_LONGEST_NAME = 64


@dataclass(frozen=True, kw_only=True)
class Converter:
    """A chip's compiler. name: of the chip or its format, such as "bm1684x". convert: from the ONNX file and its
    quantisation table to the chip's bytes. open: from the chip's bytes to what runs them, there or in a simulator.

    Raises InputError for a name that could not be a file's.
    """

    name: str
    convert: Callable[[bytes, tuple[QuantisedTensor, ...]], bytes]
    open: Callable[[bytes], Runner]

    def __post_init__(self) -> None:
        plain = self.name.replace("-", "").replace("_", "").replace(".", "")
        if not (plain.isascii() and plain.isalnum() and len(self.name) <= _LONGEST_NAME):
            raise InputError(
                f"Converter: {self.name[:_LONGEST_NAME]!r} is no name of letters, digits, dots, dashes and underscores."
            )


def convert(bundle: Bundle, converter: Converter) -> Bundle:
    """The bundle with one more form of its model.

    Guarantees: what the converter made gives the bundle's answers within its thresholds. Raises InputError (code
    ``bundle_mismatch``) where it does not, naming the output and how far it is off.
    """
    made = converter.convert(bundle.model, bundle.table)
    found = verify(bundle, converter.open(made))
    if not found.passed:
        raise InputError(
            f"What the converter {converter.name} made of the model gives other answers: {'; '.join(found.misses)}.",
            hint="Quantise with more calibration rows, keep sensitive layers in float, or lower the thresholds.",
            code="bundle_mismatch",
        )
    return replace(bundle, converted={**bundle.converted, converter.name: made})


def load_converters() -> tuple[Converter, ...]:
    """The converters that installed packages offer as ``coterie.converters``. Raises ConfigurationError "plugin_broken"
    for an entry point that cannot be loaded or is no Converter.
    """
    found: list[Converter] = []
    for point in installed("coterie.converters"):
        converter = loaded(point)
        if not isinstance(converter, Converter):
            raise broken_plugin(point, f"{point.value} is no Converter.")
        found.append(converter)
    return tuple(found)
