"""What a session is for: who has the labels, which steps its parties do together, and by which method.

A job is part of the terms of a session. Keys of parties are bound to the digest of the terms, so parties that can read
each other's messages have been told the same job.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, Protocol, Self, TypeAlias, cast

from pydantic import BaseModel, Field, field_validator, model_validator

from coterie.errors import nearest
from coterie.protocol.paillier_sizes import KEY_BITS, SIZES
from coterie.protocol.wire import FiniteNumber, SessionWord, Signed, Whole

JobStep: TypeAlias = Literal["align", "train", "evaluate", "predict"]
STEPS: Final[tuple[JobStep, ...]] = ("align", "train", "evaluate", "predict")
"""In the order in which parties do them. align: they find the rows that both have; without it row i must be about the
same person at all of them already. train: they fit a model. evaluate: the label owner says how good it is. predict: the
label owner gets a prediction of each row.
"""
LEARNING_STAGE: Final = "learning"
ALIGN_STAGE: Final = "align"

TreeLossName: TypeAlias = Literal["logistic", "squared"]
LinkName: TypeAlias = Literal["logistic", "linear", "poisson"]
MOST_TREES: Final = 10_000
MOST_DEPTH: Final = 12
MOST_BINS: Final = 1024
MOST_EPOCHS: Final = 1000
LEAST_BATCH: Final = 64
LARGEST: Final = 1e9


def _stated(lowest: float, highest: float, *, above: bool = False) -> Any:
    """Bounds for the description of a field. The rules of a method hold it to them, in words of their own."""
    return Field(json_schema_extra={"exclusiveMinimum" if above else "minimum": lowest, "maximum": highest})


_Share = Annotated[FiniteNumber, _stated(0, 1)]
_Rate = Annotated[FiniteNumber, _stated(0, 1, above=True)]
_Penalty = Annotated[FiniteNumber, _stated(0, LARGEST)]
_KeyBits = Annotated[Whole, _stated(min(SIZES), max(SIZES))]


class TreeOptions(Protocol):
    """What is asked of trees beside roles; `coterie.aggregation.vertical.trees.terms.TreeTerms` says what each is."""

    @property
    def trees(self) -> int: ...
    @property
    def depth(self) -> int: ...
    @property
    def learning_rate(self) -> float: ...
    @property
    def bins(self) -> int: ...
    @property
    def l2(self) -> float: ...
    @property
    def min_gain(self) -> float: ...
    @property
    def min_child_weight(self) -> float: ...
    @property
    def loss(self) -> TreeLossName: ...
    @property
    def top_share(self) -> float: ...
    @property
    def other_share(self) -> float: ...
    @property
    def trees_alone(self) -> int: ...
    @property
    def patience(self) -> int: ...
    @property
    def key_bits(self) -> int: ...


def tree_fault(asked: TreeOptions) -> str | None:
    """The first rule that these options break, in words; None where they keep all."""
    top, other = asked.top_share, asked.other_share
    rules = (
        (1 <= asked.trees <= MOST_TREES, f"trees must be 1 to {MOST_TREES}"),
        (1 <= asked.depth <= MOST_DEPTH, f"depth must be 1 to {MOST_DEPTH}"),
        (2 <= asked.bins <= MOST_BINS, f"bins must be 2 to {MOST_BINS}"),
        (0 < asked.learning_rate <= 1, "learning_rate must be above 0 and at most 1"),
        (0 <= asked.l2 <= LARGEST, f"l2 must be 0 to {LARGEST:.0e}"),
        (0 <= asked.min_gain <= LARGEST, f"min_gain must be 0 to {LARGEST:.0e}"),
        (0 <= asked.min_child_weight <= LARGEST, f"min_child_weight must be 0 to {LARGEST:.0e}"),
        (asked.loss in ("logistic", "squared"), 'loss must be "logistic" or "squared"'),
        (0 <= asked.trees_alone < asked.trees, "trees_alone must leave a tree for all parties"),
        (0 < top <= 1 and 0 <= other and top + other <= 1, "top_share and other_share must share at most 1"),
        (top == 1 or other > 0, "other_share must be above 0 where top_share is below 1"),
        (0 <= asked.patience <= MOST_TREES, f"patience must be 0 to {MOST_TREES}"),
        (asked.key_bits in SIZES, f"key_bits must be one of {', '.join(map(str, SIZES))}"),
    )
    return next((why for good, why in rules if not good), None)


class TreesMethod(Signed):
    """Boosted trees; `coterie.aggregation.vertical.trees.terms.TreeTerms` says more of each option.

    method: its name.
    trees: how many, at most.
    depth: of each tree.
    learning_rate: the factor of each tree's leaves.
    bins: of a column, at most; one more for rows that lack it.
    l2: added to the hessian below each leaf's value and each split's gain.
    min_gain: what a split must gain.
    min_child_weight: the least hessian on either side of a split.
    loss: `logistic` for labels 0 and 1, `squared` for any number.
    top_share: the share of rows with the largest gradients that each tree takes (GOSS); 1 takes every row.
    other_share: the share of all rows that is drawn from among the others.
    trees_alone: how many trees, from the first on, are grown on the label owner's columns alone.
    patience: trees without a better loss on rows held out, after which growing stops; 0 never stops.
    key_bits: of the key of the training: 2048, 3072 or 4096.
    """

    method: Literal["trees"] = "trees"
    trees: Annotated[Whole, _stated(1, MOST_TREES)] = 50
    depth: Annotated[Whole, _stated(1, MOST_DEPTH)] = 3
    learning_rate: _Rate = 0.3
    bins: Annotated[Whole, _stated(2, MOST_BINS)] = 32
    l2: _Penalty = 1.0
    min_gain: _Penalty = 0.0
    min_child_weight: _Penalty = 1.0
    loss: TreeLossName = "logistic"
    top_share: _Rate = 1.0
    other_share: _Share = 0.0
    trees_alone: Annotated[Whole, _stated(0, MOST_TREES)] = 0
    patience: Annotated[Whole, _stated(0, MOST_TREES)] = 0
    key_bits: _KeyBits = KEY_BITS

    @model_validator(mode="after")
    def _possible(self) -> Self:
        fault = tree_fault(self)
        if fault is not None:
            raise ValueError(fault)
        return self


class LinearOptions(Protocol):
    """What is asked of linear models beside roles; `coterie.aggregation.vertical.linear.terms.LinearTerms` says what
    each is.
    """

    @property
    def link(self) -> LinkName: ...
    @property
    def epochs(self) -> int: ...
    @property
    def batch_rows(self) -> int: ...
    @property
    def learning_rate(self) -> float: ...
    @property
    def momentum(self) -> float: ...
    @property
    def l2(self) -> float: ...
    @property
    def key_bits(self) -> int: ...


def linear_fault(asked: LinearOptions) -> str | None:
    """The first rule that these options break, in words; None where they keep all."""
    rules = (
        (asked.link in ("logistic", "linear", "poisson"), 'link must be "logistic", "linear" or "poisson"'),
        (1 <= asked.epochs <= MOST_EPOCHS, f"epochs must be 1 to {MOST_EPOCHS}"),
        (
            asked.batch_rows == 0 or asked.batch_rows >= LEAST_BATCH,
            f"batch_rows must be 0 (all rows) or at least {LEAST_BATCH}",
        ),
        (0 < asked.learning_rate <= 1, "learning_rate must be above 0 and at most 1"),
        (0 <= asked.momentum < 1, "momentum must be from 0 to below 1"),
        (0 <= asked.l2 <= LARGEST, f"l2 must be 0 to {LARGEST:.0e}"),
        (asked.key_bits in SIZES, f"key_bits must be one of {', '.join(map(str, SIZES))}"),
    )
    return next((why for good, why in rules if not good), None)


class LinearMethod(Signed):
    """A linear model of two parties; `coterie.aggregation.vertical.linear.terms.LinearTerms` says more of each option.

    method: its name.
    link: `logistic` for labels 0 and 1, `linear` for any number, `poisson` for counts.
    epochs: how often every row is taken.
    batch_rows: rows of a step, 64 at least; 0 takes all.
    learning_rate: the factor of a step.
    momentum: of the step before; below 1.
    l2: half the penalty on the square of each coefficient of standardised columns.
    key_bits: of the key of the training: 2048, 3072 or 4096.
    """

    method: Literal["linear"] = "linear"
    link: LinkName = "logistic"
    epochs: Annotated[Whole, _stated(1, MOST_EPOCHS)] = 8
    batch_rows: Whole = 0
    learning_rate: _Rate = 1.0
    momentum: _Share = 0.5
    l2: _Penalty = 1e-3
    key_bits: _KeyBits = KEY_BITS

    @model_validator(mode="after")
    def _possible(self) -> Self:
        fault = linear_fault(self)
        if fault is not None:
            raise ValueError(fault)
        return self


JobMethod: TypeAlias = Annotated[TreesMethod | LinearMethod, Field(discriminator="method")]
"""The methods, told apart by their names."""
METHOD_NAMES: Final = ("trees", "linear")
_MOST_ROLES: Final = {"linear": 2}
"""Of methods that take no more."""


class SessionJob(Signed):
    """What the parties of a session do together.

    label_owner: the role that has the labels; the others have columns alone.
    steps: some of `STEPS`, in that order.
    method: by which they train.
    """

    label_owner: SessionWord
    steps: Annotated[tuple[JobStep, ...], Field(min_length=1, max_length=len(STEPS))] = STEPS
    method: JobMethod

    @field_validator("method", mode="before")
    @classmethod
    def _known(cls, value: Any) -> Any:
        given: Mapping[str, object] = cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}
        name = given.get("method")
        if name is not None and name not in METHOD_NAMES:
            near = nearest(str(name), METHOD_NAMES)
            rest = f"did you mean {near}" if near else f"there are {', '.join(METHOD_NAMES)}"
            raise ValueError(f"there is no method {str(name)[:64]!r}; {rest}")
        return cast("Any", value)

    @property
    def stages(self) -> tuple[str, ...]:
        """Under which names messages are sent."""
        return ((ALIGN_STAGE,) if "align" in self.steps else ()) + (LEARNING_STAGE,)

    def unknown(self) -> str | None:
        """A sentence on the first field that this version does not know; None where it knows all."""
        return _unknown(self, "A job") or _unknown(self.method, f"The method {self.method.method}")

    def fault(self, roles: Sequence[str]) -> str | None:
        """Why parties in these roles cannot do it, in words; None where they can."""
        needed = next((step for step in self.steps if step in ("evaluate", "predict")), None)
        rules = (
            (
                self.label_owner in roles,
                f"the label owner {self.label_owner!r} is none of the roles {', '.join(roles)}",
            ),
            (
                self.steps == tuple(step for step in STEPS if step in self.steps),
                f"the steps are {', '.join(STEPS)}, in this order, each once",
            ),
            (
                len(roles) <= _MOST_ROLES.get(self.method.method, len(roles)),
                f"the method {self.method.method} is of two parties, and there are {len(roles)} roles",
            ),
            ("train" in self.steps or needed is None, f"the step {needed} needs the step train before it"),
            ("train" in self.steps, "a job needs the step train; `coterie party align` aligns without one"),
            (
                "align" not in self.steps or len(roles) == 2,
                f"the step align is between two parties, and there are {len(roles)} roles",
            ),
        )
        return next((why for good, why in rules if not good), None)


def _unknown(value: BaseModel, what: str) -> str | None:
    for name in value.model_extra or {}:
        known = [*type(value).model_fields]
        near = nearest(name, known)
        rest = f"did you mean {near}" if near else f"there are {', '.join(known)}"
        return f"{what} has no field {name[:64]!r}; {rest}"
    return None
