"""Requests of ModelService -> domain. The rest of `convert.py`, which has the shared rules.

Invariant: as there, whatever a caller sets is in the result or refused by name.
"""

from __future__ import annotations

from specd_client.v1 import model_pb2

from specd.errors import InvalidField
from specd.server.convert import Limits
from specd.server.fields import seconds_from, token_ids_from, value_or

MAX_DETOKENIZED_IDS = 131_072
# A message may have 4 MiB.
MAX_TEXT_BYTES = 4_000_000
DEFAULT_INTERVAL_S = 1.0
MIN_INTERVAL_S = 0.1
MAX_INTERVAL_S = 3600.0


def detokenized_ids_from(
    request: model_pb2.DetokenizeRequest, *, limits: Limits
) -> tuple[int, ...]:
    """Returns the ids to turn into text, maybe none. Raises InvalidField."""
    if len(request.token_ids) > MAX_DETOKENIZED_IDS:
        raise InvalidField("token_ids", f"more than {MAX_DETOKENIZED_IDS}")
    return token_ids_from("token_ids", request.token_ids, limits.vocab_size)


def check_fits(text: str) -> None:
    """Raises InvalidField for a text that no message holds.

    gRPC would send nothing, and say so in a status that is none of ours.
    """
    if len(text.encode()) > MAX_TEXT_BYTES:
        raise InvalidField("token_ids", f"their text has more than {MAX_TEXT_BYTES} bytes")


def skip_special_tokens_from(request: model_pb2.DetokenizeRequest) -> bool:
    """Returns whether special tokens are left out of the text."""
    return value_or(request, "skip_special_tokens", True)


def interval_s_from(request: model_pb2.WatchServerInfoRequest) -> float:
    """Returns the seconds between two reports. Raises InvalidField."""
    if not request.HasField("interval"):
        return DEFAULT_INTERVAL_S
    return seconds_from("interval", request.interval, low=MIN_INTERVAL_S, high=MAX_INTERVAL_S)
