"""The calls that a role makes together with its partners: numbered, agreed on before anything of a row leaves, and
kept, so that a program that was killed and is started again makes the same calls and goes on.

`coterie.client_sdk.party.learner.Learner` (split networks) and `coterie.client_sdk.party.tree_learner.TreeLearner` say
what is done within a call.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeAlias

from coterie.aggregation.plan.stage import TaskName
from coterie.client_sdk.party.agreement import CALLS, agree, step_of, told_by_calls, withdraw
from coterie.client_sdk.party.learner_store import SECRET_BYTES, LearnerCall, LearnerStore, RoleProgress, call_of
from coterie.client_sdk.party.message_log import MessageLog
from coterie.client_sdk.party.party import Session
from coterie.errors import ConfigurationError, Conflict
from coterie.privacy.entropy import Entropy, draw
from coterie.protocol.arrays import ArraysByName
from coterie.protocol.disclosures import Disclosure

STAGE: Final = "learning"
"""The stage of a session in which roles that learn send what they send."""

CallResult: TypeAlias = tuple[LearnerCall, ArraysByName]
"""A call that is done, and what it gave."""


class RoleCalls:
    """The calls of one role in one plan.

    session: joined already, with a stage ``learning``.
    plan: what all roles run, by its digest.
    folder: of this role and plan alone, one program at a time.
    partners: the roles that it exchanges messages with.
    patience_s: how long to wait for a partner's message; for as long as it takes when not given.
    entropy: where the secret comes from.
    Raises ConfigurationError (``plan_changed``, ``session_left``, ``store_in_use``), StorageError.
    """

    def __init__(
        self,
        session: Session,
        plan: str,
        folder: Path,
        partners: Sequence[str],
        patience_s: float | None,
        entropy: Entropy = os.urandom,
    ) -> None:
        self._plan, self._role, self._patience_s = plan, session.membership.role, patience_s
        self._store = LearnerStore(folder)
        try:
            self._progress, self.tensors = self._load(session, entropy)
        except BaseException:
            self._store.close()
            raise
        self.log = MessageLog(session, STAGE, self._store)
        self._partners = list(partners)
        self._next = 0
        self._held: ArraysByName | None = None

    @property
    def folder(self) -> Path:
        """Where everything is kept."""
        return self._store.folder

    @property
    def secret(self) -> str:
        """What this role draws its random numbers of, in hexadecimal: drawn once for the folder, and told to nobody."""
        return self._progress.secret

    @property
    def trained(self) -> int:
        """How many trainings are done, in all sessions."""
        return self._progress.trained

    def close(self) -> None:
        """Release the folder."""
        self._store.close()

    def skip_done(self) -> None:
        """Let the next call be a new one, after all that earlier programs have made in this session."""
        self._next = self._progress.done

    def keep(self, call: LearnerCall | None, tensors: ArraysByName) -> None:
        """Keep where this role is now: a call, or between two, and what it holds."""
        self._progress, self.tensors = self._progress_at(call), tensors
        self._store.keep(STAGE, self._progress, tensors)

    def hold(self, tensors: ArraysByName) -> None:
        """What this role is to hold from the end of the present call on: kept together with the call's result, so that
        a program that is killed before has neither, and makes the last exchange again as it was.
        """
        self._held = tensors

    def make(
        self,
        task: TaskName,
        arrays: ArraysByName,
        threads: int,
        *,
        begin: Callable[[LearnerCall], ArraysByName],
        tells: Callable[[LearnerCall], Sequence[Disclosure]],
        work: Callable[[LearnerCall], CallResult],
    ) -> CallResult:
        """The next call and what it gave: now, or in an earlier program.

        arrays: the rows that it is about.
        begin: what to hold from the beginning of a call on, before partners hear of it.
        tells: what a call tells at most, for the report of the session.
        work: does what is left of a call that all roles make.
        """
        asked = call_of(task, arrays, self._next, threads=threads, trained=self._progress.trained)
        found = self._store.result(asked.number) if asked.number < self._progress.done else None
        if found is None:
            found = self._finish(asked, begin, tells, work)
        elif not found[0].same_as(asked):
            raise _other_call(found[0], asked)
        self._next += 1
        return found

    def _load(self, session: Session, entropy: Entropy) -> tuple[RoleProgress, ArraysByName]:
        secret = draw(entropy, SECRET_BYTES).hex()
        fresh = RoleProgress(plan=self._plan, role=self._role, session=session.membership.session, secret=secret)
        progress, tensors = self._store.state() or (fresh, {})
        if (progress.plan, progress.role) != (fresh.plan, fresh.role):
            raise ConfigurationError(
                f"{self._store.folder} belongs to the role {progress.role} in plan {progress.plan[:12]}…, not to "
                f"{fresh.role} in {fresh.plan[:12]}….",
                hint="Give each role and plan a folder of its own.",
                code="plan_changed",
            )
        progress = replace(progress, secret=progress.secret or secret)
        progress.require_not_left(fresh.session, self._store.folder)
        if progress.session == fresh.session:
            return progress, tensors
        if progress.call is not None and progress.call.changed_weights:
            raise ConfigurationError(
                f"{self._store.folder} is in the middle of a training, call {progress.call.number} of session "
                f"{progress.session}.",
                hint="Finish it in that session, or train from the beginning in a new folder, in every role.",
                code="plan_changed",
            )
        left = (*progress.left, progress.session)
        return replace(fresh, trained=progress.trained, left=left, secret=progress.secret), tensors

    def _progress_at(self, call: LearnerCall | None) -> RoleProgress:
        """Progress with the messages that are worked in by now."""
        return replace(self._progress, call=call, sent=dict(self.log.sent), received=dict(self.log.received))

    def _finish(
        self,
        asked: LearnerCall,
        begin: Callable[[LearnerCall], ArraysByName],
        tells: Callable[[LearnerCall], Sequence[Disclosure]],
        work: Callable[[LearnerCall], CallResult],
    ) -> CallResult:
        """The call, from where it was broken off, and what it gives."""
        begun = self._progress.call
        # What failed in this process has read on.
        self.log.rewind(self._progress.sent, self._progress.received)
        self.log.begin(CALLS, *told_by_calls(self._partners, self._role, self._plan))
        if begun is not None and not begun.same_as(asked):
            if begun.agreed:
                raise _other_call(begun, asked)
            try:
                withdraw(self.log, self._partners, self._plan, begun, self._patience_s)
            except Conflict as error:
                # An earlier program has said that it makes the call, and was killed before it kept that all do.
                raise (_other_call(begun, asked) if error.reason == "message_differs" else error) from error
            self.keep(None, self.tensors)
            begun = None
        if begun is None:
            self.keep(asked, begin(asked))
            self.log.faults.reach("begun")
            begun = asked
        if not begun.agreed:
            try:
                agree(self.log, self._partners, self._plan, begun, self._patience_s)
            except Conflict as error:
                if error.reason == "session_step":  # all roles know that nobody makes it
                    self.keep(None, self.tensors)
                raise
            begun = replace(begun, agreed=True)
            self.keep(begun, self.tensors)
            self.log.faults.reach("agreed")
        self.log.finish()
        # One that is broken off tells less.
        self.log.begin(step_of(begun), *tells(begun))
        self._held = None
        call, outputs = work(begun)
        self.log.finish()
        trained = call.trained + (call.task == "train")
        progress = replace(self._progress_at(None), done=call.number + 1, trained=trained)
        tensors = self.tensors if self._held is None else self._held
        self._store.finish(STAGE, call, outputs, progress, tensors)
        # Only now: where that failed, the call is made again.
        self._progress, self.tensors = progress, tensors
        self.log.faults.reach("call_done")
        return call, outputs


def _other_call(begun: LearnerCall, asked: LearnerCall) -> Conflict:
    alike = (begun.task, begun.rows) == (asked.task, asked.rows)
    return Conflict(
        f"Call {asked.number} was {begun.task} on {begun.rows} rows, in an earlier program; now it is {asked.task} on "
        f"{'other rows' if alike else f'{asked.rows} rows'}.",
        hint="Make the same calls as before, so that each goes on where it was; skip_done() comes before calls that "
        "are new.",
        code="session_step",
    )
