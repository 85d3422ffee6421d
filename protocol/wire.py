"""The ground that messages stand on: three kinds of message, the field types they share, and how one is read.

- `Request`: what the server reads. Unknown fields are refused: a typing error must not be ignored silently.
- `Response`: what a client reads. Unknown fields are ignored, so a newer server can say more.
- `Signed`: what travels under a signature. Unknown fields are kept, so that the bytes that were signed can be made
  again.

Numbers are strict: no text is taken for a number, no fraction for a whole number, and NaN and infinity are refused.
"""

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from coterie import errors
from coterie.protocol import ids
from coterie.protocol.canonical import LARGEST_INTEGER, parse_json
from coterie.protocol.conversion import refused
from coterie.protocol.signing import PUBLIC_PATTERN, SIGNATURE_PATTERN

WEEK_MS = 7 * 24 * 3600 * 1000
LARGEST_BLOB = 1 << 36


class Request(BaseModel):
    """A message that the server reads: unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Response(BaseModel):
    """A message that a client reads: unknown fields are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class Signed(BaseModel):
    """A message, or a part of one, that travels under a signature: unknown fields are kept."""

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)


Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
PublicKey = Annotated[str, StringConstraints(pattern=PUBLIC_PATTERN)]
Signature = Annotated[str, StringConstraints(pattern=SIGNATURE_PATTERN)]
DeviceId = Annotated[str, StringConstraints(pattern=ids.pattern(ids.DEVICE))]
TaskId = Annotated[str, StringConstraints(pattern=ids.pattern(ids.TASK))]
ExperimentId = Annotated[str, StringConstraints(pattern=ids.pattern(ids.EXPERIMENT))]
SessionId = Annotated[str, StringConstraints(pattern=ids.pattern(ids.SESSION))]
PartyId = Annotated[str, StringConstraints(pattern=ids.pattern(ids.PARTY))]
TokenId = Annotated[str, StringConstraints(pattern=ids.pattern(ids.TOKEN))]
Slug = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
"""A population's name: safe in paths and addresses."""
DISPLAYABLE = r"^[^\x00-\x1f\x7f]+$"
DisplayName = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=DISPLAYABLE)]
"""A name for people: no control characters."""
SessionWord = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,31}$")]
"""The name of a role or of a stage of a session."""
Identifier = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.:/+-]+$")]
"""A machine's word: a codec, a metric, a hyper-parameter, a phase, an error code."""
Detail = Annotated[str, StringConstraints(max_length=2000)]
Title = Annotated[str, StringConstraints(max_length=200)]
"""A short text that is only told, such as a name that the coordinator put together."""
Secret = Annotated[str, StringConstraints(max_length=256)]
"""A token's text, which is its secret."""
Nonce = Annotated[str, StringConstraints(min_length=16, max_length=256, pattern=r"^[A-Za-z0-9_.=+/-]+$")]
Whole = Annotated[int, Field(strict=True, ge=0, le=LARGEST_INTEGER)]
Positive = Annotated[int, Field(strict=True, ge=1, le=LARGEST_INTEGER)]
ClassId = Annotated[int, Field(strict=True, ge=-LARGEST_INTEGER, le=LARGEST_INTEGER)]
FiniteNumber = Annotated[float, Field(strict=True, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
Proportion = Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)]
"""A part of a whole, or a probability."""
Milliseconds = Annotated[int, Field(strict=True, ge=0, le=WEEK_MS)]
Seconds = Annotated[float, Field(strict=True, gt=0, le=WEEK_MS / 1000, allow_inf_nan=False)]
Size = Annotated[int, Field(strict=True, ge=0, le=LARGEST_BLOB)]
ProtocolVersion = Annotated[int, Field(strict=True, ge=1, le=1000)]


class BlobRef(Signed):
    """An immutable blob by its content: SHA-256 and size in bytes."""

    sha256: Sha256
    size: Size


AnyMessage = TypeVar("AnyMessage", bound=BaseModel)


def read_message(kind: type[AnyMessage], data: bytes | dict[str, Any], *, limit: int = 1 << 20) -> AnyMessage:
    """A message from JSON bytes or values.

    Raises errors.InputError (``json_invalid``, or ``message_invalid`` with ``errors=[{"pointer", "detail"}]`` in its
    details) instead of pydantic's own exception, so that a caller needs one kind of handler.
    """
    value = parse_json(data, limit=limit) if isinstance(data, bytes) else data
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise message_error(kind, error) from None


def message_error(kind: type[BaseModel], error: ValidationError) -> errors.InputError:
    """pydantic's exception as coterie says it: ``message_invalid`` with the first fault in words and all in details."""
    return refused(kind.__name__, kind.model_fields, error, errors.InputError, "message_invalid")
