"""The one exception hierarchy of coterie.

    CoterieError
    ├── InputError                  yours: the caller can mend it
    │   ├── ConfigurationError      a setting, an option, a missing extra, a port in use
    │   ├── ArgumentValueError      an argument of the right kind with an impossible value
    │   ├── ArgumentTypeError       an argument of the wrong kind
    │   ├── TraceError              a model or loss that cannot become a graph
    │   │   ├── ShapeError          shapes that do not fit together
    │   │   └── DTypeError          dtypes that do not fit together
    │   ├── GraphRefused            an ONNX graph outside the portable, bounded subset
    │   ├── ExperimentError         an experiment that cannot or may not run
    │   ├── PlanRefused             a plan that fails its digests, signature or checks
    │   ├── DataError               data that does not fit the declared schema
    │   ├── TensorFileError         a tensor file that is malformed or over its limits
    │   ├── UpdateRefused           an update that may not enter an aggregate
    │   └── RequestRefused          a request that the coordinator does not accept
    │       ├── Unauthenticated     no credential, or one that does not verify
    │       ├── Forbidden           a credential that does not allow this
    │       ├── NotFound            nothing there by that name
    │       ├── Conflict            the state of the thing does not allow it now
    │       ├── Gone                it was there; its time is over
    │       ├── TooLarge            more bytes than are allowed here
    │       └── Unavailable         not now: starting, or closing
    ├── RemoteError                 theirs: what the other side answered
    │   └── Unreachable             the other side did not answer at all
    ├── PolicyRefused               the device's own policy says no to a task
    ├── SecureAggregationRefused    another party of secure aggregation violates the protocol
    ├── StorageError                the disk is full, or a file cannot be read or written
    ├── ProviderFailed              an execution provider failed in a run
    └── InternalError               ours: a bug in coterie; please report it

The docstring of a class is its default message. Every error carries a stable ``code``, the HTTP ``status`` that suits
it, and, where one is known, a ``hint`` that says what to do. ``str(error)`` is the message followed by the hint.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from inspect import cleandoc
from typing import Any, ClassVar

DOCUMENTATION = "docs/errors.md"


class CoterieError(Exception):
    """Something went wrong in coterie."""

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500

    def __init__(
        self, message: str | None = None, *, hint: str | None = None, code: str | None = None, **details: Any
    ) -> None:
        """Make an error.

        message: what went wrong, where and why; the class docstring when absent.
        hint: what to do about it.
        code: a finer code than the class's own.
        details: machine-readable facts (JSON values).
        """
        self.message = message or cleandoc(type(self).__doc__ or "").split("\n\n")[0]
        self.hint = hint
        self.details = details
        self.reason = code or type(self).code
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message} {self.hint}" if self.hint else self.message

    @property
    def doc(self) -> str:
        """Where this error is explained."""
        return f"{DOCUMENTATION}#{self.reason.replace('_', '-')}"


class InputError(CoterieError):
    """The input is not valid."""

    code = "input_invalid"
    status = 422


class ConfigurationError(InputError):
    """The configuration is not valid."""

    code = "configuration_invalid"
    status = 400


class ArgumentValueError(InputError, ValueError):
    """The argument has a value that it cannot have."""

    code = "argument_value"


class ArgumentTypeError(InputError, TypeError):
    """The argument is of the wrong kind."""

    code = "argument_type"


class TraceError(InputError):
    """This Python function cannot be turned into a graph."""

    code = "trace_failed"


class ShapeError(TraceError, ValueError, IndexError):  # as NumPy's AxisError is
    """The shapes do not fit together."""

    code = "shape_mismatch"


class DTypeError(TraceError):
    """The dtypes do not fit together."""

    code = "dtype_mismatch"


class GraphRefused(InputError):
    """The ONNX graph is outside the portable, bounded subset."""

    code = "graph_refused"


class ExperimentError(InputError):
    """The experiment cannot run as asked."""

    code = "experiment_invalid"


class PlanRefused(InputError):
    """The plan fails its checks."""

    code = "plan_refused"


class DataError(InputError):
    """The data does not fit the declared schema."""

    code = "data_invalid"


class TensorFileError(InputError):
    """The tensor file is malformed or exceeds its limits."""

    code = "tensor_file_invalid"


class UpdateRefused(InputError):
    """The update may not enter an aggregate."""

    code = "update_refused"


class RequestRefused(InputError):
    """The coordinator does not accept this request."""

    code = "request_refused"
    status = 400


class Unauthenticated(RequestRefused):
    """The request carries no credential that verifies."""

    code = "unauthenticated"
    status = 401


class Forbidden(RequestRefused):
    """The credential does not allow this."""

    code = "forbidden"
    status = 403


class NotFound(RequestRefused):
    """There is nothing by that name."""

    code = "not_found"
    status = 404


class Conflict(RequestRefused):
    """The state of the thing does not allow it now."""

    code = "conflict"
    status = 409


class Gone(RequestRefused):
    """The thing was there, but its time is over."""

    code = "gone"
    status = 410


class TooLarge(RequestRefused):
    """The body is larger than allowed."""

    code = "too_large"
    status = 413


class Unavailable(RequestRefused):
    """The coordinator cannot answer this now."""

    code = "unavailable"
    status = 503


class RemoteError(CoterieError):
    """The other side answered with an error."""

    code = "remote_error"
    status = 502


class Unreachable(RemoteError):
    """The other side did not answer."""

    code = "unreachable"
    status = 504


class PolicyRefused(CoterieError):
    """The device's own policy refuses this task."""

    code = "policy_refused"
    status = 403


class SecureAggregationRefused(CoterieError):
    """A message of secure aggregation violates the protocol, so this attempt is over for whoever reads it."""

    code = "secagg_refused"
    status = 422


class StorageError(CoterieError):
    """A file cannot be read or written."""

    code = "storage_failed"
    status = 507


class ProviderFailed(CoterieError):
    """An execution provider failed in a run of a graph that it had accepted."""

    code = "provider_failed"


class InternalError(CoterieError):
    """coterie broke one of its own promises; this is a bug, please report it."""

    code = "internal"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that somebody most likely meant, whatever its capitals and dashes; None where none is near."""
    folded = {_folded(each): each for each in known}
    found = get_close_matches(_folded(name), folded, n=1, cutoff=0.7)
    return folded[found[0]] if found else None


def _folded(name: str) -> str:
    return name.lower().replace("-", "_")
