"""A role with labels alone, compression and protections over a session: the bits of the simulation, the bytes told."""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import split_role
from sdk_kit import Coordinator
from split_sessions import both, paired

from coterie.aggregation.plan.check_session import SessionPlan
from coterie.aggregation.vertical.compile import compile_split
from coterie.aggregation.vertical.split import LabelRole, SplitNetwork
from coterie.client_sdk.party.agreement import HEADER_BYTES
from coterie.client_sdk.party.learner import Learner
from coterie.client_sdk.party.party import Session
from coterie.client_sdk.party.role_calls import STAGE
from coterie.compute import nn
from coterie.errors import CoterieError
from coterie.protocol.cut import CutPolicy, EmbeddingNoise, GradientNoise, RandomisedLabels
from coterie.protocol.schema import DataSchema, Label
from coterie.randomness import seed_of
from coterie.simulation import VerticalRun
from tests.patience import patience

CUT = CutPolicy(
    compression="int4",
    embedding=EmbeddingNoise(clip=1.0, deviation=0.1),
    gradient=GradientNoise(kind="max_norm"),
    label=RandomisedLabels(epsilon=2.0),
)


def network(cut: CutPolicy) -> SplitNetwork:
    """An owner that has the label alone, and a role with columns; first weights are drawn."""
    feature = replace(split_role.network().features[0], model=nn.Linear(3, 2))
    owner = LabelRole(
        role="owner",
        schema=DataSchema((), Label(name="ill", classes=(0, 1))),
        top=nn.Sequential(nn.Tanh(), nn.Linear(2, 2)),
    )
    return replace(split_role.network(), features=(feature,), labels=owner, cut=cut)


def secret(role: str) -> bytes:
    """Of which a role draws in these tests."""
    return seed_of("test", role)


def learner(session: Session, plan: SessionPlan, folder: Path) -> Learner:
    """A role whose secret is known."""
    role = session.membership.role
    columns = plan.manifest.part(role).schema.sources
    return Learner(
        session,
        plan,
        folder / f"{role}-known",
        columns=columns,
        patience_s=patience(30),
        entropy=lambda count: secret(role)[:count],
    )


@pytest.mark.parametrize("cut", [CutPolicy(), CUT], ids=["as they are", "protected"])
def test_a_session_has_the_bits_of_the_simulation(cut: CutPolicy, coordinator: Coordinator, tmp_path: Path) -> None:
    plan = compile_split(network(cut))
    scan, ill = split_role.rows("feature"), {"ill": split_role.rows("owner")["ill"]}
    with paired(coordinator, tmp_path) as pair, ExitStack() as stack:
        here = stack.enter_context(learner(pair.owner, plan, tmp_path))
        there = stack.enter_context(learner(pair.feature, plan, tmp_path))
        trained, _ = both(lambda: here.train(ill), lambda: there.train(scan))
        measured, _ = both(lambda: here.evaluate(ill), lambda: there.evaluate(scan))
        predicted, _ = both(lambda: here.predict(split_role.ROWS), lambda: there.predict(scan))
        name = pair.owner.membership.session
        run = VerticalRun(plan, {role: secret(role) for role in plan.manifest.roles}, session=name)
        given: dict[str, Any] = {"owner": ill, "feature": scan}
        run.train(given)
        assert run.epochs == trained and run.evaluate(given) == measured
        np.testing.assert_array_equal(run.predict({"feature": scan}), predicted)
        for role, side in (("owner", here), ("feature", there)):
            assert side.client_state.keys() == run.client_state[role].keys()
            for key, value in side.client_state.items():
                np.testing.assert_array_equal(value, run.client_state[role][key])


def test_a_role_without_columns_says_how_many_rows_a_prediction_has(coordinator: Coordinator, tmp_path: Path) -> None:
    plan = compile_split(network(CutPolicy()))
    scan, ill = split_role.rows("feature"), {"ill": split_role.rows("owner")["ill"]}
    with paired(coordinator, tmp_path) as pair, pair.learners(plan) as (here, there):
        both(lambda: here.train(ill), lambda: there.train(scan))
        wrong: tuple[tuple[Any, str], ...] = ((ill, "reads nothing"), ({}, "reads nothing"), (0, "given 0"))
        for rows, says in wrong:
            with pytest.raises(CoterieError, match=says) as refused:
                here.predict(rows)
            assert refused.value.reason == "argument_type"
        with pytest.raises(CoterieError, match=f"given {split_role.ROWS}"):
            here.train(split_role.ROWS)  # pyright: ignore[reportArgumentType]
        found = both(lambda: here.predict(49), lambda: there.predict(scan))
        assert [error.reason for error in found] == ["session_step"] * 2
        predicted, _ = both(lambda: here.predict(split_role.ROWS), lambda: there.predict(scan))
        assert predicted.shape == (split_role.ROWS, 2)


def test_fewer_bytes_are_sent_and_no_more_than_are_told(coordinator: Coordinator, tmp_path: Path) -> None:
    sizes: dict[str, list[int]] = {}
    for form in ("float32", "int1"):
        split = network(CutPolicy(compression=form))
        wide = replace(split.features[0], model=nn.Linear(3, 64))
        top = replace(split.labels, top=nn.Sequential(nn.Tanh(), nn.Linear(64, 2)))
        plan = compile_split(replace(split, features=(wide,), labels=top, epochs=1, batch_size=16))
        with paired(coordinator, tmp_path / form) as pair, pair.learners(plan) as (here, there):
            sent = _counted(pair.feature)
            both(
                lambda here=here: here.train({"ill": split_role.rows("owner")["ill"]}),
                lambda there=there: there.train(split_role.rows("feature")),
            )
        told = next(d for d in plan.manifest.disclosures() if d.sender == "feature" and d.step == "train")
        # Two about the call itself, then one a batch.
        sizes[form] = sent[2:]
        assert len(sizes[form]) == 2 and told.form == form
        assert all(told.size < size <= told.size + HEADER_BYTES for size in sizes[form])
    assert all(small < large / 8 for small, large in zip(sizes["int1"], sizes["float32"], strict=True))


def _counted(session: Session) -> list[int]:
    """The sizes of messages that a party sends from now on, in the stage of learning."""
    found: list[int] = []
    send = session.send

    def counting(stage: str, role: str, body: Any, **options: Any) -> Any:
        if stage == STAGE:
            found.append(len(body))
        return send(stage, role, body, **options)

    session.send = counting
    return found


def test_a_message_in_another_form_is_refused(coordinator: Coordinator, tmp_path: Path) -> None:
    """The registry's program has the same plan but for the form, and says that it has this one."""
    plan, other = compile_split(network(CutPolicy(compression="int8"))), compile_split(network(CutPolicy()))
    scan, ill = split_role.rows("feature"), {"ill": split_role.rows("owner")["ill"]}
    with paired(coordinator, tmp_path) as pair, pair.learners(plan) as (here, there):
        there._role._plan = other  # pyright: ignore[reportPrivateUsage]
        there._patience_s = 0.5  # pyright: ignore[reportPrivateUsage]
        refused, _ = both(lambda: here.train(ill), lambda: there.train(scan))
        assert refused.reason == "session_values" and "embedding as float32[8, 2]" in refused.message


def test_the_secret_of_a_folder_stays_for_its_sessions(coordinator: Coordinator, tmp_path: Path) -> None:
    """Labels that were drawn once are drawn alike for the same rows: a second training of them tells nothing more."""
    plan = compile_split(network(CUT))
    with paired(coordinator, tmp_path) as pair, pair.learners(plan) as (here, there):
        first = here._calls.secret  # pyright: ignore[reportPrivateUsage]
        both(
            lambda: here.train({"ill": split_role.rows("owner")["ill"]}),
            lambda: there.train(split_role.rows("feature")),
        )
    with paired(coordinator, tmp_path / "next") as later:
        kept = replace(later, folder=tmp_path)
        with kept.learners(plan) as (here, _):
            assert here._calls.secret == first  # pyright: ignore[reportPrivateUsage]
            assert len(bytes.fromhex(first)) == 32 and first not in repr(here._calls._progress)  # pyright: ignore[reportPrivateUsage]
