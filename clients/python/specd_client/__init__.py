"""The client of specd. Needs grpcio and protobuf alone.

Everything a program calls is exported here, with the async client. `specd_client.sync` has `Client`
and `Stream` without asyncio; all other names serve both. `specd_client.v1` holds the generated
messages and stubs, for what this package does not wrap.
"""

from specd_client.client import Client, Stream
from specd_client.connection import tls_credentials
from specd_client.errors import (
    CallCancelled,
    CallFailed,
    CredentialsUnusable,
    DeadlineExceeded,
    DuplicateRequest,
    FieldViolation,
    InternalError,
    InvalidRequest,
    MessageTooLarge,
    NotAuthenticated,
    NotPermitted,
    NotReady,
    Overloaded,
    ProtocolError,
    Reason,
    SpecdClientError,
    UnknownName,
    Unsupported,
    WrongState,
)
from specd_client.events import (
    Alternative,
    Completion,
    Delta,
    DrafterTally,
    Event,
    Finished,
    FinishReason,
    GeneratedSequence,
    SequenceFinished,
    SpeculationStats,
    SpeculationStep,
    Started,
    TokenLogprob,
    Usage,
)
from specd_client.request import LogprobBasis, Options, PromptOptions

__version__ = "0.1.0"

__all__ = [
    "Alternative",
    "CallCancelled",
    "CallFailed",
    "Client",
    "Completion",
    "CredentialsUnusable",
    "DeadlineExceeded",
    "Delta",
    "DrafterTally",
    "DuplicateRequest",
    "Event",
    "FieldViolation",
    "FinishReason",
    "Finished",
    "GeneratedSequence",
    "InternalError",
    "InvalidRequest",
    "LogprobBasis",
    "MessageTooLarge",
    "NotAuthenticated",
    "NotPermitted",
    "NotReady",
    "Options",
    "Overloaded",
    "PromptOptions",
    "ProtocolError",
    "Reason",
    "SequenceFinished",
    "SpecdClientError",
    "SpeculationStats",
    "SpeculationStep",
    "Started",
    "Stream",
    "TokenLogprob",
    "UnknownName",
    "Unsupported",
    "Usage",
    "WrongState",
    "tls_credentials",
]
