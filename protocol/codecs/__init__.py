"""Codecs: how a section's vector becomes bytes and back. Named by strings; `float32` is mandatory for every client."""

from coterie.protocol.codecs.codec import NO_STATE, Codec, CodecState, Keys, Payload, Reader, Shape
from coterie.protocol.codecs.table import FAMILIES, choose, families, parse

__all__ = [
    "FAMILIES",
    "NO_STATE",
    "Codec",
    "Keys",
    "Payload",
    "Reader",
    "Shape",
    "CodecState",
    "choose",
    "families",
    "parse",
]
