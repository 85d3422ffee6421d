"""Writing graphs as ONNX files, checking them, and importing foreign ones (``load``)."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.compute.onnx.importer.model import ImportedModel as ImportedModel
    from coterie.compute.onnx.importer.reading import load as load

_HOMES = {"ImportedModel": "importer.model", "load": "importer.reading"}

__all__ = list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]  the table above is the list


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Imported on first use: the writer and the checker need none of it.
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
