"""Writing graphs as ONNX files, checking them, and importing foreign ones (``load``)."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.compute.onnx.importer.model import ImportedModel as ImportedModel
    from coterie.compute.onnx.importer.model import load as load

__all__ = ["ImportedModel", "load"]  # pyright: ignore[reportUnsupportedDunderAll]  loaded on first use, below


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Imported on first use: the writer and the checker need none of it.
    from coterie.compute.onnx import importer

    return getattr(importer, name)
