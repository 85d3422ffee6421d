"""Makes protocol/vectors/lies.json: `python tests/client_sdk/make_lies.py` rewrites the file.

Each case is a task that a coordinator signed, with the policy of the device that gets it and what the device's own
record holds. Nothing in it is random, so the file is the same on every machine.
"""

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from relay import SECTIONS, task, terms

from coterie.privacy.dp.events import Approximate, Gaussian, PrivacyEvent
from coterie.protocol.claims import LocalTerms, PrivacyTerms
from coterie.protocol.conversion import to_json
from coterie.protocol.device import Task
from coterie.protocol.noise import NoiseTerms
from coterie.protocol.secure_sections import SecureSection

Json = dict[str, Any]
FILE = Path(__file__).parents[2] / "protocol" / "vectors" / "lies.json"
SIGNER = "d" * 64
COORDINATOR = "c" * 64
HERE = "exp_" + "1" * 32
NOISED = SecureSection(name="delta", encoding="noised", values=1024, bits=24, top=(1 << 24) - 1, norm=1.0)
NOISE = NoiseTerms(mechanism="discrete_gaussian", clip=1.0, scale=1024.0, variance=5_000_000.0, contributors=5)
METRICS = SecureSection(name="metrics", encoding="fixed", values=3, bits=32, top=1 << 20, low=-64.0, step=2.0**-10)
USER: Json = {"unit": "user", "epsilon": 8.0, "delta": 1e-6, "mechanism": "gaussian", "trusts": "coordinator"}
COHORT: Json = {**USER, "epsilon": 4.0, "mechanism": "discrete_gaussian", "trusts": "cohort"}
DEVICE: Json = {**USER, "epsilon": 1.0, "trusts": "device"}
OWN = LocalTerms(mechanism="gaussian", epsilon=1.0, delta=1e-6, clip=0.5, top=0.01, outputs=None)
ROWS: Json = {"unit": "example", "epsilon": 6.0, "delta": 1e-5, "mechanism": "dp_sgd", "trusts": "device"}
STEPS: Json = {
    "batch_size": 40,
    "epochs": 1,
    "max_steps": 10,
    "holdout": 0.0,
    "private": {"clip": 1.0, "noise_multiplier": 1.0, "expected": 8, "rows": 100},
}
STRICT: Json = {"max_epsilon": 8.0, "max_delta": 1e-5}


def asked(promise: Json | None, *, local: LocalTerms | None = None, secure: Json | None = None, **changes: Any) -> Json:
    """A task as it crosses the wire, without its signature. secure: changes of the terms, None in clear."""
    attempt = "att_" + "2" * 32
    chosen: Json = {"attempt": attempt, "min_clients": 6, **(secure or {})}
    given = None if secure is None else terms(10, **chosen)
    made = task(given or terms(10, attempt=attempt), "dev_" + "3" * 32)
    told: Json = {
        "id": "task_" + "4" * 32,
        "experiment": HERE,
        "secure": given,
        "privacy": None if promise is None else PrivacyTerms(**promise),
        "local": local,
        **changes,
    }
    return Task.model_validate(made.model_copy(update=told).model_dump(mode="json")).model_dump(mode="json")


def shared(*sections: SecureSection, **changes: Any) -> Json:
    """Terms of a cohort that shares noise, in the mode that holds against a coordinator that lies."""
    return {"mode": "consistent", "noise": NOISE, "sections": (SECTIONS[0], *(sections or (NOISED,))), **changes}


def wrote(*events: PrivacyEvent, experiment: str = HERE, coordinator: str = COORDINATOR, once: bool = False) -> Json:
    """A row of the device's own record."""
    told = [to_json(event) for event in events]
    return {"coordinator": coordinator, "experiment": experiment, "once": once, "events": told}


UPLOAD = Gaussian(4.224680)
"""A little less than what one upload under OWN costs."""
ELSEWHERE = "exp_" + "5" * 32

TAKEN: dict[str, tuple[Json, Json, list[Json]]] = {
    "in clear, with a policy that asks for nothing": ({}, asked(None), []),
    "noise of a cohort, on the change alone": (STRICT, asked(COHORT, secure=shared()), []),
    "noise of its own": (STRICT, asked(DEVICE, local=OWN), []),
    "rows in private steps": ({**STRICT, "max_delta": 1e-4}, asked(ROWS), []),
    "the word of a coordinator that the policy trusts": (STRICT, asked(USER), []),
    "a claim that is on record already": (STRICT, asked(USER), [wrote(Approximate(8.0, 1e-6), once=True)]),
}
REFUSED: dict[str, tuple[str, Json, Json, list[Json]]] = {
    "in clear": ("secure_aggregation_required", {"require_secure_aggregation": True}, asked(None), []),
    "a cohort that hides nobody": ("cohort_too_small", {}, asked(None, secure={"min_clients": 4}), []),
    "another mode": ("mode_refused", {"modes": ["consistent"]}, asked(None, secure={}), []),
    "fewer corrupt clients than asked": ("corrupt_too_low", {"min_corrupt": 0.2}, asked(None, secure={}), []),
    "another researcher": ("signer_refused", {"signers": ["e" * 64]}, asked(None), []),
    "no promise": ("privacy_missing", STRICT, asked(None), []),
    "a weak promise": ("privacy_too_weak", STRICT, asked({**USER, "epsilon": 8.1}), []),
    "trust in the coordinator": ("privacy_too_weak", {**STRICT, "trusts": ["device"]}, asked(USER), []),
    "an evaluation under a promise": ("privacy_unkept", {}, asked(DEVICE, kind="evaluate"), []),
    "an evaluation under a promise of a cohort": (
        "privacy_unkept",
        {},
        asked(COHORT, secure=shared(), kind="evaluate"),
        [],
    ),
    "an evaluation under a coordinator's promise": ("privacy_unkept", {}, asked(USER, kind="evaluate"), []),
    "no noise of its own": ("privacy_unkept", {}, asked(DEVICE), []),
    "too little noise of its own": (
        "privacy_unkept",
        {},
        asked(DEVICE, local=OWN.model_copy(update={"epsilon": 1.1})),
        [],
    ),
    "the change in clear, the metrics noised": (
        "privacy_unkept",
        {},
        asked(COHORT, secure=shared(SECTIONS[1], NOISED.model_copy(update={"name": "metrics"}))),
        [],
    ),
    "the change noised, the metrics in clear": (
        "privacy_unkept",
        {},
        asked(COHORT, secure=shared(NOISED, METRICS)),
        [],
    ),
    "the change noised and in clear": ("privacy_unkept", {}, asked(COHORT, secure=shared(NOISED, SECTIONS[1])), []),
    "no shared noise": ("privacy_unkept", {}, asked(COHORT, secure=shared(noise=None)), []),
    "shared noise in clear": ("privacy_unkept", {}, asked(COHORT), []),
    "a cohort that can be split": ("privacy_unkept", {}, asked(COHORT, secure=shared(mode="semi_honest")), []),
    "noise of clients that may be missing": (
        "privacy_unkept",
        {},
        asked(COHORT, secure=shared(noise=NOISE.model_copy(update={"contributors": 7}))),
        [],
    ),
    "too little shared noise": (
        "privacy_unkept",
        {},
        asked(COHORT, secure=shared(noise=NOISE.model_copy(update={"variance": 5000.0}))),
        [],
    ),
    "rows without noise in the steps": ("privacy_unkept", {}, asked(ROWS) | {"steps": None}, []),
    "a second upload under a promise for one": ("privacy_unkept", {}, asked(DEVICE, local=OWN), [wrote(UPLOAD)]),
    "a promise kept, the owner's limit spent elsewhere": (
        "privacy_spent",
        {"max_epsilon": 1.0, "max_delta": 1e-6},
        asked(DEVICE, local=OWN),
        [wrote(UPLOAD, experiment=ELSEWHERE)],
    ),
    "the owner's limit spent at another coordinator": (
        "privacy_spent",
        {"max_epsilon": 1.0, "max_delta": 1e-6},
        asked(DEVICE, local=OWN),
        [wrote(UPLOAD, coordinator="b" * 64)],
    ),
    "a second claim": (
        "privacy_spent",
        STRICT,
        asked(USER),
        [wrote(Approximate(8.0, 1e-6), experiment=ELSEWHERE, once=True)],
    ),
    "a claim that has grown": (
        "privacy_spent",
        {"max_epsilon": 10.0},
        asked(USER),
        [wrote(Approximate(4.0, 1e-6), once=True)],
    ),
}


SEEDS: dict[str, tuple[Json, bool]] = {
    "in clear": (asked(None, seed=7), False),
    "under masks": (asked(None, secure={}, seed=7), True),
    "under masks that count on no coordinator": (asked(None, secure={"mode": "consistent"}, seed=7), True),
    "an evaluation under masks": (asked(None, secure={}, kind="evaluate", seed=7), True),
    "noise of a cohort": (asked(COHORT, secure=shared(), seed=7), True),
}
"""Of each task, whether the device draws its own seed in place of the one that it is told."""


def case(name: str, policy: Json, wanted: Json, record: list[Json], code: str | None) -> Json:
    """A case as the file has it. steps: the plan's training, where the promise is about rows."""
    told = dict(wanted)
    about_rows = told["privacy"] is not None and told["privacy"]["unit"] == "example"
    steps = told.pop("steps", STEPS if about_rows else None)
    found: Json = {"name": name, "policy": policy, "task": told, "record": record}
    if steps is not None:
        found["steps"] = steps
    return found if code is None else {**found, "code": code}


def document() -> Json:
    """The whole file."""
    return {
        "title": "Tasks that a device refuses, and how it says so",
        "provenance": "python tests/client_sdk/make_lies.py",
        "how": "A device that joined a coordinator with the key `coordinator`, with the plan signer `signer` pinned,"
        " holds each task to the policy (names as in a policy file, the rest at its default), to the task's own"
        " promise, and to the record of what it has released, before it trains. It takes the tasks of `taken`; it"
        " refuses those of `refused` with the stable `code`. `steps` is the training part of the plan's manifest,"
        " where a promise is about rows; without it the plan's steps are not private. Signatures of tasks are not"
        " part of these cases. Of the tasks of `seeds`, `own` says whether the device trains by a seed that it draws"
        " for itself alone, anew for each training, in place of the task's `seed`.",
        "signer": SIGNER,
        "coordinator": COORDINATOR,
        "taken": [case(name, *given, None) for name, given in TAKEN.items()],
        "refused": [case(name, *given[1:], given[0]) for name, given in REFUSED.items()],
        "seeds": [{"name": name, "task": told, "own": own} for name, (told, own) in SEEDS.items()],
    }


def text() -> str:
    """The file's text."""
    return json.dumps(document(), indent=1) + "\n"


def rendered() -> dict[str, str]:
    """The file by name, as the other generators give theirs."""
    return {FILE.name: text()}


if __name__ == "__main__":
    FILE.write_text(text())
