"""A model version as one file that needs nothing else: the graph of a prediction with the weights inside."""

from coterie.aggregation.evaluate import require_client
from coterie.aggregation.plan.manifest import Manifest
from coterie.aggregation.walk import Supply, filled
from coterie.protocol.arrays import ArraysByName


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
    without client state where each client's model is its own.
    """
    # Only this needs the onnx package, which takes long to load.
    from coterie.compute.onnx.weights import embed_weights

    stage = manifest.stage("infer")
    state = require_client(manifest, "predict", client_state)
    supply = Supply(model=weights, frozen=frozen or {}, client_state=state)
    return embed_weights(graph, filled(stage, supply), manifest.schema.metadata())
