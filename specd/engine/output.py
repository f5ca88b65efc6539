"""From committed tokens to text, and the decision where a generation ends.

Looks at one token at a time, so that the end cannot depend on how tokens were grouped into accepted
runs. Order per token: EOS, stop token, stop string, then length; so a stop that arrives with the
last allowed token is reported as the stop. Of the first `min_new_tokens` nothing but length ends
it: end and stop tokens cannot be chosen there, and a stop string that one of them completes is
text. The token that ends a generation is part of its ids and counts; the text stops before the
matched string or token unless it was asked to be included.
"""

from __future__ import annotations

from dataclasses import dataclass

from specd.engine.events import FinishReason
from specd.engine.params import OutputParams, StopParams
from specd.text.detokenizer import Detokenizer
from specd.text.stopping import TextStops
from specd.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a sequence ended, and what matched."""

    reason: FinishReason
    matched_token_id: int | None = None
    matched_string: str | None = None


class Output:
    """The growing answer of one request."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: StopParams,
        output: OutputParams,
        *,
        context_left: int,
    ) -> None:
        """`context_left`: new tokens that fit the context, at least 1."""
        self._stop = stop
        self._eos_ids = frozenset[int]() if stop.ignore_eos else tokenizer.eos_ids
        self._detokenizer = Detokenizer(tokenizer, skip_special=output.skip_special_tokens)
        self._stops = TextStops(stop.stop_strings, include=stop.include_stop_string)
        self._limit, self._limit_reason = context_left, FinishReason.CONTEXT_LENGTH
        if stop.max_new_tokens is not None and stop.max_new_tokens <= context_left:
            self._limit, self._limit_reason = stop.max_new_tokens, FinishReason.MAX_TOKENS
        self._text: list[str] = []
        self.num_tokens = 0

    @property
    def tokens_left(self) -> int:
        """New tokens until the length limit."""
        return self._limit - self.num_tokens

    @property
    def num_endless(self) -> int:
        """How many of the next tokens cannot end the generation."""
        return max(0, self._stop.min_new_tokens - self.num_tokens)

    def ending_ids(self) -> tuple[int, ...]:
        """The ids that end a generation, in ascending order."""
        return tuple(sorted(self._eos_ids | self._stop.stop_token_ids))

    def push(self, token: int) -> Ending | None:
        """Add a token; returns the ending if it ends the generation."""
        self.num_tokens += 1
        ending = self._push_text(token)
        if ending is None and self.num_tokens == self._limit:
            ending = Ending(self._limit_reason)
        if ending is not None and ending.matched_string is None:
            self.flush()
        return ending

    def take_text(self) -> str:
        """Text that is final and was not taken before."""
        text = "".join(self._text)
        self._text.clear()
        return text

    def flush(self) -> None:
        """Release what was held back: half a character, or a possible start of a stop string."""
        self._text += [self._stops.flush(), self._detokenizer.flush()]

    def _push_text(self, token: int) -> Ending | None:
        reason = None
        if token in self._eos_ids:
            reason = FinishReason.EOS_TOKEN
        elif token in self._stop.stop_token_ids:
            reason = FinishReason.STOP_TOKEN
        if reason is not None:
            if self._stop.include_stop_string:
                # The end is decided: a stop string that this text completes decides nothing.
                self._text += [self._stops.flush(), self._detokenizer.push(token)]
            return Ending(reason, matched_token_id=token)
        counts = self.num_tokens > self._stop.min_new_tokens
        scan = self._stops.push(self._detokenizer.push(token), counts=counts)
        self._text.append(scan.text)
        if scan.matched is None:
            return None
        return Ending(FinishReason.STOP_STRING, matched_string=scan.matched)
