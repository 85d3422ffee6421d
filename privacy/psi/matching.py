"""Which tags two parties have in common, and which rows these are: sorted arrays, no secrets."""

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coterie import errors
from coterie.privacy.psi.blinding import TAG_BYTES, reordered, sorted_places

_DOMAIN = b"coterie/psi/v1/common\n"


@dataclass(frozen=True)
class SortedTags:
    """Tags in rising order, each once.

    packed: 16 bytes each.
    places: where each was before.
    """

    packed: bytes
    places: NDArray[np.int64]

    @staticmethod
    def of(tags: bytes) -> "SortedTags":
        """Tags put in order. Raises errors.InputError (``psi_points``) for one that is there twice."""
        places = sorted_places(tags, TAG_BYTES)
        packed = reordered(tags, TAG_BYTES, places)
        _check_once(packed)
        return SortedTags(packed, places)

    @property
    def ranks(self) -> NDArray[np.uint32]:
        """The place in the order of each, as they were before: what `links` are."""
        ranks = np.empty(len(self.places), np.uint32)
        ranks[self.places] = np.arange(len(self.places), dtype=np.uint32)
        return ranks


@dataclass(frozen=True)
class CommonTags:
    """Tags that both parties have, in rising order.

    among: the place of each in the list that the partner has shown of this party's ids.
    digest: SHA-256 over them.
    """

    among: NDArray[np.int64]
    digest: bytes

    @property
    def count(self) -> int:
        """How many."""
        return len(self.among)


def common_tags(shown: bytes, made: bytes) -> CommonTags:
    """The tags that are in both of two lists in rising order.

    shown: of this party's ids, as the partner says them. made: of the partner's, as this party made them.
    Raises errors.InputError (``psi_points``) for ``shown`` that does not rise.
    """
    if (sorted_places(shown, TAG_BYTES) != np.arange(len(shown) // TAG_BYTES)).any():
        raise _refused("its tags are not in rising order")
    _check_once(shown)
    joined = shown + made
    order = sorted_places(joined, TAG_BYTES)
    words = np.frombuffer(joined, np.uint64).reshape(-1, TAG_BYTES // 8)[order]
    alike = np.flatnonzero((words[1:] == words[:-1]).all(axis=1))
    # lexsort is stable: of two equal tags that of ``shown`` comes first.
    among = order[alike]
    digest = hashlib.sha256(_DOMAIN + reordered(shown, TAG_BYTES, among)).digest()
    return CommonTags(among, digest)


def linked_rows(links: bytes, order: NDArray[np.int64], common: CommonTags) -> NDArray[np.int64]:
    """This party's rows that are common, in the order of their tags, which is the same at both parties.

    links: of each of this party's points, as it showed them, the place of its tag among those that the partner showed.
    order: the row of each of these points.
    Raises errors.InputError (``psi_points``) for links that lead twice to one place.
    """
    ranks = np.frombuffer(links, ">u4").astype(np.int64)
    point_of = np.full(len(order), -1, np.int64)
    if len(ranks) != len(order) or (ranks >= len(order)).any():
        raise _refused("its links lead to tags that it did not show")
    point_of[ranks] = np.arange(len(order))
    if (point_of < 0).any():
        raise _refused("its links lead twice to one tag")
    return order[point_of[common.among]]


def _check_once(packed: bytes) -> None:
    words = np.frombuffer(packed, np.uint64).reshape(-1, TAG_BYTES // 8)
    if (words[1:] == words[:-1]).all(axis=1).any():
        raise _refused("two of them are the same")


def _refused(what: str) -> errors.InputError:
    return errors.InputError(
        f"The partner sent points or tags that cannot be used: {what}.",
        hint="Ask the partner which program it runs: no right one sends such a thing. End the session.",
        code="psi_points",
    )
