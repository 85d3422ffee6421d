"""What an exporter says of the tensors of a file: PyTorch's newer one lists the module's parameters and buffers."""

import re
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from coterie.compute.onnx.importer.graph import Held, Step

EXPORT_LINE: Final = "torch.onnx.export(module.eval(), (x,), path, dynamo=True, optimize=False, external_data=False)"
"""What keeps every parameter of a module under its own name."""
_KEY: Final = "pkg.torch.export.ExportedProgram.graph_signature"
_LINE: Final = re.compile(r"^\w+: (PARAMETER|BUFFER|CONSTANT_TENSOR) target='([^']+)'", re.MULTILINE)
_FOLDED: Final = re.compile(r"onnx::Conv(Transpose)?_[0-9]+$")
_TOLD: Final = 6


@dataclass(frozen=True)
class Declared:
    """Names of a module's own tensors: parameters, which it trains, and others (buffers, constants)."""

    parameters: frozenset[str]
    others: frozenset[str]

    def missing(self, held: Held) -> list[str]:
        """Parameters that the file does not hold, in the order of their names."""
        return sorted(self.parameters - held.keys())

    def is_folded(self, held: Held, listed: Iterable[str], trained: Iterable[str]) -> bool:
        """Whether the exporter has made parameters into something else. listed: the tensors in the list of
        initialisers; trained: what is read as data.

        A parameter may also be missing because nothing reads it, or another one is the same tensor.
        """
        made = set(listed) & set(trained) - self.parameters - self.others
        statistics = {name for name in self.others if name.endswith(("running_mean", "running_var"))}
        return bool(statistics - held.keys()) or bool(made and self.missing(held))


def declared_in(graph: Any) -> Declared | None:
    """What the metadata of a graph says; None where they say nothing of parameters."""
    text = next((entry.value for entry in graph.metadata_props if entry.key == _KEY), "")
    found = _LINE.findall(text)
    parameters = frozenset(name for kind, name in found if kind == "PARAMETER")
    others = frozenset(name for kind, name in found if kind != "PARAMETER")
    return Declared(parameters, others) if parameters else None


def warn_of_folding(declared: Declared, held: Held) -> None:
    """Say that an exporter has merged parameters of the module into others."""
    missing = declared.missing(held)
    warnings.warn(
        f"The exporter has folded {len(missing)} of the module's parameters into other tensors, among them "
        f"{_list(missing)}. Batch normalisation that was folded is gone in training, layers that happened to be equal "
        f"may be trained as one, and weights cannot go back by name. Export with {EXPORT_LINE}.",
        UserWarning,
        stacklevel=4,
    )


def warn_of_folded_convolutions(steps: Iterable[Step]) -> None:
    """Say that PyTorch's older exporter has folded batch normalisation into convolutions: then, and only then, it takes
    their names from them.
    """
    folded = [name for step in steps for name in step.inputs[1:2] if _FOLDED.match(name)]
    if folded:
        warnings.warn(
            f"The exporter has folded batch normalisation into {len(folded)} convolutions ({_list(folded)}): it is "
            f"gone in training, and their weights cannot go back by name. Export with {EXPORT_LINE}.",
            UserWarning,
            stacklevel=4,
        )


def _list(names: list[str]) -> str:
    return ", ".join(names[:_TOLD]) + (", …" if len(names) > _TOLD else "")
