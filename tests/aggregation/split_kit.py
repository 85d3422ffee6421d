"""A split network of three roles, rows for it, and the same network in one place."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from coterie.aggregation.plan.check_session import SessionPlan
from coterie.aggregation.plan.stage import Stage, TaskName
from coterie.aggregation.vertical.split import FeatureRole, LabelRole, SplitNetwork
from coterie.aggregation.walk import Supply, run_batch
from coterie.compute import nn, optim
from coterie.compute import numpy as xp
from coterie.compute.autodiff import value_and_grad
from coterie.compute.data.batches import Batches
from coterie.compute.nn import losses
from coterie.compute.nn import metrics as nn_metrics
from coterie.compute.runtime.executable import Executable
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.randomness import seed_of, uniforms

Arrays = dict[str, npt.NDArray[Any]]
ROWS, WIDTHS = 21, {"clinic": 2, "registry": 3, "insurer": 1}


def network(**changes: Any) -> SplitNetwork:
    """A clinic with labels, a registry and an insurer."""
    fields: dict[str, Any] = {
        "name": "joint",
        "features": (
            FeatureRole(
                role="registry",
                features=(Feature(name="scan", shape=(3,)),),
                model=nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4)),
            ),
            FeatureRole(role="insurer", features=(Feature(name="costs", shape=(1,)),), model=nn.Linear(1, 2)),
        ),
        "labels": LabelRole(
            role="clinic",
            schema=DataSchema((Feature(name="blood", shape=(2,)),), Label(name="ill", classes=(0, 1))),
            model=nn.Linear(2, 3),
            top=nn.Sequential(nn.Tanh(), nn.Linear(9, 2)),
        ),
        "loss": losses.softmax_cross_entropy,
        "metrics": {"accuracy": nn_metrics.accuracy},
        "optimizer": optim.adam(0.05),
        "batch_size": 8,
        "epochs": 2,
        "evaluation_batch": 16,
    }
    return SplitNetwork(**{**fields, **changes})


def rows() -> dict[str, Arrays]:
    """Each role's rows, of which the label depends on all."""
    rng = np.random.default_rng(3)
    found: dict[str, Arrays] = {
        "clinic": {"blood": rng.normal(size=(ROWS, 2)).astype(np.float32)},
        "registry": {"scan": rng.normal(size=(ROWS, 3)).astype(np.float32)},
        "insurer": {"costs": rng.normal(size=(ROWS, 1)).astype(np.float32)},
    }
    total = sum(next(iter(arrays.values())).sum(axis=1) for arrays in found.values())
    found["clinic"]["ill"] = (np.asarray(total) > 0).astype(np.int32)
    return found


class InOnePlace:
    """All roles of a plan in this process, taking turns as their learners do."""

    def __init__(self, plan: SessionPlan) -> None:
        self.plan = plan
        self.state: dict[str, Arrays] = {}
        self._executables = {name: Executable(data) for name, data in plan.graphs.items()}

    def begin(self) -> None:
        """Draw the first weights."""
        for part in self.plan.manifest.parts:
            (stage,) = (stage for stage in part.stages_of("train") if stage.over == "once")
            drawn = {
                t.name: uniforms(seed_of(part.role, t.name), 0, int(np.prod(t.shape))).reshape(t.shape)
                for t in stage.from_source("random")
            }
            self.state[part.role] = dict(self._run(part.role, stage, drawn)["client_state"])

    def _run(self, role: str, stage: Stage, feeds: Mapping[str, Any]) -> Any:
        supply = Supply(model={}, client_state=self.state.get(role, {}), hyper=self.plan.manifest.hyper)
        return run_batch(stage, self._executables[role, stage.name], supply, feeds)

    def batch(self, task: TaskName, batches: Mapping[str, Arrays]) -> dict[str, Arrays]:
        """One batch of a task; what its label role puts as metrics or prediction."""
        waiting = {
            part.role: [s for s in part.stages_of(task) if s.over != "once"] for part in self.plan.manifest.parts
        }
        sent: dict[tuple[str, str], Arrays] = {}
        found: dict[str, Arrays] = {}
        while any(waiting.values()):
            role, stage = next(
                (role, stages[0])
                for role, stages in waiting.items()
                if stages and all((t.partner or "", role) in sent for t in stages[0].from_source("message"))
            )
            waiting[role].pop(0)
            feeds = {t.name: batches[role][t.key] for t in stage.from_source("batch")}
            feeds |= {t.name: sent[t.partner or "", role][t.key] for t in stage.from_source("message")}
            put = self._run(role, stage, feeds)
            self.state[role] = dict(put.get("client_state", self.state[role]))
            for tensor in stage.to_destination("message"):
                value = put["message"][tensor.address]
                sent.setdefault((role, tensor.partner or ""), {})[tensor.key] = value
            found |= {name: dict(values) for name, values in put.items() if name in ("metric", "prediction")}
        return found


def batches(split: SplitNetwork, given: Mapping[str, Arrays]) -> Iterator[dict[str, Arrays]]:
    """Each role's batches of a training, which all hold the same rows."""
    each = {
        role: Batches(arrays, batch_size=split.batch_size, seed=split.seed, epochs=split.epochs)
        for role, arrays in given.items()
    }
    for parts in zip(*each.values(), strict=True):
        yield dict(zip(each, parts, strict=True))


class Central:
    """The same network and optimizer with all columns in one place, without a plan: eager arrays of the compute core.

    state: the weights that the roles began with.
    """

    def __init__(self, split: SplitNetwork, state: Mapping[str, Arrays]) -> None:
        self._split = split
        self.weights: dict[str, Any] = {
            f"{role}/{name}": value
            for role, tensors in state.items()
            for name, value in tensors.items()
            if not name.startswith("optimizer/")
        }
        self._kept: Any = split.optimizer.init(dict(self.weights))

    def _predict(self, weights: Mapping[str, Any], batch: Mapping[str, Any]) -> Any:
        split = self._split

        def of(prefix: str) -> dict[str, Any]:
            return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}

        labels = split.labels
        embedded: list[Any] = []
        if labels.model is not None:
            embedded.append(labels.model(of(f"{labels.role}/model/"), batch[labels.role]["blood"]))
        for part in split.features:
            (feature,) = part.features
            embedded.append(part.model(of(f"{part.role}/model/"), batch[part.role][feature.name]))
        return labels.top(of(f"{labels.role}/top/"), xp.concat(embedded, axis=1))

    def step(self, batch: Mapping[str, Any]) -> None:
        """One step on a batch."""
        own, loss = batch[self._split.labels.role], cast(Any, self._split.loss)

        def objective(weights: Mapping[str, Any]) -> Any:
            each = loss(self._predict(weights, batch), own["ill"])
            return xp.sum(each * own["sample_weight"]) / xp.sum(own["sample_weight"])

        _, gradient = value_and_grad(objective)(dict(self.weights))
        hyper: Any = {name: np.array([value], np.float32) for name, value in self._split.optimizer.hyper.items()}
        active: Any = np.ones(1, np.float32)
        moved, self._kept = self._split.optimizer.step(
            gradient, self._kept, dict(self.weights), hyper, active, weight=own["sample_weight"].sum()
        )
        self.weights = {name: np.asarray(value) for name, value in moved.items()}

    def predict(self, given: Mapping[str, Arrays]) -> npt.NDArray[Any]:
        """The model on rows."""
        return np.asarray(self._predict(self.weights, given))
