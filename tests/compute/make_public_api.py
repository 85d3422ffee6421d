"""Write public_api.txt: every public name of the compute core with its signature, one a line.

    python tests/compute/make_public_api.py

Run it when a public name changes on purpose, and look at the difference.
"""

import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np

PAGE = Path(__file__).parent / "public_api.txt"
MODULES = (
    "coterie.compute", "coterie.compute.data", "coterie.compute.numpy", "coterie.compute.ops", "coterie.compute.nn",
    "coterie.compute.nn.losses", "coterie.compute.nn.metrics", "coterie.compute.nn.zoo", "coterie.compute.optim",
    "coterie.compute.linalg", "coterie.compute.fft",
    "coterie.compute.export", "coterie.compute.bundle", "coterie.compute.quant", "coterie.compute.compress",
)  # fmt: skip


def names_of(module: ModuleType) -> list[str]:
    """What a module says is public: its ``__all__``, else the functions and classes of its own, dtypes and numbers."""
    listed: list[str] | None = getattr(module, "__all__", None)
    if listed is not None:
        return sorted(listed)

    def is_own(value: object) -> bool:
        if module.__name__.endswith(".numpy") and (isinstance(value, float) or _is_dtype(value)):
            return True
        home = str(getattr(value, "__module__", ""))
        return (inspect.isfunction(value) or inspect.isclass(value)) and home.startswith(module.__name__)

    return sorted(name for name, value in vars(module).items() if not name.startswith("_") and is_own(value))


def _is_dtype(value: object) -> bool:
    return isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic))


def described(value: object) -> str:
    """A callable's parameter names and kinds; nothing for what cannot be called. Types and defaults are left out: they
    are printed differently by different versions of Python.
    """
    if not (inspect.isfunction(value) or inspect.isclass(value)) or _is_dtype(value):
        return ""
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return ""
    marks = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    words: list[str] = []
    for parameter in parameters:
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not any(word.startswith("*") for word in words):
            words.append("*")
        optional = "=" if parameter.default is not inspect.Parameter.empty else ""
        words.append(f"{marks.get(parameter.kind, '')}{parameter.name}{optional}")
    return f"({', '.join(words)})"


def lines() -> Iterator[str]:
    """The whole page, line by line."""
    for name in MODULES:
        module = import_module(name)
        for public in names_of(module):
            yield f"{name}.{public}{described(getattr(module, public))}"


def rendered() -> str:
    """The page."""
    return "\n".join(lines()) + "\n"


if __name__ == "__main__":
    PAGE.write_text(rendered(), encoding="utf-8")
