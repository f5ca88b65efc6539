"""Every way in which a request or a start-up can fail, named after the situation.

Knows nothing of gRPC: `server/status.py` is the only place that maps these to wire codes.

    SpecdError
    |-- RequestRefused          before anything was sent; the caller can mend or retry it
    |   |-- InvalidField            a field is missing, contradictory or out of range
    |   |   `-- ContextLengthExceeded
    |   |-- UnsupportedField        a field whose feature does not exist yet
    |   |-- UnknownName             no such model or drafter
    |   |-- DuplicateRequest        the id belongs to a live request
    |   |-- QueueFull               the waiting queue is at its limit
    |   |-- TooMuchText             more text waits to become tokens than is held
    |   |-- TooManyStructures       as many structures are made or alive as are held
    |   |-- TooManyWatchers         WatchServerInfo is watched by as many as it takes
    |   |-- DeadlineTooShort        the caller's deadline is far too short for the prompt
    |   |-- WrongState              an admin call that this daemon's settings forbid
    |   `-- NotServing              warming up or draining
    |-- RequestFailed           after admission; the stream ends with a status
    |   |-- OutOfPages              alone in the daemon and still too long for the KV pool
    |   |-- AnswerTooLarge          it fits no message, and was to come in one
    |   |-- StructureFailed         nothing can follow in its structure, or it is too complex
    |   |-- NonFiniteLogits         the model produced NaN or infinity for this row
    |   `-- StepFailed              the step that held this request raised
    |-- DeviceLost              the device computes nothing any more; the daemon ends
    `-- StartFailed             the daemon or a command cannot start
        |-- ModelFileError          missing, corrupt, truncated or unsupported model file
        |-- PullFailed              a download or its checksum failed
        |-- DrafterNotLoadable      a --drafter that cannot be resolved
        `-- AddressUnavailable      the listen address is taken or illegal
"""

from __future__ import annotations


class SpecdError(Exception):
    """Root of everything that specd raises on purpose."""


class RequestRefused(SpecdError):
    """A request that was not admitted; nothing of it has run."""


class InvalidField(RequestRefused):
    """A field that is missing, contradictory or out of range.

    `field` is the path in the wire message, for instance `sampling.temperature`.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class ContextLengthExceeded(InvalidField):
    """A prompt that leaves no room for one new token."""

    def __init__(self, num_prompt_tokens: int, limit: int, *, at_least: bool = False) -> None:
        about = "at least " if at_least else ""
        super().__init__(
            "input",
            f"the prompt has {about}{num_prompt_tokens} tokens; the model takes at most "
            f"{limit - 1} (context length {limit}, less one new token)",
        )
        self.num_prompt_tokens = num_prompt_tokens
        self.limit = limit


class UnsupportedField(RequestRefused):
    """A field whose feature this version does not have. It is refused, never ignored."""

    def __init__(self, field: str) -> None:
        super().__init__(f"{field}: not supported by this version of specd")
        self.field = field


class UnknownName(RequestRefused):
    """A model or drafter that this daemon does not serve."""

    def __init__(self, kind: str, name: str, known: list[str]) -> None:
        served = ", ".join(known) if known else "none"
        super().__init__(f"unknown {kind} {name!r}; this daemon has: {served}")
        self.kind = kind
        self.name = name


class DuplicateRequest(RequestRefused):
    """A request id that belongs to a request which is still alive."""

    def __init__(self, request_id: str) -> None:
        super().__init__(f"request id {request_id!r} is in use by a live request")
        self.request_id = request_id


class QueueFull(RequestRefused):
    """The bounded waiting queue is at its limit."""

    def __init__(self, limit: int, retry_after_s: float) -> None:
        super().__init__(f"the waiting queue is full ({limit} requests); try again later")
        self.limit = limit
        self.retry_after_s = retry_after_s


class TooMuchText(RequestRefused):
    """More text waits to become tokens, or tokens text, than the daemon holds."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(
            f"more than {limit_bytes} bytes of text wait to be worked on; try again later"
        )
        self.limit = limit_bytes


class TooManyStructures(RequestRefused):
    """As many structures are made or alive as the daemon holds."""

    def __init__(self) -> None:
        super().__init__("the daemon holds as many structures as it can; try again later")


class TooManyWatchers(RequestRefused):
    """So many follow the daemon's numbers already that one more would slow streams."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} calls watch the server's information already")
        self.limit = limit


class DeadlineTooShort(RequestRefused):
    """A deadline that is far too short for the prompt, at the best speed seen so far."""

    def __init__(self, time_left_s: float, needed_s: float) -> None:
        super().__init__(
            f"the call has {max(time_left_s, 0):.3f} s left and the prompt alone takes "
            f"{needed_s:.3f} s"
        )
        self.time_left_s = time_left_s
        self.needed_s = needed_s


class WrongState(RequestRefused):
    """An admin call that cannot be done in this daemon's state."""


class NotServing(RequestRefused):
    """The daemon is warming up, draining, or has lost its device."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"not serving: {reason}")
        self.reason = reason


class RequestFailed(SpecdError):
    """An admitted request that cannot be finished; its stream ends with a status."""


class OutOfPages(RequestFailed):
    """A request that is alone in the daemon and still does not fit the KV pool."""

    def __init__(self, num_tokens: int, capacity: int) -> None:
        super().__init__(
            f"the request needs KV memory for {num_tokens} tokens and the pool holds {capacity}; "
            "start the daemon with a larger --kv-memory or ask for fewer tokens"
        )


class AnswerTooLarge(RequestFailed):
    """An answer that was to come as one message and is larger than messages are."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(
            f"the answer has more than {max_bytes} bytes, too many for one message; use "
            "StreamGenerate or ask for fewer tokens"
        )


class StructureFailed(RequestFailed):
    """A form that cannot be completed: nothing may follow, or it has grown too complex."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"the structure cannot be followed any further: {problem}")


class NonFiniteLogits(RequestFailed):
    """The model produced NaN or infinite logits for a position of this request."""

    def __init__(self) -> None:
        super().__init__("the model produced non-finite logits for this request")


class StepFailed(RequestFailed):
    """The step that held this request raised; the cause is in the daemon's log."""

    def __init__(self) -> None:
        super().__init__("the step that computed this request failed; see the daemon's log")


class DeviceLost(SpecdError):
    """The device computes nothing any more. A restart may help, waiting does not."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the device is lost: {reason}")


class StartFailed(SpecdError):
    """A daemon or command that cannot start; the message says what to do."""


class ModelFileError(StartFailed):
    """A model file that is missing, corrupt, truncated or not supported."""


class PullFailed(StartFailed):
    """A model download that failed, or whose checksum is wrong."""


class DrafterNotLoadable(StartFailed):
    """A --drafter that names no built-in kind and cannot be imported."""


class AddressUnavailable(StartFailed):
    """A listen address that is taken, malformed or not permitted."""
