"""Models of other frameworks that somebody gives where a coterie model is meant: how to export each of them."""

from collections.abc import Mapping
from pathlib import PurePath
from typing import Final

from coterie.compute.onnx.importer.declared import EXPORT_LINE

_READ: Final = 'give onnx.load("model.onnx") of coterie.compute.'
_EXPORTS: Final[Mapping[str, tuple[str, str]]] = {
    "torch": ("PyTorch", EXPORT_LINE.replace("path", '"model.onnx"')),
    "keras": ("Keras", 'model.export("model.onnx", format="onnx")'),
    "tensorflow": ("TensorFlow", "python -m tf2onnx.convert --saved-model FOLDER --output model.onnx --opset 17"),
    "flax": ("Flax", 'jax2onnx.to_onnx(model, [x], return_mode="file", output_path="model.onnx")'),
    "sklearn": ("scikit-learn", 'open("model.onnx", "wb").write(skl2onnx.to_onnx(model, x).SerializeToString())'),
}
_FILES: Final[Mapping[str, str]] = {
    ".pt": "torch",
    ".pth": "torch",
    ".ckpt": "torch",
    ".keras": "keras",
    ".h5": "keras",
    ".pb": "tensorflow",
    ".pkl": "sklearn",
    ".joblib": "sklearn",
}


def export_hint(model: object) -> str | None:
    """How to bring another framework's model, by its class or the ending of its file; None for anything else."""
    if isinstance(model, str | PurePath):
        roots = [_FILES.get(PurePath(model).suffix.lower(), "")]
    else:
        kind = model if isinstance(model, type) else type(model)
        roots = [base.__module__.partition(".")[0] for base in kind.__mro__]
    root = next((root for root in roots if root in _EXPORTS), None)
    if root is None:
        return None
    name, line = _EXPORTS[root]
    return f"Export it from {name} with {line} and {_READ}"
