"""The training step of a plan at shorter lengths of its sequences."""

from collections.abc import Mapping
from dataclasses import replace

from coterie import errors
from coterie.aggregation.compiling.graph_file import write_graph
from coterie.aggregation.compiling.graphs import GraphBuilder
from coterie.aggregation.plan.shapes import SHAPES
from coterie.aggregation.plan.stage import Stage, StageLength, length_file
from coterie.aggregation.sequence_lengths import Lengths, shortened
from coterie.protocol.canonical import sha256_hex


def write_lengths(builder: GraphBuilder, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The further files of a plan by name, one for each length.

    files: those of the full length. Raises errors.ExperimentError (``length_unwritable``), and what tracing raises.
    """
    (step,) = (rule.name for rule in SHAPES["horizontal"] if rule.over == "steps")
    found: dict[str, bytes] = {}
    for number, lengths in enumerate(_each(builder.experiment.lengths), 1):
        batch = replace(builder.batch, schema=shortened(builder.experiment.schema, lengths))
        short = replace(builder, batch=batch, calls=replace(builder.calls, batch=batch))
        try:
            found[length_file(step, number)] = write_graph(step, short.build(step)[step])
        except errors.InputError as error:
            raise errors.ExperimentError(
                f"Experiment {builder.experiment.name!r} has no step at the lengths {lengths}: {error.message}",
                hint="Let the model take its length from its input's shape, or leave this length out.",
                code="length_unwritable",
            ) from error
    return found


def with_lengths(stage: Stage, lengths: Lengths, files: Mapping[str, bytes]) -> Stage:
    """The stage with those of its lengths of which there is a file."""
    found: list[StageLength] = []
    for number, each in enumerate(_each(lengths), 1):
        data = files.get(length_file(stage.name, number))
        if data is not None:
            found.append(StageLength(lengths=each, sha256=sha256_hex(data), size=len(data)))
    return replace(stage, lengths=tuple(found))


def _each(lengths: Lengths) -> list[dict[str, int]]:
    """What each step is cut to."""
    return [dict(zip(lengths, each, strict=True)) for each in zip(*lengths.values(), strict=True)]
