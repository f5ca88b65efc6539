"""Requests for the tests of `server/convert.py`, and the limits that they are read with."""

from __future__ import annotations

from typing import Any

from specd_client.v1 import generation_pb2 as pb
from specd_client.v1 import types_pb2

from specd.engine.params import GenerationParams
from specd.server import convert

LIMITS = convert.Limits(
    vocab_size=100,
    context_length=16,
    drafters=("ngram", "suffix"),
    default_drafters=("ngram",),
    max_draft_tokens=8,
    models=("tiny", "other"),
    draw_seed=lambda: 7,
)
INF, NAN = float("inf"), float("nan")
Request = pb.StreamGenerateRequest


def text_request(**parts: Any) -> Request:
    """A request that is fine; `parts` are its other fields."""
    return Request(request_id="r", input=types_pb2.Input(text="Once"), **parts)


def params(request: Request) -> GenerationParams:
    """What its parameters become."""
    return convert.params_from(request, limits=LIMITS)


def call(request: Request) -> convert.GenerationCall:
    """What it becomes."""
    return convert.call_from(request, limits=LIMITS)
