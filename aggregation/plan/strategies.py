"""The strategies that a plan combines, as one list: who trains, by which rule, in what form results travel.

Nothing is decided here. A plan's manifest says each of them in a field of its own, and the signature covers them all;
the list is what people, the audit trail and tools read.
"""

from typing import Any, TypeAlias

from coterie.aggregation.plan.manifest import Manifest
from coterie.protocol.conversion import to_json

Strategy: TypeAlias = dict[str, Any]
"""``{"kind": …, "name": …, "parameters": {…}}``, all JSON values."""


def strategies(manifest: Manifest) -> tuple[Strategy, ...]:
    """What a plan does, in the order in which it happens: ``training``, ``optimizer``, ``compression`` (one for each
    way in which the model is made smaller: ``pruned``, ``quantisation_aware``, ``distilled``), ``privacy`` (only where
    rows are private), ``algorithm``, ``layout`` (how much is uploaded, how much frozen), ``codec`` (one for each, by
    preference), ``broadcast``, ``compiled`` (the graphs, by digest).

    Guarantees: a function of the manifest alone, so equal plans have equal lists.
    """
    training = manifest.training
    frozen = 0 if manifest.frozen is None else manifest.frozen.layout.size
    parts: list[tuple[str, str, dict[str, Any]]] = [
        (
            "training",
            manifest.trainer,
            {
                "batch_size": training.batch_size,
                "epochs": training.epochs,
                "max_steps": training.max_steps,
                "precision": training.precision or "float32",
                "steps_per_call": training.steps_per_call or 1,
            },
        ),
        ("optimizer", manifest.optimizer.name, dict(manifest.optimizer.parameters)),
    ]
    parts += [("compression", rule.name, dict(rule.parameters)) for rule in manifest.compression or ()]
    if training.private is not None:
        parts.append(("privacy", "example_level", to_json(training.private)))
    parts.append(("algorithm", manifest.algorithm.name, dict(manifest.algorithm.parameters)))
    uploaded = sum(end - start for spec in manifest.sections for start, end in spec.slices)
    sizes = {"elements": manifest.layout.size, "uploaded": uploaded, "frozen": frozen}
    parts.append(("layout", "whole" if uploaded == manifest.layout.size else "part", sizes))
    parts += [("codec", codec, {}) for codec in manifest.codecs]
    parts.append(("broadcast", manifest.broadcast, {}))
    if manifest.stages:
        parts.append(("compiled", "onnx", {file.name: file.sha256 for file in manifest.files}))
    return tuple({"kind": kind, "name": name, "parameters": parameters} for kind, name, parameters in parts)
