"""Variants of a plan's stages for classes of providers."""

from collections.abc import Mapping
from dataclasses import replace

from coterie.aggregation.compiling.graph_file import write_variant
from coterie.aggregation.plan.shapes import SHAPES
from coterie.aggregation.plan.stage import Stage, StageVariant
from coterie.compute.ir import Graph
from coterie.compute.onnx.providers import ProviderClass
from coterie.protocol.canonical import sha256_hex

_Files = dict[str, bytes]


def write_variants(kinds: tuple[ProviderClass, ...], graphs: Mapping[str, Graph], files: Mapping[str, bytes]) -> _Files:
    """The further files of a plan by name: for each class, the stages that may vary and come out otherwise for it.

    files: the portable ones. Raises errors.ExperimentError (``variant_unwritable``).
    """
    varied = [rule.name for rule in SHAPES["horizontal"] if rule.varied]
    written = {(name, kind): write_variant(name, graphs[name], kind) for name in varied for kind in kinds}
    return {f"{name}.{kind}": data for (name, kind), data in written.items() if data != files[name]}


def with_variants(stage: Stage, kinds: tuple[ProviderClass, ...], files: Mapping[str, bytes]) -> Stage:
    """The stage with those of its variants of which there is a file."""
    found: list[StageVariant] = []
    for kind in kinds:
        data = files.get(f"{stage.name}.{kind}")
        if data is not None:
            found.append(StageVariant(kind=kind, sha256=sha256_hex(data), size=len(data)))
    return replace(stage, variants=tuple(found))
