"""A model with what is needed to trust it elsewhere: its quantisation table, checks with known answers, and how much a
converted form must be like it.

The public names are loaded on first use.
"""

from typing import TYPE_CHECKING

from coterie.compute.lazy import loader

if TYPE_CHECKING:
    from coterie.compute.bundle.bundle import Bundle as Bundle
    from coterie.compute.bundle.bundle import make_bundle as make_bundle
    from coterie.compute.bundle.conversion import Converter as Converter
    from coterie.compute.bundle.conversion import convert as convert
    from coterie.compute.bundle.conversion import load_converters as load_converters
    from coterie.compute.bundle.file import read_bundle as read_bundle
    from coterie.compute.bundle.file import write_bundle as write_bundle
    from coterie.compute.bundle.quantisation import QuantisedTensor as QuantisedTensor
    from coterie.compute.bundle.quantisation import quantisation_table as quantisation_table
    from coterie.compute.bundle.verification import Verification as Verification
    from coterie.compute.bundle.verification import verify as verify

_HOMES = {
    "Bundle": "bundle",
    "Converter": "conversion",
    "QuantisedTensor": "quantisation",
    "Verification": "verification",
    "convert": "conversion",
    "load_converters": "conversion",
    "make_bundle": "bundle",
    "quantisation_table": "quantisation",
    "read_bundle": "file",
    "verify": "verification",
    "write_bundle": "file",
}

__all__ = list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]  the table above is the list

__getattr__ = loader(__name__, _HOMES)
