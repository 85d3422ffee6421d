"""What a device lets itself be asked to do. Every rule holds before anything is downloaded, run or sent for it."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, get_args

from coterie.aggregation.plan.bundle import Plan
from coterie.aggregation.plan.check import PlanLimits
from coterie.aggregation.plan.stage import Stage
from coterie.client_sdk.device.promise import check_promise
from coterie.compute.runtime.spread.asked import ALONE, read_parallel
from coterie.errors import ConfigurationError, PolicyRefused
from coterie.privacy.secagg.endorsed import NO_ENDORSEMENT, EndorsementRule
from coterie.privacy.secagg.parameters import LEAST_CLIENTS
from coterie.protocol.claims import PrivacyTerms
from coterie.protocol.device import Task
from coterie.protocol.secagg import SecureMode

MEBIBYTE: Final = 1 << 20
ALL_MODES: Final[tuple[str, ...]] = get_args(SecureMode)
ANY_MODE: Final = frozenset(ALL_MODES)
CONSISTENT: Final = frozenset({"consistent"})
ALL_UNITS: Final = ("user", "example")
ALL_TRUSTED: Final = ("device", "cohort", "coordinator")
DEFAULT_CORRUPT: Final = 0.05
DEFAULT_DELTA: Final = 1e-5
# Each says how secure aggregation must be, and so asks for it; in the order in which a refusal names them.
NEED_SECRECY: Final = ("min_endorsed", "min_cohort", "min_corrupt", "modes")


@dataclass(frozen=True)
class PolicySource:
    """The file that a policy was read from: its name without folders, and the line of each name (from 1)."""

    file: str
    lines: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class DevicePolicy:
    """A device's own floor.

    signers: public keys (hex) whose plans may run here; None for those that were pinned at enrolment.
    plan: limits of size for plans and their graphs.
    threads: of one training or evaluation.
    max_steps: local steps of one task at most; training ends there and sends what it has.
    max_weight: the most examples that this device ever claims.
    reveal_data: whether check-ins tell how many rows and which classes it has, for experiments that choose devices by
        that.

    require_secure_aggregation: take no task whose update the coordinator could read.
    min_cohort: the fewest clients that a sum with this device's numbers in it may have.
    min_corrupt: the least share of clients that may side with the coordinator without its learning anything but the
        sum.
    modes: of secure aggregation that are good enough. Whoever states one of the three takes no task without secure
        aggregation, where none of them could hold. None of min_cohort is `LEAST_CLIENTS` and of min_corrupt 0.05, both
        under secure aggregation alone. None of modes is both, but where `trusts` names the cohort and not the
        coordinator: there only ``consistent`` keeps a promise, unless it rests on this device alone.

    min_endorsed, endorsers: of an attempt's clients so many must be endorsed, for distinct subjects, by one of these
    issuers (public keys, hex), this device itself among them: in the roster and among the survivors. Only in the mode
    ``consistent`` is everybody seen, so it takes no other.

    max_epsilon, max_delta: take only tasks of experiments that promise differential privacy, and release no more than
        this by everything that the device ever takes part in, by its own record (`coterie.client_sdk.device.spending`);
        without max_epsilon none is asked for, and max_delta, units and trusts keep their defaults.
    ledger: the file of that record, which several clients may share; None for one in the device's folder.
    units: whose presence a promise may hide.
    trusts: who may have to be trusted for it.
    provider: where training runs: "cpu", "auto" for whichever execution provider makes a step soonest, or the name of
        one; never one that has not computed every recipe and the plan's first step as the CPU does.
    parallel: how many processes share the steps of a training on the CPU, each with ``threads`` of its own: "data(2)"
        for two that share the rows, "pipeline(2)" for two that share the layers, "auto" for as many as the cores allow
        to share the rows where a plan's own steps turn out quicker for it.
    source: the file that says all this, for refusals.

    memory_bytes: the most that a task's tensors may need, counted from the plan before anything runs: weights, both
    sets of the step's state, gradients (one more set of weights, and another two for each process that shares a
    training), the base, the flat update and one batch. Activations
    and ONNX Runtime itself are not counted and nothing is enforced by the operating system: run the client under
    ``ulimit -v`` or a cgroup for a hard cap.
    """

    signers: frozenset[str] | None = None
    plan: PlanLimits = PlanLimits()
    threads: int = 1
    memory_bytes: int | None = None
    max_upload_bytes: int = 256 * MEBIBYTE
    max_download_bytes: int = 1024 * MEBIBYTE
    max_weight: int | None = None
    max_steps: int | None = None
    reveal_data: bool = False
    require_secure_aggregation: bool = False
    min_cohort: int | None = None
    min_corrupt: float | None = None
    modes: frozenset[str] | None = None
    min_endorsed: int | None = None
    endorsers: frozenset[str] = frozenset()
    max_epsilon: float | None = None
    max_delta: float = DEFAULT_DELTA
    units: frozenset[str] = frozenset(ALL_UNITS)
    trusts: frozenset[str] = frozenset(ALL_TRUSTED)
    ledger: Path | None = None
    provider: str = "cpu"
    parallel: str = ALONE
    source: PolicySource | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        numbers = {
            "threads": self.threads,
            "memory_bytes": self.memory_bytes,
            "max_upload_bytes": self.max_upload_bytes,
            "max_download_bytes": self.max_download_bytes,
            "max_weight": self.max_weight,
            "max_steps": self.max_steps,
        }
        for name, value in numbers.items():
            if value is not None and value < 1:
                raise ConfigurationError(f"{name} must be at least 1, got {value}.")
        read_parallel(self.parallel, self.threads)
        if self.min_cohort is not None and self.min_cohort < 2:
            raise ConfigurationError(
                f"min_cohort must be at least 2, got {self.min_cohort}: a sum of one client is not secret."
            )
        if (self.min_endorsed is None) != (not self.endorsers):
            raise ConfigurationError("min_endorsed and endorsers must be given together.")
        if self.min_endorsed is not None and self.min_endorsed < 2:
            raise ConfigurationError(f"min_endorsed must be at least 2, got {self.min_endorsed}.")
        if self.min_endorsed is not None and self.modes is not None and self.modes != CONSISTENT:
            raise ConfigurationError(
                "min_endorsed needs modes to be consistent alone: only in that mode does a client see all others."
            )
        choices = (
            ("modes", ANY_MODE if self.modes is None else self.modes, ALL_MODES),
            ("units", self.units, ALL_UNITS),
            ("trusts", self.trusts, ALL_TRUSTED),
        )
        for name, chosen, known in choices:
            if not chosen or not chosen <= frozenset(known):
                raise ConfigurationError(f"{name} must be one or more of {', '.join(known)}; got {sorted(chosen)}.")
        if self.modes is not None and (why := unfit_modes(self.modes, self.trusts)) is not None:
            raise ConfigurationError(f"modes cannot name semi_honest: {why}.")
        if self.min_corrupt is not None and not 0 <= self.min_corrupt < 1:
            raise ConfigurationError(f"min_corrupt must be at least 0 and below 1, got {self.min_corrupt}.")
        if self.max_epsilon is not None and not 0 < self.max_epsilon < math.inf:
            raise ConfigurationError(f"max_epsilon must be a number above 0, got {self.max_epsilon}.")
        if not 0 < self.max_delta < 1:
            raise ConfigurationError(f"max_delta must be between 0 and 1, got {self.max_delta}.")
        if self.max_epsilon is None:
            self._refuse_idle_lines()

    def _refuse_idle_lines(self) -> None:
        """Raise for what says how a promise must be, where no promise is asked for."""
        idle = {
            "max_delta": self.max_delta != DEFAULT_DELTA,
            "units": self.units != frozenset(ALL_UNITS),
            "trusts": self.trusts != frozenset(ALL_TRUSTED),
        }
        for name, stated in idle.items():
            if stated:
                raise ConfigurationError(
                    f"{name} has no effect without max_epsilon.", hint="Add max_epsilon, for example max_epsilon=8.0."
                )

    def where(self, name: str) -> str:
        """Where this policy says what it says of ``name``, for refusals: the file and its line, or the default."""
        if self.source is None:
            return f"the device's policy ({name})"
        if name not in self.source.lines:
            return f"the default of {name}, which {self.source.file} leaves as it is"
        return f"{self.source.file}, line {self.source.lines[name]} ({name})"

    @property
    def cohort_floor(self) -> int:
        """The fewest clients of a sum that this device is one of."""
        return LEAST_CLIENTS if self.min_cohort is None else self.min_cohort

    @property
    def _asks_for_secrecy(self) -> str | None:
        """The first line that only secure aggregation can keep; None when a task in clear may be done."""
        if self.require_secure_aggregation:
            return "require_secure_aggregation"
        return next((name for name in NEED_SECRECY if getattr(self, name) is not None), None)

    @property
    def endorsed(self) -> EndorsementRule:
        """Who must be endorsed in an attempt of secure aggregation."""
        return NO_ENDORSEMENT if self.min_endorsed is None else EndorsementRule(self.endorsers, self.min_endorsed)

    def weight_cap(self, task: Task) -> int:
        """The most examples to claim for a task."""
        return min(task.weight_cap, self.max_weight or task.weight_cap)

    def check_task(self, task: Task, pinned: frozenset[str]) -> None:
        """Raise PolicyRefused unless this device takes such a task.

        pinned: the signers of its enrolment.
        """
        allowed = pinned if self.signers is None else self.signers
        if task.plan.signer not in allowed:
            raise PolicyRefused(
                f"The task's plan is signed by key {task.plan.signer}, which this device does not trust.",
                hint="It was not among the population's signers when this device joined. To trust its owner, write "
                f"into the device's policy: signers = {json.dumps(sorted({*pinned, task.plan.signer}))}"
                if self.signers is None
                else f"Add the key to {self.where('signers')}, if its owner is to be trusted.",
                code="signer_refused",
            )
        sizes = [("model", task.model.size)] + ([("frozen part", task.frozen.size)] if task.frozen else [])
        for what, size in sizes:
            if size > self.max_download_bytes:
                raise PolicyRefused(
                    f"The task's {what} has {size} bytes; this device downloads at most {self.max_download_bytes}.",
                    hint=f"Raise the limit in {self.where('max_download_bytes')}, if that is meant.",
                    code="download_too_large",
                )

        self._check_secrecy(task)
        self._check_promise(task)

    def _check_secrecy(self, task: Task) -> None:
        """Hold secure aggregation, or its absence, to this policy."""
        terms = task.secure
        if terms is None:
            if (line := self._asks_for_secrecy) is not None:
                raise PolicyRefused(
                    "The coordinator would see this device's update, since the task is without secure aggregation;"
                    f" {self.where(line)} asks for it.",
                    hint="The researcher can switch it on: Experiment(secure_aggregation=True).",
                    code="secure_aggregation_required",
                )
            return
        if terms.min_clients < self.cohort_floor:
            raise PolicyRefused(
                f"The task's sum may be of only {terms.min_clients} clients; {self.where('min_cohort')} asks for at"
                f" least {self.cohort_floor}.",
                hint="The researcher can raise min_updates in the round policy.",
                code="cohort_too_small",
            )
        modes = self._modes(task)
        if terms.mode not in modes:
            raise PolicyRefused(
                f"The task's secure aggregation is in the mode {terms.mode!r};"
                f" {self.where(self._names_modes())} takes {' or '.join(sorted(modes))}.",
                hint=f"The researcher can choose it: SecureAggregation(mode={min(modes)!r}).",
                code="mode_refused",
            )
        corrupt = DEFAULT_CORRUPT if self.min_corrupt is None else self.min_corrupt
        if terms.corrupt < corrupt:
            raise PolicyRefused(
                f"The task's secure aggregation withstands {terms.corrupt:g} of its clients siding with the"
                f" coordinator; {self.where('min_corrupt')} asks for {corrupt:g}.",
                hint=f"The researcher can choose it: SecureAggregation(corrupt={corrupt:g}).",
                code="corrupt_too_low",
            )

    def _modes(self, task: Task) -> frozenset[str]:
        """The modes of secure aggregation in which this device takes this task."""
        if self.modes is not None:
            return self.modes
        if self.min_endorsed is not None:
            return CONSISTENT
        own = task.privacy is not None and task.privacy.trusts == "device"
        return ANY_MODE if own or unfit_modes(ANY_MODE, self.trusts) is None else CONSISTENT

    def _names_modes(self) -> str:
        """Which line says in which modes this device takes part."""
        if self.modes is not None:
            return "modes"
        return "trusts" if self.min_endorsed is None else "min_endorsed"

    def _check_promise(self, task: Task) -> None:
        """Hold the experiment's differential privacy, or its absence, to this policy, and the task to its promise."""
        promise = task.privacy
        if task.local is not None and (promise is None or task.kind != "train"):
            # Whoever believed it would hide less than masks do, for noise that is on nothing or promised to nobody.
            raise PolicyRefused(
                "The task asks this device for noise without a promise of privacy, or without training.",
                hint="No coordinator of coterie sends such a task: find out what changed this one.",
                code="privacy_unkept",
            )
        if promise is None:
            if self.max_epsilon is None:
                return
            raise PolicyRefused(
                f"The experiment promises no differential privacy; {self.where('max_epsilon')} asks for an epsilon of"
                f" at most {self.max_epsilon:g}.",
                hint="The researcher can add it: Experiment(privacy=...).",
                code="privacy_missing",
            )
        if self.max_epsilon is not None:
            self._check_strength(promise, self.max_epsilon)
        check_promise(task, promise, endorsed=self.min_endorsed)

    def _check_strength(self, promise: PrivacyTerms, max_epsilon: float) -> None:
        bounds = (
            ("epsilon", promise.epsilon, max_epsilon, "max_epsilon"),
            ("delta", promise.delta, self.max_delta, "max_delta"),
        )
        for what, found, most, name in bounds:
            if found > most:
                raise PolicyRefused(
                    f"The experiment promises {what} {found:g}; {self.where(name)} takes at most {most:g}.",
                    hint="The researcher can add noise, or run fewer rounds.",
                    code="privacy_too_weak",
                )
        choices = (("unit", promise.unit, self.units, "units"), ("trust in", promise.trusts, self.trusts, "trusts"))
        for what, found, taken, name in choices:
            if found not in taken:
                raise PolicyRefused(
                    f"The experiment's promise has the {what} {found!r}; {self.where(name)} takes"
                    f" {' or '.join(repr(each) for each in sorted(taken))}.",
                    hint="The researcher can choose another kind of differential privacy.",
                    code="privacy_too_weak",
                )

    def check_plan(self, plan: Plan) -> None:
        """Raise PolicyRefused when the plan's tensors need more memory than this device gives."""
        asked = read_parallel(self.parallel, self.threads)
        # Processes that share layers have one set of gradients among them, and parts of one that are added to it.
        need = memory_needed(plan, min(asked.processes, 2) if asked.layers else asked.processes)
        if self.memory_bytes is not None and need > self.memory_bytes:
            raise PolicyRefused(
                f"Plan {plan.manifest.name!r} needs at least {need} bytes; this device allows {self.memory_bytes}.",
                hint=f"Raise the limit in {self.where('memory_bytes')}, or let the researcher choose a smaller model or"
                " batch.",
                code="memory_refused",
            )

    def check_upload(self, most: int, task: Task) -> None:
        """Raise PolicyRefused when an update may get more bytes than this device sends or the task takes.

        most: the most bytes it can have, whatever the rows are.
        """
        limit = min(self.max_upload_bytes, task.upload_limit)
        if most > limit:
            raise PolicyRefused(
                f"The update may have up to {most} bytes; at most {limit} may be sent.",
                hint=f"Raise the limit in {self.where('max_upload_bytes')}, or let the researcher choose a smaller"
                " codec.",
                code="upload_too_large",
            )


def unfit_modes(modes: frozenset[str], trusts: frozenset[str]) -> str | None:
    """Why these modes of secure aggregation cannot stand beside what a policy trusts; None where they can."""
    if "semi_honest" not in modes or "cohort" not in trusts or "coordinator" in trusts:
        return None
    return (
        "trusts takes the noise of a cohort and not the coordinator's word, and in that mode the coordinator is trusted"
    )


def memory_needed(plan: Plan, processes: int = 1) -> int:
    """Bytes of the tensors that a task of this plan holds at once, as `DevicePolicy.memory_bytes` counts them.

    processes: how many share its training.
    """
    manifest = plan.manifest
    model = 4 * (manifest.layout.size + (manifest.frozen.layout.size if manifest.frozen else 0))
    if manifest.stepped is None:
        return 3 * model
    carried, fed, rest = _bytes(manifest.stepped)
    # A process that shares has gradients of its own, and leaves them where the others read them.
    shared = 2 * (processes - 1) * 4 * manifest.layout.size
    need = 3 * model + 2 * carried + fed + rest + shared
    # The steps of all lengths share state and constants; each is fed by itself.
    need += len(manifest.stepped.lengths) * fed
    steps = manifest.training.steps_per_call
    # A group of steps has a state of its own, and the feeds of all its steps: gathered, and as the runtime takes them.
    return need if steps is None else need + 2 * carried + 2 * steps * fed


def _bytes(stage: Stage) -> tuple[int, int, int]:
    """Bytes of the inputs that are carried, of those that each step is fed, and of the others."""
    carried = fed = rest = 0
    for tensor in stage.inputs:
        size = 4 * math.prod(tensor.shape)
        if tensor.source in ("state", "zeros"):
            carried += size
        elif tensor.source in ("batch", "random", "noise"):
            fed += size
        else:
            rest += size
    return carried, fed, rest
