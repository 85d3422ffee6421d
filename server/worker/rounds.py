"""The numeric jobs of a round. They run in the worker process: files in, files and numbers out."""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from numpy.typing import NDArray

from coterie.aggregation.accumulate import AccumulatorHeader, accumulate_updates
from coterie.aggregation.aggregate import Rejection, aggregate_updates
from coterie.aggregation.plan.manifest import Manifest
from coterie.aggregation.private.central import CentralNoise
from coterie.aggregation.server_optimizers import server_optimizer
from coterie.aggregation.staleness import Lags
from coterie.aggregation.update_files import UpdateFile
from coterie.errors import StorageError
from coterie.protocol.privacy import UserLevel
from coterie.protocol.tensors import read_file
from coterie.protocol.wire import read_message
from coterie.server.store.blob_reader import DAMAGED, BlobReader

BASE: Final = "a model version that updates are based on"
STATE: Final = "the server's state"


def aggregate_job(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Turn the update files of a round into a new version and a new server state in the folder ``out``."""
    reader, central = BlobReader.from_json(arguments["blobs"]), arguments.get("central")
    manifest, state = _manifest(reader, arguments), arguments["server_state"]
    with ExitStack() as lent:
        updates, lost = _lend_updates(lent, reader, arguments["updates"])
        result = aggregate_updates(
            manifest,
            base=reader.read("blobs", arguments["base"], BASE),
            updates=updates,
            server=server_optimizer(arguments["server"]["name"], arguments["server"]["parameters"]),
            server_state=reader.read("blobs", state, STATE) if state else None,
            out=Path(arguments["out"]),
            rule=arguments["reducer"],
            trusted=arguments.get("trusted"),
            weight_cap=arguments["weight_cap"],
            lags=_lags(lent, reader, arguments["lags"]),
            central=None if central is None else central_noise(central),
        )
    return {
        "weights": described(Path(result.weights)),
        "state": described(Path(result.state)) if result.state else None,
        "metrics": dict(result.metrics),
        "accepted": list(result.accepted),
        "rejected": lost + _rejections(result.rejected),
    }


def accumulate_job(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Turn the update files of an edge aggregator's round into the accumulator that it sends on."""
    reader = BlobReader.from_json(arguments["blobs"])
    with ExitStack() as lent:
        updates, lost = _lend_updates(lent, reader, arguments["updates"])
        result = accumulate_updates(
            _manifest(reader, arguments),
            AccumulatorHeader(
                task=arguments["task"],
                base=arguments["base"],
                reducer=arguments["reducer"],
                min_clients=arguments["min_clients"],
                max_clients=arguments["max_clients"],
            ),
            updates=updates,
            weight_cap=arguments["weight_cap"],
            out=Path(arguments["out"]),
        )
    return {
        "accumulator": {"path": result.path, "sha256": result.sha256, "size": result.size},
        "metrics": dict(result.metrics),
        "rejected": lost + _rejections(result.rejected),
    }


def evaluate_job(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Measure a version on the coordinator's own rows."""
    # The only job that runs graphs: the others start without ONNX Runtime.
    from coterie.aggregation.evaluate import evaluate, predictions, with_whole

    reader = BlobReader.from_json(arguments["blobs"])
    graphs = {name: reader.read("blobs", digest, "a plan's graph") for name, digest in arguments["graphs"].items()}
    manifest = _manifest(reader, arguments)
    frozen = arguments["frozen"]
    weights = read_file(reader.range_of("blobs", arguments["weights"], "a model version"))
    rows = read_file(reader.range_of("blobs", arguments["data"], "the evaluation rows"))
    fixed = read_file(reader.range_of("blobs", frozen, "the frozen weights")) if frozen else None
    sums = evaluate(graphs, manifest, weights, rows, frozen=fixed)

    def predict() -> NDArray[Any]:
        return predictions(graphs, manifest, weights, rows, frozen=fixed)

    sums = with_whole(sums, tuple(arguments["metrics"]), predict, rows[manifest.schema.label.name])
    return {"metrics": dict(sums.sums)}


def _manifest(reader: BlobReader, arguments: Mapping[str, Any]) -> Manifest:
    return Manifest.from_bytes(reader.read("blobs", arguments["manifest"], "a plan"))


def _lend_updates(
    lent: ExitStack, reader: BlobReader, updates: Mapping[str, str]
) -> tuple[list[UpdateFile], list[dict[str, str]]]:
    """The updates by task, as files for as long as ``lent`` is open: rules go through them in blocks, as often as they
    need, so that memory does not grow with their number. Each is held to its digest when it is read. Also the tasks of
    those that are missing, with why they do not count.
    """
    present: list[UpdateFile] = []
    lost: list[dict[str, str]] = []
    for task, digest in updates.items():
        try:
            path = lent.enter_context(reader.local_copy("updates", digest, "an update", check=False))
            present.append(UpdateFile(task, path, digest))
        except (StorageError, OSError):
            message = reader.damaged("updates", digest, "an update").message
            lost.append({"task": task, "code": DAMAGED, "message": message})
    return present, lost


def _rejections(rejected: Sequence[Rejection]) -> list[dict[str, str]]:
    return [{"task": entry.task, "code": entry.code, "message": entry.message} for entry in rejected]


def central_noise(value: Mapping[str, Any]) -> CentralNoise:
    """The noise that the coordinator adds, as a job is told of it."""
    return CentralNoise(
        privacy=read_message(UserLevel, value["privacy"]),
        round=value["round"],
        rounds=value["rounds"],
        expected=value["expected"],
        seed=bytes.fromhex(value["seed"]),
        groups=value.get("groups", 1),
    )


def _lags(lent: ExitStack, reader: BlobReader, value: Mapping[str, Any]) -> Lags:
    files = {
        digest: lent.enter_context(reader.local_copy("blobs", digest, BASE))
        for digest in sorted(set(value["bases"].values()))
    }
    bases = {task: files[digest] for task, digest in value["bases"].items()}
    return Lags(versions=value["versions"], bases=bases, exponent=value["exponent"])


def described(path: Path) -> dict[str, Any]:
    """A file that a job made, as its answer names it."""
    return {"path": str(path), "sha256": _sha256(path), "size": path.stat().st_size}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
