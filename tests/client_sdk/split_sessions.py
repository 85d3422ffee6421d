"""Two parties in a session, whose roles learn together in this process."""

from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sdk_kit import Coordinator

from coterie.aggregation.plan.check_session import SessionPlan
from coterie.client_sdk.control.control import Control
from coterie.client_sdk.party.learner import Learner
from coterie.client_sdk.party.party import Party, Session
from coterie.client_sdk.party.pins import trust_first_use
from coterie.errors import CoterieError
from coterie.protocol.session import PartyRole, SessionCreate
from tests.patience import patience

STAGES = ("plan", "learning")


def tokens_of(coordinator: Coordinator, *, stages: tuple[str, ...] = STAGES) -> dict[str, str]:
    """The tokens of a new session."""
    asked = SessionCreate(
        name="joint",
        roles=(PartyRole(name="owner", party="Clinic"), PartyRole(name="feature", party="Registry")),
        stages=stages,
    )
    with Control(coordinator.url, token=coordinator.token) as control:
        return dict(control.make_session(asked).tokens)


@dataclass(frozen=True)
class Pair:
    """Two parties in a session, and a folder for each."""

    owner: Session
    feature: Session
    folder: Path

    @contextmanager
    def learners(self, plan: SessionPlan, patience_s: float = 30.0) -> Generator[tuple[Learner, Learner]]:
        """Both sides of a plan, in their folders, with all columns allowed.

        patience_s: on a quiet machine.
        """
        columns = {part.role: part.schema.sources for part in plan.manifest.parts}
        names = (("owner", self.owner), ("feature", self.feature))
        with ExitStack() as stack:
            one, other = (
                stack.enter_context(
                    Learner(
                        session,
                        plan,
                        self.folder / f"{role}-learning",
                        columns=columns[role],
                        patience_s=patience(patience_s),
                    )
                )
                for role, session in names
            )
            yield one, other


@contextmanager
def paired(coordinator: Coordinator, folder: Path, **changes: Any) -> Generator[Pair]:
    """A pair that has joined."""
    tokens = tokens_of(coordinator, **changes)
    with (
        Party(folder / "owner", judge=trust_first_use) as one,
        Party(folder / "feature", judge=trust_first_use) as other,
    ):
        owner, feature = one.join(coordinator.url, tokens["owner"]), other.join(coordinator.url, tokens["feature"])
        yield Pair(owner, feature, folder)


def both(one: Callable[[], Any], other: Callable[[], Any]) -> tuple[Any, Any]:
    """Both at once, as two programs would. An error is a result too."""

    def caught(function: Callable[[], Any]) -> Any:
        try:
            return function()
        except CoterieError as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.submit(caught, one), pool.submit(caught, other)
        return first.result(), second.result()
