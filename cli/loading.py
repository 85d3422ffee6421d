"""An experiment from the researcher's own file."""

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from inspect import signature
from pathlib import Path
from traceback import extract_tb
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final, cast

from coterie.errors import ConfigurationError, CoterieError, ExperimentError, InputError, nearest

if TYPE_CHECKING:
    from coterie.aggregation.experiment import Experiment

_UNKNOWN_ARGUMENT: Final = re.compile(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'")
# How a package of coterie ends its word on a name that it does not have.
_SAID: Final = re.compile(r" (Did you mean \w+\?|Here that is .+\.)$")


class _AsItIs(SourceFileLoader):
    """Compiles a file whenever it is loaded: what Python keeps of one that was changed twice within a second, to the
    same length, is of the first change.
    """

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def split_target(target: str) -> tuple[Path, str]:
    """`FILE` or `FILE:name` as a path and a name; the name is `experiment` when absent."""
    path, colon, name = target.rpartition(":")
    if colon and name.isidentifier() and not Path(target).exists():
        return Path(path), name
    return Path(target), "experiment"


def load_module(path: Path) -> ModuleType:
    """Run a researcher's file as a module; its own folder is importable from it, as with `python FILE`."""
    if not path.is_file():
        raise ExperimentError(
            f"There is no file {path}.", hint="`coterie new DIR` writes one to start from.", code="experiment_file"
        )
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    loader = _AsItIs(path.stem, str(path.resolve()))
    spec = spec_from_file_location(path.stem, path.resolve(), loader=loader)
    if spec is None or path.suffix != ".py":
        raise ExperimentError(
            f"{path} is not a Python file.", hint="Name a file that ends in .py.", code="experiment_file"
        )
    module = module_from_spec(spec)
    sys.modules[path.stem] = module
    _in_users_code(path, lambda: loader.exec_module(module))
    return module


def load_experiment(target: str) -> "tuple[Experiment, ModuleType]":
    """The experiment that `FILE[:name]` names (a value, or a function that returns it), and its module."""
    from coterie.aggregation.experiment import Experiment

    path, name = split_target(target)
    module = load_module(path)
    value = attribute(module, path, name)
    if callable(value) and not isinstance(value, Experiment):
        value = _in_users_code(path, cast(Callable[[], Any], value))
    if not isinstance(value, Experiment):
        raise ExperimentError(
            f"{path}: `{name}` is a {type(value).__name__}, not an Experiment.",
            hint="Name another one with FILE:name, or make it with coterie.Experiment(...).",
            code="experiment_file",
        )
    return value, module


def call(module: ModuleType, path: Path, name: str) -> Any:
    """What the file's function `name` returns."""
    value = attribute(module, path, name)
    return _in_users_code(path, cast(Callable[[], Any], value)) if callable(value) else value


def _is_own(module: ModuleType, name: str, value: object) -> bool:
    """Whether a file made the name itself: not what it imports, as far as that can be told."""
    imported = isinstance(value, ModuleType) or (
        isinstance(value, type | FunctionType) and value.__module__ != module.__name__
    )
    return not name.startswith("_") and not imported


def attribute(module: ModuleType, path: Path, name: str) -> Any:
    """A name of the researcher's file."""
    try:
        return getattr(module, name)
    except AttributeError:
        public = sorted(key for key, value in vars(module).items() if _is_own(module, key, value))
        raise ExperimentError(
            f"{path} has no `{name}`; it has {', '.join(public) or 'no names at all'}.",
            hint=f"Add `{name}` to the file, or name another with FILE:name.",
            code="experiment_file",
        ) from None


def _in_users_code(path: Path, run: Callable[[], Any]) -> Any:
    """Run the researcher's code; what it raises is told with the line of the researcher's file."""
    try:
        return run()
    except CoterieError as error:
        if not error.message.startswith(str(path)) and (where := _line_in(path, error)):
            error.message = f"{where}: {error.message}"
        raise
    except SyntaxError as error:
        # Also that of a file which the researcher's own imports.
        file = path if error.filename is None or Path(error.filename) == path.resolve() else error.filename
        line = (error.text or "").strip()
        raise ExperimentError(
            f"{file}, line {error.lineno}: {error.msg}{f': {line}' if line else '.'}",
            hint="Fix that line: it is not valid Python.",
            code="experiment_file",
        ) from error
    except Exception as error:
        meant = _suggestion(error)
        told = str(error).removesuffix(meant or "").rstrip()
        raise ExperimentError(
            f"{_line_in(path, error) or path}: {type(error).__name__}: {told}",
            hint=meant or "Run the file with `python` to see more.",
            code="experiment_file",
        ) from error


def _line_in(path: Path, error: BaseException) -> str:
    """The last line of the researcher's file that an error passed; empty where it passed none."""
    lines = [frame.lineno for frame in extract_tb(error.__traceback__) if Path(frame.filename) == path.resolve()]
    return f"{path}, line {lines[-1]}" if lines else ""


def _suggestion(error: Exception) -> str | None:
    """What somebody most likely meant who used a name or an argument that there is not."""
    if isinstance(error, AttributeError) and (said := _SAID.search(str(error))):
        return said[1]
    found = _UNKNOWN_ARGUMENT.search(str(error))
    kind: object = getattr(import_module("coterie"), found[1], None) if found else None
    if found is None or not isinstance(kind, type):
        return None
    known = [name for name in signature(kind).parameters if not name.startswith("_")]
    near = nearest(found[2], known)
    return f"Did you mean {near}?" if near else f"{found[1]} takes {', '.join(known)}."


def entry_point(entry: str) -> Any:
    """The object that `module:object` names; the module may lie in the working folder."""
    module, colon, name = entry.partition(":")
    if not colon or not name.isidentifier():
        raise ConfigurationError(
            f"{entry!r} is not of the form module:object.",
            hint="For example: --trainer mine:trainer",
            code="entry_point",
        )
    working = str(Path.cwd())
    if working not in sys.path:
        sys.path.insert(0, working)
    try:
        return getattr(import_module(module), name)
    except ImportError as error:
        raise ConfigurationError(
            f"{entry}: {error}.",
            hint="Run the command in the folder of that module, or install it.",
            code="entry_point",
        ) from error
    except AttributeError:
        raise ConfigurationError(
            f"{entry}: {module} has no {name}.", hint="Check the name.", code="entry_point"
        ) from None


def override(
    experiment: "Experiment", *, rounds: int | None = None, seed: int | None = None, initial: Path | None = None
) -> "Experiment":
    """The experiment with what the command line changes: number of rounds, seed, weights to start from."""
    changes: dict[str, Any] = {}
    if rounds is not None:
        kept = experiment.rounds.model_dump(exclude={"rounds", "hyper_schedule"})
        schedule = {name: values[:rounds] for name, values in (experiment.rounds.hyper_schedule or {}).items()}
        changes["rounds"] = type(experiment.rounds)(**kept, rounds=rounds, hyper_schedule=schedule or None)
    if seed is not None:
        changes["seed"] = seed
    if initial is not None:
        from coterie.protocol.tensors import read_file

        try:
            changes["initial"] = read_file(initial)
        except InputError as error:
            raise InputError(
                f"{initial} holds no weights: {error.message}",
                hint="`coterie models download RUN weights.safetensors --form weights` writes such a file.",
                code=error.reason,
            ) from error
    return replace(experiment, **changes) if changes else experiment
