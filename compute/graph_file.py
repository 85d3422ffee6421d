"""A graph as a file, and the name that its content gives it.

The file is the text form under one line of head, "coterie graph 1 sha256:<digest>".
"""

import os
from hashlib import sha256
from pathlib import Path

from coterie.compute.ir import Graph
from coterie.compute.text import parse, to_text
from coterie.errors import InputError, StorageError

_HEAD = "coterie graph 1 sha256:"


def graph_digest(graph: Graph) -> str:
    """The SHA-256 of what a graph computes, in hexadecimal.

    Equal for equal nodes in equal order, on every machine and in every process; lines of the user's code do not count,
    names of inputs and outputs do. Primitives of a user's own count by name.
    """
    return sha256(to_text(graph, sources=False).encode()).hexdigest()


def save_graph(graph: Graph, path: str | Path) -> str:
    """Write a graph, whole or not at all, and return its digest. Raises StorageError where the file cannot be
    written.
    """
    target, digest = Path(path), graph_digest(graph)
    partial = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        partial.write_text(f"{_HEAD}{digest}\n{to_text(graph)}", encoding="utf-8", newline="\n")
        partial.replace(target)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise StorageError(f"The graph cannot be written to {target}: {error.strerror}.") from error
    return digest


def load_graph(path: str | Path) -> Graph:
    """The graph of a file, verified. Nothing in it is executed.

    Raises StorageError for a file that cannot be read, InputError for one that is no graph or has another digest than
    it says, TraceError for a graph that breaks a law or uses a primitive that is not registered.
    """
    try:
        head, _, text = Path(path).read_text(encoding="utf-8").partition("\n")
    except OSError as error:
        raise StorageError(f"The graph in {path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no graph of coterie: it is not text.", code="graph_file_invalid") from error
    if not head.startswith(_HEAD):
        raise InputError(
            f"{path} is no graph of coterie.", hint=f"It begins with {_HEAD!r}.", code="graph_file_invalid"
        )
    graph = parse(text)
    if (digest := graph_digest(graph)) != head.removeprefix(_HEAD):
        raise InputError(
            f"The graph in {path} was changed: its digest is {digest}, not {head.removeprefix(_HEAD)}.",
            hint="Fetch it again, or save_graph(...) what you mean.",
            code="graph_file_invalid",
        )
    return graph
