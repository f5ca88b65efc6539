"""What callers of ModelService may send."""

from __future__ import annotations

import re

import pytest
from specd_client.v1 import model_pb2, types_pb2

from specd import errors
from specd.server import convert, convert_model
from specd.text.prompt import TextPrompt
from tests.support.converting import LIMITS


def test_tokenize_reads_a_prompt_as_generation_does() -> None:
    request = model_pb2.TokenizeRequest(input=types_pb2.Input(text="Hi"))
    assert convert.prompt_from(request, limits=LIMITS) == TextPrompt("Hi")
    assert convert.model_from(request, limits=LIMITS) == "tiny"


def test_detokenize_takes_ids_of_the_vocabulary_alone() -> None:
    request = model_pb2.DetokenizeRequest(token_ids=[3, 99])
    assert convert_model.detokenized_ids_from(request, limits=LIMITS) == (3, 99)
    request.token_ids.append(100)
    with pytest.raises(errors.InvalidField, match=re.escape("token_ids[2]")):
        convert_model.detokenized_ids_from(request, limits=LIMITS)


def test_detokenize_skips_special_tokens_unless_told_otherwise() -> None:
    request = model_pb2.DetokenizeRequest()
    assert convert_model.skip_special_tokens_from(request)
    request.skip_special_tokens = False
    assert not convert_model.skip_special_tokens_from(request)


def test_a_watch_reports_every_second_unless_told_otherwise() -> None:
    request = model_pb2.WatchServerInfoRequest()
    assert convert_model.interval_s_from(request) == 1.0
    request.interval.FromMilliseconds(100)
    assert convert_model.interval_s_from(request) == 0.1


@pytest.mark.parametrize("milliseconds", [-1, 0, 99, 3_600_001])
def test_an_interval_out_of_range_is_refused(milliseconds: int) -> None:
    request = model_pb2.WatchServerInfoRequest()
    request.interval.FromMilliseconds(milliseconds)
    with pytest.raises(errors.InvalidField, match="interval"):
        convert_model.interval_s_from(request)


def test_a_text_that_no_message_holds_is_refused() -> None:
    convert_model.check_fits("\u00e4" * 2_000_000)
    with pytest.raises(errors.InvalidField, match="token_ids"):
        convert_model.check_fits("\u00e4" * 2_000_001)
