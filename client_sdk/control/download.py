"""Getting a model version out of a coordinator, as a file that needs nothing else."""

import asyncio
from pathlib import Path
from typing import Final, Literal

from coterie.aggregation.averaging import average
from coterie.aggregation.plan.manifest import Manifest
from coterie.calls import Parameter, name_of, read_call
from coterie.client_sdk.control.client import ControlClient
from coterie.errors import ConfigurationError, ExperimentError, NotFound
from coterie.protocol.control import ModelView
from coterie.protocol.files import write_durably
from coterie.protocol.tensors import decode_tensors, encode_tensors

Form = Literal["infer", "weights"]
FORMS: Final[tuple[Form, ...]] = ("infer", "weights")
SHORTEST_PREFIX: Final = 6
_AVERAGE: Final = {"average": (Parameter("n", 1, most=9999),)}


async def download(
    client: ControlClient, experiment: str, path: Path, *, version: str = "best", form: Form = "infer"
) -> Path:
    """Write a model version to ``path`` (made with its folders) and return the path.

    version: ``best``, ``latest``, a round's number, a version's SHA-256 or the beginning of one, or ``average(n)``: the
        mean of the last n versions that the run made, of all where they are fewer.
    form: ``infer`` is an ONNX file with the weights inside, whose inputs are the schema's features (raw values) and
        whose output is ``output``, above 2 GiB with the weights in a file beside it; ``weights`` is the version's
        safetensors file as it is.
    Guarantees: every byte that was downloaded has the digest by which it is known; the file is whole or absent.
    Raises ConfigurationError for another form, NotFound for a version that is not there, ExperimentError: ``no_infer``
    when the plan has no inference graph, ``personal_model`` when each client's model is its own; RemoteError,
    StorageError.
    """
    if form not in FORMS:
        raise ConfigurationError(f"There is no form {form!r}.", hint=f"Choose one of {', '.join(FORMS)}.")
    view = await client.experiment(experiment)
    chosen = choose(await client.models(view.id), version, view.best)
    weights = await _weights(client, chosen)
    if form == "infer":
        await _save_infer(client, view.plan.id, weights, path)
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, weights)
    return path


def choose(models: list[ModelView], version: str, best: str | None) -> list[ModelView]:
    """The versions that a name means: one, or those that are to be averaged. Raises NotFound, which lists what there
    is.
    """
    found: list[ModelView] = []
    if name_of(version) in _AVERAGE and models:
        count = int(read_call(version, _AVERAGE, _invalid).numbers["n"])
        # What a run began with is none of what it made, and mostly random numbers.
        made = [model for model in models if model.round > 0]
        return (made or models)[-count:]
    if version == "latest" or (version == "best" and best is None):
        found = models[-1:]
    elif version == "best":
        found = [model for model in models if model.sha256 == best]
    elif version.isdecimal() and len(version) < SHORTEST_PREFIX:
        found = [model for model in models if model.round == int(version)]
    elif len(version) >= SHORTEST_PREFIX:
        found = [model for model in models if model.sha256.startswith(version)]
    if len({model.sha256 for model in found}) == 1:
        return found[:1]
    rounds = f"{models[0].round} to {models[-1].round}" if models else "(there is none yet)"
    raise NotFound(
        f"{'No' if not found else 'More than one'} model version is called {version!r}.",
        hint=f"Say best, latest, average(3), a SHA-256 of at least {SHORTEST_PREFIX} digits, or a round: {rounds}.",
        code="model_unknown",
    )


def _invalid(why: str) -> NotFound:
    return NotFound(
        f"This model version cannot be read: {why}.",
        hint="Say best, latest, a round, or average(5) for the mean of the last five versions.",
        code="model_unknown",
    )


async def forms(client: ControlClient, experiment: str) -> tuple[Form, ...]:
    """The forms in which an experiment's versions can be had. Raises RemoteError."""
    view = await client.experiment(experiment)
    manifest = Manifest.from_bytes(await client.blob(view.plan.id))
    return FORMS if manifest.find("infer") and not manifest.personal("predict") else ("weights",)


async def _weights(client: ControlClient, models: list[ModelView]) -> bytes:
    """The safetensors file of one version, or of the mean of several."""
    files = [await client.blob(model.sha256) for model in models]
    return files[0] if len(files) == 1 else encode_tensors(average([decode_tensors(data) for data in files]))


async def _save_infer(client: ControlClient, plan: str, weights: bytes, path: Path) -> None:
    manifest = Manifest.from_bytes(await client.blob(plan))
    stage = manifest.find("infer")
    if stage is None:
        raise ExperimentError(
            "This experiment's plan has no inference graph: its model is the clients' own code.",
            hint='Download the weights instead: --form weights, in Python form="weights".',
            code="no_infer",
        )
    # Only this needs ONNX Runtime, which takes long to load.
    from coterie.aggregation.deploy import save_inference

    frozen = None if manifest.frozen is None else decode_tensors(await client.blob(manifest.frozen.sha256))
    graph = await client.blob(stage.sha256)
    await asyncio.to_thread(save_inference, path, manifest, graph, decode_tensors(weights), frozen=frozen)
