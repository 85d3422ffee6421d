"""What is derived from the secrets of an attempt: masks, the commitment to a mask's seed, and the keys of the boxes.

Client and coordinator derive the same masks from the same secrets: the client from its own, the coordinator from those
that were rebuilt out of shares.
"""

import hashlib
from collections.abc import Mapping

from coterie.privacy.secagg.context import AttemptContext
from coterie.privacy.secagg.keys import RosterKey, agree_each, derive, pair_info
from coterie.privacy.secagg.masks import MaskSeed
from coterie.privacy.secagg.roster import entry_bytes
from coterie.protocol.secagg import RosterEntry


def commitment(context: AttemptContext, place: int, seed: bytes) -> str:
    """The hash that a client publishes of its own mask's seed, 32 uniform bytes, which it hides and binds."""
    return hashlib.sha256(context.bind("commitment", place, seed)).hexdigest()


def own_mask(context: AttemptContext, place: int, seed: bytes) -> MaskSeed:
    """The mask that a client adds for itself alone: it covers the vector even where all masks of pairs are known."""
    return MaskSeed(derive(seed, context.bind("own mask", place)), 1)


def pair_masks(
    context: AttemptContext, place: int, private: bytes, public: str, others: Mapping[int, str]
) -> tuple[MaskSeed, ...]:
    """The masks of the client at `place` with each of `others` (place → mask key), from its private mask key.

    Of a pair the lower place adds the mask and the higher subtracts it, so it cancels in a sum that has both.
    """
    own = RosterKey(place, bytes.fromhex(public))
    peers = {peer: RosterKey(peer, bytes.fromhex(key)) for peer, key in others.items()}
    infos = [(peer.public, pair_info(context, "pair mask", own, peer)) for peer in peers.values()]
    seeds = agree_each(private, infos)
    return tuple(MaskSeed(seed, 1 if place < peer else -1) for peer, seed in zip(peers, seeds, strict=True))


def channel_keys(
    context: AttemptContext, own: RosterEntry, private: bytes, others: Mapping[int, RosterEntry]
) -> dict[int, bytes]:
    """The keys of the boxes between a client and each of `others`, by place, from its private channel key.

    They are bound to both entries as a whole. So a box does not open between two clients of which one was shown another
    mask key, device, identity or signature of the other.
    """
    mine = entry_bytes(own)
    infos: list[tuple[bytes, bytes]] = []
    for peer in others.values():
        low, high = sorted(((own.position, mine), (peer.position, entry_bytes(peer))))
        infos.append((bytes.fromhex(peer.channel_key), context.bind("channel", low[0], low[1], high[0], high[1])))
    return dict(zip(others, agree_each(private, infos), strict=True))
