"""The error tree of Keyglance, used by the server to say what went wrong and by the client to raise the same error again.

Two branches: a `RequestError` is about what was asked (asking again without a change gives the same answer), a
`ServiceError` is about the service (the same call may succeed later, or elsewhere). Each class has one `reason`, the word
that travels in `google.rpc.ErrorInfo.reason`, and one gRPC status; the table `ERRORS` is the only place that joins them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import grpc

#: `google.rpc.ErrorInfo.domain` of every error that Keyglance sends.
ERROR_DOMAIN = "keyglance"


class KeyglanceError(Exception):
    """What went wrong, in one line for a person, with the facts beside it for a program.

    `message` says what was wrong, with the value, and what is allowed. `facts` are short strings that travel in
    `google.rpc.ErrorInfo.metadata`. `retry_after` is in seconds, set where asking again later makes sense.
    """

    reason: ClassVar[str] = "UNKNOWN"
    status: ClassVar[grpc.StatusCode] = grpc.StatusCode.UNKNOWN

    def __init__(self, message: str, *, facts: Mapping[str, str] | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.facts: dict[str, str] = dict(facts or {})
        self.retry_after = retry_after


class RequestError(KeyglanceError):
    """The request cannot be answered as it is; asking again without a change gives the same error."""

    status = grpc.StatusCode.INVALID_ARGUMENT


class ServiceError(KeyglanceError):
    """The service could not answer now; the same request may succeed later or elsewhere."""

    status = grpc.StatusCode.UNAVAILABLE


class EmptySource(RequestError):
    """The source has no bytes, or the request has no source."""

    reason = "EMPTY_SOURCE"


class NotAVideo(RequestError):
    """The bytes are no container that is read here (text, an image, a playlist, an unknown or broken container)."""

    reason = "NOT_A_VIDEO"


class NoVideoStream(RequestError):
    """A known container without moving pictures (audio only, cover art only)."""

    reason = "NO_VIDEO_STREAM"


class UnsupportedCodec(RequestError):
    """No decoder of this server reads the video stream's codec or its variant."""

    reason = "UNSUPPORTED_CODEC"


class Encrypted(RequestError):
    """The pictures are encrypted."""

    reason = "ENCRYPTED"


class TooLarge(RequestError):
    """A limit on bytes, pixels, seconds or samples is exceeded; `facts` has `what`, `value` and `limit`."""

    reason = "TOO_LARGE"

    @classmethod
    def over(cls, what: str, value: float, limit: float) -> TooLarge:
        """The error for `value` of `what` (`bytes`, `pixels`, `seconds`, `samples`, …) where `limit` is allowed."""
        shown, allowed = (f"{number:,}" if isinstance(number, int) else f"{number:,.6g}" for number in (value, limit))
        return cls(
            f"too many {what}: {shown}, at most {allowed} allowed",
            facts={"what": what, "value": shown.replace(",", ""), "limit": allowed.replace(",", "")},
        )


class BadPolicy(RequestError):
    """A field of the request is outside its range."""

    reason = "BAD_POLICY"


class UnknownModel(RequestError):
    """A model was asked for by a name that this server does not have; `facts['known']` lists those it has."""

    reason = "UNKNOWN_MODEL"


class CorruptVideo(RequestError):
    """Not one picture could be decoded."""

    reason = "CORRUPT_VIDEO"


class RangesNeeded(RequestError):
    """Bytes that the request did not carry are needed: `ranges` of (offset, size) in bytes, ascending, of the file."""

    reason = "RANGES_NEEDED"
    status = grpc.StatusCode.FAILED_PRECONDITION

    def __init__(
        self,
        message: str,
        *,
        ranges: Sequence[tuple[int, int]] = (),
        facts: Mapping[str, str] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message, facts=facts, retry_after=retry_after)
        self.ranges = tuple(ranges)


class UriNotAllowed(RequestError):
    """The URI's scheme or place is not allowed by the server's configuration."""

    reason = "URI_NOT_ALLOWED"
    status = grpc.StatusCode.PERMISSION_DENIED


class UriNotFound(RequestError):
    """There is nothing at the URI."""

    reason = "URI_NOT_FOUND"
    status = grpc.StatusCode.NOT_FOUND


class Unauthenticated(RequestError):
    """The call carries no credentials, or wrong ones."""

    reason = "UNAUTHENTICATED"
    status = grpc.StatusCode.UNAUTHENTICATED


class NotPermitted(RequestError):
    """The caller is known but may not do this."""

    reason = "NOT_PERMITTED"
    status = grpc.StatusCode.PERMISSION_DENIED


class Unimplemented(RequestError):
    """The server does not know the call: it is no Keyglance server, or one of another version."""

    reason = "UNIMPLEMENTED"
    status = grpc.StatusCode.UNIMPLEMENTED


class DeadlineExceeded(ServiceError):
    """The call's deadline passed before the answer was ready."""

    reason = "DEADLINE_EXCEEDED"
    status = grpc.StatusCode.DEADLINE_EXCEEDED


class Cancelled(ServiceError):
    """The caller cancelled the call."""

    reason = "CANCELLED"
    status = grpc.StatusCode.CANCELLED


class Overloaded(ServiceError):
    """The service has more work than it can finish in time; `retry_after` says when to come back."""

    reason = "OVERLOADED"
    status = grpc.StatusCode.RESOURCE_EXHAUSTED


class UriUnavailable(ServiceError):
    """The URI's server did not answer."""

    reason = "URI_UNAVAILABLE"


class ModelFailed(ServiceError):
    """A required model failed on this call's pictures."""

    reason = "MODEL_FAILED"
    status = grpc.StatusCode.INTERNAL


class InternalError(ServiceError):
    """A fault of the service itself; the trace id leads to its log."""

    reason = "INTERNAL"
    status = grpc.StatusCode.INTERNAL


class WorkerLost(ServiceError):
    """A worker process died or was ended (time or memory limit) while it worked for this call."""

    reason = "WORKER_LOST"


class GpuLost(ServiceError):
    """The GPU does not answer any more; the health service says NOT_SERVING."""

    reason = "GPU_LOST"


class Draining(ServiceError):
    """The server is shutting down and takes no new calls."""

    reason = "DRAINING"


class ServerUnreachable(ServiceError):
    """No server answers at the target, or the connection broke. Raised by the client; a server never sends it."""

    reason = "SERVER_UNREACHABLE"


def _leaves(cls: type[KeyglanceError]) -> list[type[KeyglanceError]]:
    subclasses = cls.__subclasses__()
    return [leaf for sub in subclasses for leaf in _leaves(sub)] if subclasses else [cls]


#: Every reason and its class; the class knows its status.
ERRORS: Mapping[str, type[KeyglanceError]] = {cls.reason: cls for cls in _leaves(KeyglanceError)}
