"""A signed plan in parts, and the ways to spoil it that a check must find."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import onnx

from coterie.aggregation.plan.bundle import Plan
from coterie.aggregation.plan.check import PlanLimits, check_plan
from coterie.protocol.canonical import canonical_json, sha256_hex
from coterie.protocol.signing import SigningKey, sign_plan

KEY = SigningKey.from_seed(bytes(32))


@dataclass
class Parts:
    """What check_plan is given, to be spoiled."""

    manifest: dict[str, Any]
    graphs: dict[str, bytes]
    signature: str | None
    signer: str | None
    allowed: tuple[str, ...]

    @property
    def data(self) -> bytes:
        return canonical_json(self.manifest)

    def sign(self, key: SigningKey = KEY) -> None:
        """Sign what there is now, as a researcher with bad intentions would."""
        self.signature, self.signer = sign_plan(key, sha256_hex(self.data)), key.public

    def graph(self, name: str, change: Callable[[onnx.ModelProto], None]) -> None:
        """Change a graph and make digest and size fit again."""
        model = onnx.load_from_string(self.graphs[name])
        change(model)
        self.replace(name, model.SerializeToString())

    def replace(self, name: str, data: bytes) -> None:
        self.graphs[name] = data
        self.manifest["graphs"][name] |= {"sha256": sha256_hex(data), "size": len(data)}

    def input(self, graph: str, name: str) -> dict[str, Any]:
        return next(tensor for tensor in self.manifest["graphs"][graph]["inputs"] if tensor["name"] == name)

    def output(self, graph: str, name: str) -> dict[str, Any]:
        return next(tensor for tensor in self.manifest["graphs"][graph]["outputs"] if tensor["name"] == name)

    def check(self, limits: PlanLimits | None = None) -> Plan:
        return check_plan(
            self.data,
            self.graphs,
            signature=self.signature,
            signer=self.signer,
            allowed_signers=self.allowed,
            limits=limits,
        )


Change = Callable[[Parts], Any]


def moved(graph: str, tensor: str, **fields: Any) -> Change:
    return lambda parts: parts.input(graph, tensor).update(fields)


def led(graph: str, tensor: str, **fields: Any) -> Change:
    return lambda parts: parts.output(graph, tensor).update(fields)


def field(part: str, **fields: Any) -> Change:
    return lambda parts: parts.manifest[part].update(fields)


def drop_output(graph: str, name: str) -> Change:
    def change(parts: Parts) -> None:
        outputs = parts.manifest["graphs"][graph]["outputs"]
        outputs.remove(parts.output(graph, name))
        parts.manifest["graphs"][graph]["carry"].pop(name, None)

    return change


def section(index: int, **fields: Any) -> Change:
    return lambda parts: parts.manifest["sections"][index].update(fields)


WRONG: dict[str, tuple[Change, str, str]] = {
    "role": (moved("train", "shared/0.weight", role="optimizer"), "wiring", "role"),
    "role that the source cannot have": (moved("train", "batch/x", source="model"), "wiring", "role"),
    "source that the graph lacks": (moved("infer", "batch/x", source="client_state"), "wiring", "does not have"),
    "unknown source": (moved("train", "batch/x", source="network"), "manifest", "source"),
    "unknown key": (moved("train", "base/0.weight", key="nothing"), "wiring", "nothing named"),
    "dtype": (moved("train", "batch/x", dtype="uint8"), "wiring", "uint8"),
    "shape": (moved("train", "shared/0.weight", shape=[3, 7]), "wiring", "dtype and shape"),
    "batch of another size": (moved("eval", "batch/y", shape=[7]), "wiring", "batch"),
    "hyper of another shape": (moved("train", "hyper/lr", shape=[2]), "wiring", "hyper"),
    "two inputs of one name": (moved("train", "batch/x", name="batch/y"), "wiring", "twice"),
    "name outside the scheme": (moved("train", "batch/x", name="weird/x"), "wiring", "role"),
    "output role": (led("finish", "upload/delta", role="metric"), "wiring", "role"),
    "upload of another length": (led("finish", "upload/delta", shape=[66]), "wiring", "sections"),
    "upload under another name": (led("finish", "upload/delta", name="upload/data"), "wiring", "sections"),
    "state that stays behind": (drop_output("begin", "next/shared/0.weight"), "wiring", "begin"),
    "sums that stay behind": (drop_output("train", "next/metric/loss"), "wiring", "never given a new value"),
    "carry": (
        lambda parts: parts.manifest["graphs"]["train"]["carry"].update({"next/metric/loss": "metric/examples"}),
        "wiring",
        "carry",
    ),
    "carry of a graph that runs once": (
        lambda parts: parts.manifest["graphs"]["begin"].update(carry={"next/shared/0.bias": "shared/0.bias"}),
        "wiring",
        "carry",
    ),
    "unknown graph": (field("graphs", spy={}), "manifest", "spy"),
    "section of another length": (section(0, length=66), "manifest", "section"),
    "section outside the layout": (section(0, slices=[[1, 68]]), "sections", "leaves the layout"),
    "segments that are not tensors": (section(0, segments=[60, 7], rows=[1, 1]), "sections", "segments"),
    "metrics of another length": (section(1, length=4, segments=[4]), "sections", "metrics"),
    "metrics without bounds": (section(1, value_range=None), "sections", "metrics"),
    "no section": (lambda parts: parts.manifest.update(sections=[]), "sections", "metrics"),
    "only metrics": (lambda parts: parts.manifest["sections"].pop(0), "sections", "nothing would be learned"),
    "overlapping sections": (
        lambda parts: parts.manifest["sections"].insert(0, parts.manifest["sections"][0] | {"name": "again"}),
        "sections",
        "same slice",
    ),
    "no codec": (lambda parts: parts.manifest.update(codecs=[]), "sections", "codec"),
    "metrics without examples": (lambda parts: parts.manifest["metrics"].reverse(), "sections", "begin with"),
    "frozen and shared": (
        lambda parts: parts.manifest.update(
            frozen={"layout": {"tensors": [{"name": "0.bias", "shape": [8]}]}, "sha256": "0" * 64}
        ),
        "sections",
        "frozen",
    ),
    "client state that nobody returns": (
        lambda parts: parts.manifest.update(client_state=[{"name": "c", "shape": [1]}]),
        "wiring",
        "finish",
    ),
    "batch size": (field("training", batch_size=0), "manifest", "batch_size"),
    "holdout": (field("training", holdout=1), "manifest", "holdout"),
    "shape too large": (field("layout", tensors=[{"name": "w", "shape": [1 << 41]}]), "manifest", "layout"),
    "format of the future": (lambda parts: parts.manifest.update(format="coterie-plan-2"), "manifest", "format"),
}  # fmt: skip
