"""Delivery of trained models: files for inference, smaller and faster, each proven to be the model that it was.

The public names are loaded on first use.
"""

from typing import TYPE_CHECKING

from coterie.compute.lazy import loader

if TYPE_CHECKING:
    from coterie.compute.export.bare_runs import infer_bare as infer_bare
    from coterie.compute.export.bare_runs import run_bare as run_bare
    from coterie.compute.export.comparison import Similarity as Similarity
    from coterie.compute.export.comparison import Thresholds as Thresholds
    from coterie.compute.export.comparison import similarity as similarity
    from coterie.compute.export.delivery import Exported as Exported
    from coterie.compute.export.delivery import export as export
    from coterie.compute.export.examples import Examples as Examples
    from coterie.compute.export.options import ExportOptions as ExportOptions
    from coterie.compute.export.report import ExportReport as ExportReport

_HOMES = {
    "Examples": "examples",
    "ExportOptions": "options",
    "ExportReport": "report",
    "Exported": "delivery",
    "Similarity": "comparison",
    "Thresholds": "comparison",
    "export": "delivery",
    "infer_bare": "bare_runs",
    "run_bare": "bare_runs",
    "similarity": "comparison",
}

__all__ = list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]  the table above is the list

__getattr__ = loader(__name__, _HOMES)
