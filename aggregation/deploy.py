"""A model version as a file that needs nothing else: the graph of a prediction with the weights inside."""

from pathlib import Path

from coterie.aggregation.evaluate import require_client
from coterie.aggregation.plan.manifest import Manifest
from coterie.aggregation.walk import Supply, filled
from coterie.protocol.arrays import ArrayDict, ArraysByName
from coterie.protocol.files import write_durably


def inference_file(
    manifest: Manifest,
    graph: bytes,
    weights: ArraysByName,
    *,
    frozen: ArraysByName | None = None,
    client_state: ArraysByName | None = None,
) -> bytes:
    """An ONNX file whose inputs are the schema's features (raw values) and whose output is ``output``.

    graph: the file of the plan's stage ``infer``.
    weights: the version's tensors.
    frozen: the frozen blob's.
    client_state: of the client whose model it is.
    Raises errors.PlanRefused (``plan_stage_absent``) for an external plan; errors.ExperimentError (``personal_model``)
    without client state where each client's model is its own; errors.GraphRefused above 2 GiB.
    """
    # Only this needs the onnx package, which takes long to load.
    from coterie.compute.onnx.weights import embed_weights

    return embed_weights(graph, _held(manifest, weights, frozen, client_state), manifest.schema.metadata())


def save_inference(
    path: Path,
    manifest: Manifest,
    graph: bytes,
    weights: ArraysByName,
    *,
    frozen: ArraysByName | None = None,
    client_state: ArraysByName | None = None,
) -> None:
    """Write what `inference_file` makes to ``path`` and make its folder; above 2 GiB with the weights in a file beside
    it, whose name follows from its SHA-256 and whose whole SHA-256 the model's metadata say.

    Guarantees: the file at ``path`` is whole or absent, and so is what it needs. No file of weights is deleted, that of
    a model which is replaced among them: another model in the folder may need it. Raises errors.StorageError, and what
    `inference_file` raises but for the size.
    """
    from coterie.compute.onnx.weights import embed_weights, fits_one_file, weights_beside

    held, metadata = _held(manifest, weights, frozen, client_state), manifest.schema.metadata()
    path.parent.mkdir(parents=True, exist_ok=True)
    if fits_one_file(graph, held):
        write_durably(path, embed_weights(graph, held, metadata))
        return
    parts = weights_beside(graph, held, metadata)
    write_durably(path.with_name(parts.name), parts.chunks())
    write_durably(path, parts.model)


def _held(
    manifest: Manifest, weights: ArraysByName, frozen: ArraysByName | None, client_state: ArraysByName | None
) -> ArrayDict:
    """What the graph of predictions reads beside the features, by input."""
    stage = manifest.stage("infer")
    state = require_client(manifest, "predict", client_state)
    return filled(stage, Supply(model=weights, frozen=frozen or {}, client_state=state))
