"""The numeric jobs of secure aggregation. They run in the worker process: files in, files and numbers out."""

import json
import multiprocessing
import os
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from coterie.aggregation.fold.ring import Summed
from coterie.aggregation.plan.manifest import Manifest
from coterie.aggregation.secure import secure_aggregate, secure_evaluation
from coterie.aggregation.server_optimizers import server_optimizer
from coterie.errors import InternalError
from coterie.privacy.secagg import unmask
from coterie.privacy.secagg.encoding import vector_spec
from coterie.privacy.secagg.masked_file import MaskedHeader
from coterie.privacy.secagg.masks import MaskSeed
from coterie.privacy.secagg.ring import RingVector, reduced
from coterie.privacy.secagg.server import ServerState, plan_masks
from coterie.protocol.secagg import SecureTerms
from coterie.protocol.secure_sections import SecureSection
from coterie.protocol.tensors import read_file, write_file
from coterie.server.secure.machine import Failed, fold, read, settled
from coterie.server.store.blob_reader import BlobReader
from coterie.server.worker.rounds import STATE, central_noise, described
from coterie.server.worker.running_sum import TENSOR, Summands, sum_masked

WORDS_PER_PROCESS: Final = 1 << 28
"""So many words of masks are worth a process: a tenth of a second of work, about what it takes to start one."""
_SECTIONS: Final = TypeAdapter(tuple[SecureSection, ...])


def sum_job(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Add the masked vectors that are here to the running sum."""
    return {"holds": len(sum_masked(Path(arguments["cache"]), _summands(arguments)).holds)}


def unmask_job(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Open the sum of the survivors: secrets from what was revealed, and their masks off the sum.

    Answers the file of the sum in the folder ``out``, of how many clients it is, and whose shares did not fit; or why
    there is none.
    """
    state = ServerState.from_json(json.loads(Path(arguments["state"]).read_bytes()))
    revealed = json.loads(Path(arguments["revealed"]).read_bytes())
    opened = fold(state, ((int(place), read("reveal", text)) for place, text in revealed.items()))
    failed = settled(opened)
    if isinstance(failed, Failed):
        return {"cause": failed.cause, "detail": failed.detail}
    summands = _summands(arguments)
    if len(summands.tasks) != len(opened.survivors):
        raise InternalError(f"{len(summands.tasks)} masked vectors are here of {len(opened.survivors)} survivors.")
    total = sum_masked(Path(arguments["cache"]), summands).total
    _take_off(total, plan_masks(opened))
    path = Path(arguments["out"]) / "opened.safetensors"
    write_file(path, {TENSOR: reduced(total, summands.spec)})
    return {
        "total": described(path),
        "survivors": len(opened.survivors),
        "blamed": [[blame.dealer, blame.revealer] for blame in opened.blamed],
    }


def secure_aggregate_job(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Turn the sum of a round's updates into a new version and a new server state in the folder ``out``."""
    reader, state, central = BlobReader.from_json(arguments["blobs"]), arguments["server_state"], arguments["central"]
    result = secure_aggregate(
        Manifest.from_bytes(reader.read("blobs", arguments["manifest"], "a plan")),
        terms=SecureTerms.model_validate(arguments["terms"]),
        base=reader.read("blobs", arguments["base"], "a model version"),
        sums=[Summed(_total(reader, group), group["survivors"]) for group in arguments["sums"]],
        expected=arguments["expected"],
        server=server_optimizer(arguments["server"]["name"], arguments["server"]["parameters"]),
        server_state=reader.read("blobs", state, STATE) if state else None,
        out=Path(arguments["out"]),
        rule=arguments["reducer"],
        central=central_noise(central) if central else None,
    )
    return {
        "weights": described(Path(result.weights)),
        "state": described(Path(result.state)) if result.state else None,
        "metrics": dict(result.metrics),
        "clipped": result.clipped,
    }


def secure_evaluation_job(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Read what devices measured, together, out of the sum of their evaluations."""
    reader = BlobReader.from_json(arguments["blobs"])
    sums = secure_evaluation(
        Manifest.from_bytes(reader.read("blobs", arguments["manifest"], "a plan")),
        terms=SecureTerms.model_validate(arguments["terms"]),
        base=arguments["base"],
        total=_total(reader, arguments),
        survivors=arguments["survivors"],
    )
    return {"metrics": dict(sums.sums)}


def _total(reader: BlobReader, group: Mapping[str, Any]) -> RingVector:
    with reader.local_copy("updates", group["total"], "an opened sum") as path:
        return read_file(path)[TENSOR]


def _summands(arguments: Mapping[str, Any]) -> Summands:
    reader, digests = BlobReader.from_json(arguments["blobs"]), arguments["vectors"]
    return Summands(
        header=MaskedHeader(**arguments["header"]),
        spec=vector_spec(_SECTIONS.validate_python(arguments["sections"])),
        tasks=frozenset(digests),
        read=lambda task: reader.read("updates", digests[task], f"the masked vector of {task}"),
    )


def _take_off(total: RingVector, masks: tuple[MaskSeed, ...]) -> None:
    """By as many processes as there are cores and the work is worth."""
    worth = -(-len(masks) * total.size // WORDS_PER_PROCESS)
    processes = min(worth, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    if processes <= 1:
        unmask.remove(total, masks)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as executor:
        unmask.remove(total, masks, executor, processes)
