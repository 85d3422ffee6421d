"""Quantisation: numbers of few bits, int8 files after training, and training that knows of them.

The public names are loaded on first use: the mathematics needs neither ONNX nor its runtime.
"""

from typing import TYPE_CHECKING

from coterie.compute.lazy import loader

if TYPE_CHECKING:
    from coterie.compute.quant.affine import Affine as Affine
    from coterie.compute.quant.affine import asymmetric as asymmetric
    from coterie.compute.quant.affine import symmetric as symmetric
    from coterie.compute.quant.aware import float_model as float_model
    from coterie.compute.quant.aware import qat as qat
    from coterie.compute.quant.calibration import observe as observe
    from coterie.compute.quant.calibration import observed as observed
    from coterie.compute.quant.calibration import ranges_of as ranges_of
    from coterie.compute.quant.codebook import Codebook as Codebook
    from coterie.compute.quant.codebook import kmeans as kmeans
    from coterie.compute.quant.deployment import deploy as deploy
    from coterie.compute.quant.dynamic import quantise_dynamic as quantise_dynamic
    from coterie.compute.quant.fake import fake_quantise as fake_quantise
    from coterie.compute.quant.histogram import Histogram as Histogram
    from coterie.compute.quant.ptq import quantise as quantise
    from coterie.compute.quant.ptq import quantise_at as quantise_at
    from coterie.compute.quant.ptq import quantise_with as quantise_with
    from coterie.compute.quant.reporting import Report as Report
    from coterie.compute.quant.reporting import report as report
    from coterie.compute.quant.settings import QuantSettings as QuantSettings

_HOMES = {
    "Affine": "affine",
    "Codebook": "codebook",
    "Histogram": "histogram",
    "QuantSettings": "settings",
    "Report": "reporting",
    "asymmetric": "affine",
    "deploy": "deployment",
    "fake_quantise": "fake",
    "float_model": "aware",
    "kmeans": "codebook",
    "observe": "calibration",
    "observed": "calibration",
    "qat": "aware",
    "quantise": "ptq",
    "quantise_at": "ptq",
    "quantise_dynamic": "dynamic",
    "quantise_with": "ptq",
    "ranges_of": "calibration",
    "report": "reporting",
    "symmetric": "affine",
}

__all__ = list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]  the table above is the list

__getattr__ = loader(__name__, _HOMES)
