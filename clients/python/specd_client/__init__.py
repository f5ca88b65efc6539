"""The client of specd. Needs grpcio and protobuf alone.

Everything a program calls is exported here; `specd_client.v1` holds the generated messages and
stubs, for what this package does not wrap.
"""

from specd_client.client import Client, Stream
from specd_client.errors import (
    CallCancelled,
    CallFailed,
    DeadlineExceeded,
    DuplicateRequest,
    FieldViolation,
    InternalError,
    InvalidRequest,
    NotAuthenticated,
    NotPermitted,
    NotReady,
    Overloaded,
    ProtocolError,
    SpecdClientError,
    UnknownName,
    Unsupported,
    WrongState,
)
from specd_client.events import (
    Completion,
    Delta,
    DrafterTally,
    Event,
    Finished,
    FinishReason,
    SequenceFinished,
    SpeculationStats,
    SpeculationStep,
    Started,
    Usage,
)
from specd_client.request import Options

__version__ = "0.1.0"

__all__ = [
    "CallCancelled",
    "CallFailed",
    "Client",
    "Completion",
    "DeadlineExceeded",
    "Delta",
    "DrafterTally",
    "DuplicateRequest",
    "Event",
    "FieldViolation",
    "FinishReason",
    "Finished",
    "InternalError",
    "InvalidRequest",
    "NotAuthenticated",
    "NotPermitted",
    "NotReady",
    "Options",
    "Overloaded",
    "ProtocolError",
    "SequenceFinished",
    "SpecdClientError",
    "SpeculationStats",
    "SpeculationStep",
    "Started",
    "Stream",
    "UnknownName",
    "Unsupported",
    "Usage",
    "WrongState",
]
