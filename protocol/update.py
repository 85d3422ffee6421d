"""An update: one safetensors file with one U8 tensor per section and a header in its metadata.

``__metadata__ = {"coterie": <canonical JSON of the header>}``. `read_update` looks at the header and at sizes only;
`Update.decode` and `Update.chunks` read what they are asked for, so an update of any size streams in bounded memory.
A payload is decoded with nothing but the plan's `SectionSpec` and the header, from which its randomness follows.
Every way in which an update can be wrong has a code of its own (`REFUSALS`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.protocol.canonical import canonical_json, parse_json
from coterie.protocol.codecs import NO_STATE, Codec, CodecState, Keys, parse
from coterie.protocol.codecs.feedback import faded
from coterie.protocol.codecs.table import EXTRA_ONLY, MANDATORY
from coterie.protocol.conversion import from_json, to_json
from coterie.protocol.files import write_durably
from coterie.protocol.header import FORMAT, PayloadKind, SectionEntry, UpdateHeader
from coterie.protocol.layout import Slice
from coterie.protocol.parts import check_coverage, check_room
from coterie.protocol.refusals import REFUSALS, refused
from coterie.protocol.sections import SectionSpec
from coterie.protocol.tensors import TensorFile, TensorLimits, encode_tensors, open_tensors

METADATA_KEY = "coterie"
CHUNK = 1 << 18
SUMS = "float64"
"""The codec of whatever is a sum over clients."""
CODEC_STATE = "codec/"
"""What the names of the codecs' part of a client state begin with: ``codec/<section>/<name>``."""
_LAST_ROUND = CODEC_STATE + "round"
_WHOLE: Mapping[str, tuple[Slice, ...]] = MappingProxyType({})
_NO_PARTS: Mapping[str, Mapping[tuple[Slice, ...], int]] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class UpdateLimits:
    """What an update may be.

    codecs: of slices of the layout, None for every codec; float32 is always allowed, for extra vectors float64 too.
    kinds: the ``update`` of one client, or an edge's ``accumulator`` of min_clients to max_clients, all in float64.
    max_weight, max_steps: of each client.
    """

    max_bytes: int = 1 << 32
    max_header_bytes: int = 1 << 16
    max_weight: int = 1 << 31
    max_steps: int = 1 << 31
    codecs: frozenset[str] | None = None
    kinds: frozenset[PayloadKind] = frozenset({"update"})
    min_clients: int = 1
    max_clients: int = 1 << 31


@dataclass(frozen=True)
class Update:
    """A checked update. A plain value over an immutable file: it holds no handle and needs no closing.

    specs: the sections as this update holds them: of a section that it covers in part, that part.
    """

    header: UpdateHeader
    specs: Mapping[str, SectionSpec]
    file: TensorFile = field(repr=False)

    @property
    def sections(self) -> tuple[str, ...]:
        """Names of the sections, in the header's order."""
        return tuple(entry.name for entry in self.header.sections)

    @property
    def slices(self) -> Mapping[str, tuple[Slice, ...]]:
        """Of sections that it covers in part, the elements that it holds."""
        return {entry.name: entry.slices for entry in self.header.sections if entry.slices}

    @property
    def coverage(self) -> Mapping[str, Mapping[tuple[Slice, ...], float]]:
        """Of an accumulator's sections that some of its clients cover in part, the weight behind each set of slices."""
        return {entry.name: entry.coverage for entry in self.header.sections if entry.coverage}

    @property
    def whole(self) -> bool:
        """Whether it covers all of every section, as do all clients of an accumulator."""
        return not any(entry.slices or entry.coverage for entry in self.header.sections)

    def require_base(self, base: str) -> None:
        """Raise errors.UpdateRefused (``wrong_base``) unless it was trained from that version."""
        _require_named("base", base, self.header.base)

    def read(self, section: str) -> npt.NDArray[Any]:
        """A whole section, decoded once and each number looked at. Raises errors.UpdateRefused as `check_finite`."""
        spec = self.specs[section]
        values = self.decode(section)
        for start in range(0, spec.length, CHUNK):
            self._check(section, start, values[start : start + CHUNK])
        return values

    def decode(self, section: str, start: int = 0, stop: int | None = None) -> npt.NDArray[Any]:
        """Elements [start, stop) of a section as a new float32 array (float64 for the codec float64).

        Raises errors.UpdateRefused for a payload that no encoder writes.
        """
        spec, entry = self.specs[section], self.header.section(section)
        last = spec.length if stop is None else stop
        return parse(entry.codec).decode(
            lambda low, high: self.file.read_bytes(section, low, high), self._keys(section), spec.shape, start, last
        )

    def _keys(self, section: str) -> Keys:
        header = self.header
        return Keys.of(task=header.task, plan=header.plan, base=header.base, section=section)

    def chunks(self, section: str, size: int = CHUNK) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """(start, elements) over the whole section, at most `size` elements each."""
        length = self.specs[section].length
        for start in range(0, length, size):
            yield start, self.decode(section, start, min(start + size, length))

    def check_finite(self) -> None:
        """Decode everything once, in chunks. An accumulator's values must lie within what its weight and its clients
        allow.

        Raises errors.UpdateRefused: ``not_finite`` or ``out_of_range`` (naming section and element), or what `decode`
        raises.
        """
        for name in self.sections:
            for start, values in self.chunks(name):
                self._check(name, start, values)

    def _check(self, name: str, start: int, values: npt.NDArray[Any]) -> None:
        """Raise errors.UpdateRefused for values of a section, from that element on, that are not what they must be."""
        bounds = self._bounds(self.specs[name], start, values.size)
        finite = np.isfinite(values)
        if not finite.all():
            at = int(np.argmin(finite))
            raise refused("not_finite", f"Section {name!r} holds {values[at]} at element {start + at}")
        if bounds and not bool(((values >= bounds[0]) & (values <= bounds[1])).all()):
            at = int(np.argmax((values < bounds[0]) | (values > bounds[1])))
            raise refused(
                "out_of_range",
                f"Section {name!r} holds {values[at]} at element {start + at}, outside "
                f"{list(self.specs[name].value_range or ())}",
            )

    def _bounds(self, spec: SectionSpec, start: int, count: int) -> tuple[Any, Any] | None:
        """What so many values of a section may be, from that element on."""
        if spec.value_range is None or self.header.kind == "update":
            return spec.value_range
        low, high = spec.value_range
        # Sums round: a few units in the last place for each client.
        most = (self.header.weight if spec.reduction == "weighted_mean" else self.header.clients) * (1 + 1e-9)
        parts = self.header.section(spec.name).coverage
        if not parts:
            return min(low * most, low), max(high * most, high)
        behind = np.full(count, most - sum(parts.values()) * (1 + 1e-9))
        for slices, weight in parts.items():
            for first, last in slices:
                behind[max(first - start, 0) : max(last - start, 0)] += weight * (1 + 1e-9)
        return np.minimum(low * behind, low), np.maximum(high * behind, high)


def most_bytes(
    specs: Sequence[SectionSpec], codecs: Sequence[str], *, extras: Sequence[str] = (MANDATORY, SUMS)
) -> int:
    """The most bytes that an update of these sections can have, whatever its values are.

    codecs, extras: any of which each slice of the layout, and each extra vector, may use.
    """
    return UpdateLimits.max_header_bytes + sum(
        max(parse(name).max_bytes(spec.shape) for name in (extras if spec.is_extra else codecs)) for spec in specs
    )


class EncodedUpdate(NamedTuple):
    """An update's bytes, and the codecs' state to keep if it counts, by the names of the client state."""

    data: bytes
    state: CodecState


def encode_update(
    *,
    task: str,
    plan: str,
    base: str,
    weight: int,
    steps: int,
    specs: Sequence[SectionSpec],
    sections: Mapping[str, npt.NDArray[Any]],
    codecs: Mapping[str, str] | None = None,
    state: CodecState = NO_STATE,
    round: int = 0,
    kind: PayloadKind = "update",
    clients: int = 1,
    slices: Mapping[str, tuple[Slice, ...]] = _WHOLE,
    coverage: Mapping[str, Mapping[tuple[Slice, ...], int]] = _NO_PARTS,
) -> EncodedUpdate:
    """The bytes of an update, and the state of its codecs after it.

    task, plan, base: the ids of task and plan, and the SHA-256 of the model version trained from.
    weight, steps: examples that count (whole, ≥ 0), and local steps done.
    specs, sections: the plan's sections, in order, and one flat vector for each.
    codecs: section → codec; a section not named uses float32, or float64 when its vector is float64.
    state: the client state, of which the codecs read the names that begin with ``codec/``.
    round: this one's number, from which it follows how many the client was not part of, so that kept errors fade.
    kind, clients: see UpdateHeader.
    slices, coverage: of sections that are covered in part, see SectionEntry; their vectors hold that part. Where a
        codec keeps errors from round to round, a part travels as float32: what is kept is of whole sections.
    Raises errors.UpdateRefused.
    """
    payloads: dict[str, npt.NDArray[Any]] = {}
    entries: list[SectionEntry] = []
    after: dict[str, npt.NDArray[np.float32]] = {}
    last = state.get(_LAST_ROUND)
    state = state if last is None else faded(state, round - int(last[0]) - 1)
    extra = set(sections) - {spec.name for spec in specs}
    if extra:
        raise refused("unknown_section", f"The plan names no section {min(extra)[:64]!r}")
    for whole in specs:
        spec = whole
        if spec.name not in sections:
            raise refused("missing_section", f"Section {spec.name!r} is absent")
        vector, part = sections[spec.name], slices.get(spec.name, ())
        if part:
            spec = spec.part(part)
        sums = spec.is_extra and vector.dtype == np.float64
        default = SUMS if sums or kind == "accumulator" else MANDATORY
        name = (codecs or {}).get(spec.name, default)
        codec = _codec(name, spec, None, kind)
        alone = bool(part) and codec.stateful
        if alone:
            name, codec = default, _codec(default, spec, None, kind)
        prefix = f"{CODEC_STATE}{spec.name}/"
        before = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
        keys = Keys.of(task=task, plan=plan, base=base, section=spec.name)
        try:
            payload, kept = codec.encode(vector, keys, spec.shape, before)
        except errors.UpdateRefused as error:
            raise errors.UpdateRefused(
                f"Section {spec.name!r}: {error.message}", hint=error.hint, code=error.reason
            ) from None
        payloads[spec.name] = np.frombuffer(payload, np.uint8)
        after.update({prefix + key: value for key, value in (before if alone else kept).items()})
        parts = dict(sorted(coverage.get(spec.name, {}).items()))
        entries.append(SectionEntry(spec.name, name, whole.length, part, parts))
    check_room(entries)
    if after:
        after[_LAST_ROUND] = np.array([round], np.float32)
    header = UpdateHeader(
        task=task, plan=plan, base=base, weight=weight, steps=steps, sections=tuple(entries), kind=kind, clients=clients
    )
    return EncodedUpdate(
        encode_tensors(payloads, {METADATA_KEY: canonical_json(to_json(header)).decode("utf-8")}), after
    )


def of_plan(state: CodecState) -> CodecState:
    """The part of a client state that is the plan's own, without the codecs'."""
    return {name: value for name, value in state.items() if not name.startswith(CODEC_STATE)}


def write_update(path: Path, data: bytes) -> None:
    """Store an encoded update durably (see files.write_durably)."""
    write_durably(path, data)


def read_update(
    source: bytes | Path,
    specs: Sequence[SectionSpec],
    *,
    task: str | None = None,
    plan: str | None = None,
    base: str | None = None,
    limits: UpdateLimits | None = None,
) -> Update:
    """Check an update against the plan's sections and, where given, the task, plan and base it must name.

    Guarantees: allocates only for the header; a returned update has exactly the sections of `specs`, each with an
    allowed codec and a payload whose size that codec can have. Values are not looked at: call `check_finite`. Raises
    errors.UpdateRefused with a `reason` of `REFUSALS`.
    """
    bounds = limits or UpdateLimits()
    file = _open(source, bounds)
    header = _header(file)
    for code, expected, got in (("task", task, header.task), ("plan", plan, header.plan), ("base", base, header.base)):
        _require_named(code, expected, got)
    if header.kind not in bounds.kinds:
        raise refused("wrong_kind", f"This is an {header.kind}; expected an {' or '.join(sorted(bounds.kinds))}")
    fewest = bounds.min_clients if header.kind == "accumulator" else 1
    if not fewest <= header.clients <= bounds.max_clients:
        allowed = f"{fewest} to {bounds.max_clients} are allowed"
        raise refused("bad_clients", f"It is of {header.clients} clients; {allowed}")
    weight, steps = bounds.max_weight * header.clients, bounds.max_steps * header.clients
    if not 0 <= header.weight <= weight:
        raise refused("bad_weight", f"The weight is {header.weight}; it must be from 0 to {weight}")
    if not 0 <= header.steps <= steps:
        raise refused("bad_steps", f"The steps are {header.steps}; they must be from 0 to {steps}")
    by_name = {spec.name: spec for spec in specs}
    _check_names(by_name, header, file)
    for entry in header.sections:
        check_coverage(by_name[entry.name], entry, header)
        if entry.slices and entry.length == by_name[entry.name].length:
            by_name[entry.name] = by_name[entry.name].part(entry.slices)
        _check_section(by_name[entry.name], entry, file, bounds, header.kind)
    return Update(header, by_name, file)


def _require_named(code: str, expected: str | None, got: str) -> None:
    if expected is not None and got != expected:
        raise refused(f"wrong_{code}", f"The update names {code} {got!r}; expected {expected!r}")


def _open(source: bytes | Path, limits: UpdateLimits) -> TensorFile:
    bounds = TensorLimits(
        max_bytes=limits.max_bytes, max_header_bytes=limits.max_header_bytes, max_tensors=256, dtypes=frozenset({"U8"})
    )
    try:
        return open_tensors(source, bounds)
    except errors.TensorFileError as error:
        code = {"too_large": "too_large", "truncated": "truncated"}.get(error.reason, "wrong_format")
        raise errors.UpdateRefused(f"The update is not a valid tensor file: {error.message}", code=code) from None


def _header(file: TensorFile) -> UpdateHeader:
    text = file.metadata.get(METADATA_KEY)
    if text is None:
        raise refused("wrong_format", f"The file's metadata has no {METADATA_KEY!r} entry")
    try:
        value = parse_json(text.encode("utf-8", "surrogatepass"))
    except errors.InputError as error:
        raise refused("wrong_format", f"The update's header is unreadable: {error.message.rstrip('.')}") from None
    return from_json(UpdateHeader, value, refusal=errors.UpdateRefused, code="wrong_format")


def _check_names(specs: Mapping[str, SectionSpec], header: UpdateHeader, file: TensorFile) -> None:
    named = [entry.name for entry in header.sections]
    if len(set(named)) != len(named) or set(named) != set(file.tensors):
        raise refused("wrong_format", "The header's sections are not the file's tensors, each once")
    for name in named:
        if name not in specs:
            raise refused("unknown_section", f"The plan names no section {name[:64]!r}")
    for name in specs:
        if name not in file.tensors:
            raise refused("missing_section", f"Section {name!r} is absent")


def _check_section(
    spec: SectionSpec, entry: SectionEntry, file: TensorFile, limits: UpdateLimits, kind: PayloadKind
) -> None:
    codec = _codec(entry.codec, spec, limits.codecs, kind)
    info = file.tensors[spec.name]
    size = info.stop - info.start
    if len(info.shape) != 1:
        raise refused("wrong_format", f"Section {spec.name!r} must be a flat U8 tensor, not {list(info.shape)}")
    least, most = codec.min_bytes(spec.shape), codec.max_bytes(spec.shape)
    if size < least:
        raise refused("truncated", f"Section {spec.name!r} has {size} bytes; {codec.name} needs {least}")
    if size > most:
        raise refused("too_large", f"Section {spec.name!r} has {size} bytes; {codec.name} has at most {most}")


def _codec(name: str, spec: SectionSpec, allowed: frozenset[str] | None, kind: PayloadKind) -> Codec:
    if kind == "accumulator":
        fits = name == SUMS
    elif name in EXTRA_ONLY:
        fits = spec.is_extra
    else:
        fits = name == MANDATORY or allowed is None or name in allowed
    try:
        if fits:
            return parse(name)
    except errors.InputError:
        pass
    raise refused("unknown_codec", f"Section {spec.name!r} uses the codec {name[:64]!r}, which is not allowed there")


__all__ = [
    "CHUNK",
    "FORMAT",
    "CODEC_STATE",
    "METADATA_KEY",
    "REFUSALS",
    "EncodedUpdate",
    "SectionEntry",
    "Update",
    "UpdateHeader",
    "UpdateLimits",
    "encode_update",
    "of_plan",
    "read_update",
    "write_update",
]
