"""Foreign inference graphs as differentiable functions: every operator is translated into array functions."""

from coterie.compute.onnx.importer.model import ImportedModel as ImportedModel
from coterie.compute.onnx.importer.model import load as load
