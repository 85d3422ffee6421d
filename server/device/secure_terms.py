"""What a task says of its attempt of secure aggregation, and which attempt that is."""

import asyncio
import secrets

from sqlalchemy.ext.asyncio import AsyncSession

from coterie.aggregation.plan.manifest import Manifest
from coterie.aggregation.private.central import CLIP
from coterie.aggregation.private.secure_aggregation import secure_of
from coterie.aggregation.secure import clip_in, secure_terms
from coterie.protocol.control import ExperimentCreate
from coterie.protocol.device import TaskKind
from coterie.protocol.privacy import Privacy, UserLevel
from coterie.protocol.secagg import SecureTerms
from coterie.protocol.tensors import open_tensors
from coterie.server.store import attempts, tasks
from coterie.server.store.blob_reader import BlobReader
from coterie.server.store.experiments import OpenRound


async def joined(
    session: AsyncSession,
    opened: OpenRound,
    kind: TaskKind,
    request: ExperimentCreate,
    manifest: Manifest,
    reader: BlobReader,
    server_state: str | None,
) -> SecureTerms | None:
    """The terms of a task that is about to be made, whose attempt this makes if the task is its first; None where
    updates come in clear.

    reader: of blobs.
    server_state: the digest of what the rounds before have left.
    """
    secure = secure_of(request)
    if secure is None:
        return None
    experiment, number = opened.row.experiment, opened.row.number
    groups = secure.groups if kind == "train" and secure.groups else 1
    attempt = await attempts.join(session, experiment, number, kind, await _bucket(session, opened, kind, groups))
    return secure_terms(
        manifest,
        kind,
        attempt=attempt.id,
        secure=secure,
        privacy=request.privacy,
        rounds=request.rounds,
        round=number,
        clip=await asyncio.to_thread(_clip, request.privacy, reader, server_state),
    )


def _clip(privacy: Privacy | None, reader: BlobReader, server_state: str | None) -> float | None:
    """The clipping norm that the quantiles of the rounds before have moved to; None where nothing moves it."""
    if not isinstance(privacy, UserLevel) or privacy.adaptive is None or server_state is None:
        return None
    file = open_tensors(reader.range_of("blobs", server_state, "the server's state"))
    return clip_in({CLIP: file.read(CLIP)} if CLIP in file.tensors else {})


async def _bucket(session: AsyncSession, opened: OpenRound, kind: TaskKind, groups: int) -> int:
    """A group with the fewest tasks, by lot: nobody chooses whom a client is hidden among."""
    if groups == 1:
        return 0
    taken = await tasks.by_bucket(session, opened.row.experiment, opened.row.number, kind)
    fewest = min(taken.get(bucket, 0) for bucket in range(groups))
    return secrets.choice([bucket for bucket in range(groups) if taken.get(bucket, 0) == fewest])
