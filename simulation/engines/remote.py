"""A worker that may be on another machine: it is given and gives back text and bytes."""

import json
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.plan.bundle import Plan
from coterie.aggregation.plan.manifest import Manifest
from coterie.errors import CoterieError
from coterie.protocol.arrays import FloatArrays
from coterie.protocol.tensors import decode_tensors, encode_tensors
from coterie.simulation.assignment import Assignment
from coterie.simulation.engines.job import OwnRows, error_answer, perform
from coterie.simulation.engines.naming import resolve_trainer
from coterie.simulation.work import Workplace


class Remote:
    """What a remote worker is told of a plan.

    manifest, graphs: of the plan.
    frozen: a tensor file.
    trainer: its name.
    """

    def __init__(self, manifest: bytes, graphs: Mapping[str, bytes], frozen: bytes, trainer: str) -> None:
        plan = Plan(Manifest.from_bytes(manifest), graphs)
        # An error here is told by `ready`: where an object is made, its place would wrap it into errors of its own.
        self._problem: CoterieError | None = None
        try:
            self._workplace = Workplace(plan, decode_tensors(frozen), resolve_trainer(trainer))
        except CoterieError as error:
            self._problem = error
        self._weights: tuple[str, FloatArrays] = ("", {})
        self._own = OwnRows(plan.manifest)

    def ready(self) -> str:
        """Whether it can work, as JSON: empty, or the error (see `raise_reported`)."""
        return json.dumps({} if self._problem is None else error_answer(self._problem))

    def perform(self, job: str, weights: NDArray[np.uint8], rows: bytes, state: bytes) -> tuple[str, bytes]:
        """Do one job.

        job: JSON.
        weights, rows, state: tensor files. The answer as JSON, and a tensor file.
        """
        request = json.loads(job)
        assignment = Assignment(**request["assignment"])
        if self._weights[0] != assignment.base:
            self._weights = (assignment.base, decode_tensors(weights.tobytes()))
        try:
            own_rows = decode_tensors(rows) or self._own.of(request["source"], request["kind"])
        except CoterieError as error:
            return json.dumps(error_answer(error)), encode_tensors({})
        answer, tensors = perform(
            self._workplace,
            request["kind"],
            request["number"],
            own_rows,
            decode_tensors(state),
            self._weights[1],
            assignment,
        )
        return json.dumps(answer), encode_tensors(tensors)
