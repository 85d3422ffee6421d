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
class PlanParts:
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
        self.stage(name).update(sha256=sha256_hex(data), size=len(data))

    def stage(self, name: str) -> dict[str, Any]:
        return stage_of(self.manifest, name)

    def drop(self, name: str) -> None:
        self.manifest["stages"].remove(self.stage(name))
        del self.graphs[name]

    def input(self, stage: str, name: str) -> dict[str, Any]:
        return next(tensor for tensor in self.stage(stage)["inputs"] if tensor["name"] == name)

    def output(self, stage: str, name: str) -> dict[str, Any]:
        return next(tensor for tensor in self.stage(stage)["outputs"] if tensor["name"] == name)

    def check(self, limits: PlanLimits | None = None) -> Plan:
        return check_plan(
            self.data,
            self.graphs,
            signature=self.signature,
            signer=self.signer,
            allowed_signers=self.allowed,
            limits=limits,
        )


def stage_of(manifest: dict[str, Any], name: str) -> dict[str, Any]:
    """A stage of a manifest as JSON."""
    return next(stage for stage in manifest["stages"] if stage["name"] == name)


Change = Callable[[PlanParts], Any]


def moved(stage: str, tensor: str, **fields: Any) -> Change:
    return lambda parts: parts.input(stage, tensor).update(fields)


def led(stage: str, tensor: str, **fields: Any) -> Change:
    return lambda parts: parts.output(stage, tensor).update(fields)


def field(part: str, **fields: Any) -> Change:
    return lambda parts: parts.manifest[part].update(fields)


def staged(stage: str, **fields: Any) -> Change:
    return lambda parts: parts.stage(stage).update(fields)


def drop_output(stage: str, name: str) -> Change:
    return lambda parts: parts.stage(stage)["outputs"].remove(parts.output(stage, name))


def section(index: int, **fields: Any) -> Change:
    return lambda parts: parts.manifest["sections"][index].update(fields)


WRONG: dict[str, tuple[Change, str, str]] = {
    "role": (moved("train", "shared/0.weight", role="optimizer"), "wiring", "role"),
    "role that the source cannot have": (moved("train", "batch/x", source="model"), "wiring", "role"),
    "source that the stage lacks": (moved("infer", "batch/x", source="probe"), "wiring", "does not have"),
    "unknown source": (moved("train", "batch/x", source="network"), "manifest", "source"),
    "unknown key": (moved("train", "base/0.weight", key="nothing"), "wiring", "nothing named"),
    "dtype": (moved("train", "batch/x", dtype="uint8"), "wiring", "uint8"),
    "shape": (moved("train", "shared/0.weight", shape=[3, 7]), "wiring", r"but carry 'shared/0.weight' is"),
    "state of another shape": (led("begin", "next/shared/0.weight", shape=[3, 7]), "wiring", "the state before it is"),
    "batch of another size": (moved("eval", "batch/y", shape=[7]), "wiring", "batch"),
    "hyper of another shape": (moved("train", "hyper/lr", shape=[2]), "wiring", "hyper"),
    "two inputs of one name": (moved("train", "batch/x", name="batch/y"), "wiring", "twice"),
    "unknown role": (moved("train", "batch/x", role="upload"), "manifest", "role"),
    "unknown destination": (led("finish", "upload/delta", destination="network"), "manifest", "destination"),
    "destination that the stage lacks": (led("finish", "upload/delta", destination="metric"), "wiring", "not have"),
    "rows that leave": (led("train", "next/metric/loss", destination="prediction"), "wiring", "not have"),
    "upload in an evaluation": (led("eval", "metric/loss", destination="upload"), "wiring", "not have"),
    "upload of another length": (led("finish", "upload/delta", shape=[66]), "wiring", r"is float32\[67\]"),
    "upload of no section": (led("finish", "upload/delta", key="data"), "wiring", "nothing named 'data'"),
    "section that stays behind": (drop_output("finish", "upload/delta"), "wiring", "yields no upload 'delta'"),
    "two outputs to one place": (led("finish", "upload/metrics", key="delta"), "wiring", "as another output"),
    "two outputs of one name": (led("finish", "upload/metrics", name="upload/delta"), "wiring", "twice"),
    "metric that nobody asked for": (led("eval", "metric/loss", key="rows"), "wiring", "nothing named 'rows'"),
    "metric that is not measured": (drop_output("eval", "metric/loss"), "wiring", "yields no metric 'loss'"),
    "no prediction": (drop_output("infer", "output"), "wiring", "yields no prediction"),
    "prediction under another key": (led("infer", "output", key="rows"), "wiring", "nothing named 'rows'"),
    "state that stays behind": (drop_output("begin", "next/shared/0.weight"), "wiring", "no stage before it leaves"),
    "state that nobody takes": (led("begin", "next/shared/0.weight", key="spare"), "wiring", "no stage before it"),
    "state of no stage": (moved("finish", "shared/0.bias", name="shared/9.bias"), "wiring", "no stage before it"),
    "steps that count padding": (moved("train", "batch/sample_weight", key="y", dtype="int32"), "wiring", "must read"),
    "evaluation that counts padding": (
        moved("eval", "batch/sample_weight", key="y", dtype="int32"),
        "wiring",
        "must read 'sample_weight'",
    ),
    "steps that cannot rest": (moved("train", "hyper/active", source="hyper", key="lr"), "wiring", "must read 'active"),
    "carry of another shape": (led("train", "next/shared/0.weight", key="shared/0.bias"), "wiring", "shared/0.bias"),
    "stage of another task": (staged("finish", tasks=["train", "evaluate"]), "stages", "in train, evaluate"),
    "stage of no task": (staged("infer", tasks=[]), "stages", "no task"),
    "unknown task": (staged("infer", tasks=["spy"]), "manifest", "task"),
    "steps in an evaluation": (staged("eval", over="steps"), "stages", "runs over 'steps'"),
    "a pass that takes no rows": (staged("eval", batch=0), "stages", "cannot take 0 rows"),
    "rows for what runs once": (staged("begin", batch=6), "stages", "cannot take 6 rows"),
    "steps of another batch": (staged("train", batch=7), "stages", "batches hold"),
    "stages in another order": (lambda parts: parts.manifest["stages"].reverse(), "stages", "in the order"),
    "stage that stands twice": (
        lambda parts: parts.manifest["stages"].append(dict(parts.stage("infer"))),
        "stages",
        "once each",
    ),
    "stage that names a path": (staged("infer", name="../infer"), "manifest", "name"),
    "unknown shape": (lambda parts: parts.manifest.update(shape="ring"), "manifest", "shape"),
    "sums that stay behind": (drop_output("train", "next/metric/loss"), "wiring", "never given a new value"),
    "carry to what is no state": (led("train", "next/metric/loss", key="batch/x"), "wiring", "nothing named 'batch/x'"),
    "carry to what is carried": (led("train", "next/metric/loss", key="metric/examples"), "wiring", "as another"),
    "carry of a stage that runs once": (
        led("begin", "next/shared/0.bias", destination="carry"),
        "wiring",
        "begin does not have",
    ),
    "section of another length": (section(0, length=66), "manifest", "Section .delta.: its segments"),
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
        "yields no client_state 'c'",
    ),
    "batch size": (field("training", batch_size=0), "manifest", "batch_size"),
    "holdout": (field("training", holdout=1), "manifest", "holdout"),
    "shape too large": (field("layout", tensors=[{"name": "w", "shape": [1 << 41]}]), "manifest", "layout"),
    "format of the future": (lambda parts: parts.manifest.update(format="coterie-plan-9"), "manifest", "format"),
}  # fmt: skip
