"""Codecs: how a section's vector becomes bytes and back. Named by strings; `float32` is mandatory for every client."""

from coterie.protocol.codecs.codec import Codec, Payload, Reader
from coterie.protocol.codecs.table import CODECS, choose, parse

__all__ = ["CODECS", "Codec", "Payload", "Reader", "choose", "parse"]
