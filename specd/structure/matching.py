"""Where one sequence is in its structure: what may come next, and what must.

Knows committed tokens and drafts; nothing of requests, steps or logits. A draft is tried on copies
of the matcher, which cost 2 us and are thrown away: the library's own rollback fails after an
error and where rules count tokens, and where rules name token ids the masks behind it are wrong.
Copies share a lexer, in which one that is driven too far can break the others. So where a
copy was used since the last good mask, an error of the matcher counts only if a fresh one, told the
committed tokens alone, has it too: what a request gets never depends on what was drafted. Without
copies an error is the grammar's own, and is not paid for twice.

Threads: the loop owns a `SequenceStructure`. Only `masks` hands it away, to a thread that computes
beside the forward pass. It comes back before the loop looks at it again: the device thread waits
for `Masks.result`, and the loop for the step. Where a step fails before that, its sequences are
closed, and `close` does not touch the matcher.
Invariant: `masks` for equal committed tokens and drafts are equal, whatever came in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor

import numpy as np
from llguidance import LLMatcher

from specd.engine.step_types import Masks, Words
from specd.structure.bridge import TokenizerBridge
from specd.structure.compiling import error_of, fill


class SequenceStructure:
    """The structure of one sequence.

    problem: why the last mask behind the committed tokens is empty, None if it is not.
    """

    def __init__(
        self,
        bridge: TokenizerBridge,
        matcher: LLMatcher,
        make_matcher: Callable[[], LLMatcher],
        *,
        threads: Executor,
        live: dict[str, SequenceStructure],
        on_close: Callable[[], None],
    ) -> None:
        """`live`: where it is found by its request id while it runs."""
        self.problem: str | None = None
        self._bridge = bridge
        self._matcher: LLMatcher | None = matcher  # None once it failed: another is made
        self._make_matcher = make_matcher
        self._was_tried = False  # a draft, since the last good mask
        self._threads = threads
        self._live = live
        self._request_id: str | None = None
        self._on_close: Callable[[], None] | None = on_close
        self._committed: list[int] = []

    def begin(self, request_id: str) -> None:
        """The sequence runs from now on."""
        self._request_id = request_id
        self._live[request_id] = self

    def legal_prefix(self, draft: Sequence[int]) -> tuple[int, ...]:
        """The tokens of a draft that the structure allows, up to the first that ends an answer.

        As the target's own token that one costs no step.
        """
        ends = self._bridge.end_ids
        length = next((place for place, token in enumerate(draft) if token in ends), len(draft))
        if length == 0 or self._matcher is None:
            return ()
        self._was_tried = True
        return tuple(draft[: self._matcher.validate_tokens(list(draft[:length]))])

    def forced(self, budget: int) -> list[int]:
        """At most `budget` tokens that come next for certain, then such as most likely do.

        Certain are those whose masks allow nothing else. The end of a forced text may be a part of
        a longer token, so there the model has a choice. In JSON by a model of 49,152 tokens 37 of
        38 such ends were as forced where they had two bytes or more, and 12 of 101 of one byte.
        """
        if self._matcher is None:
            return []
        self._was_tried = True
        trial = self._matcher.deep_copy()
        ids = trial.compute_ff_tokens()
        if len(ids) < budget:
            rest = trial.compute_ff_bytes().removeprefix(self._bridge.spelled(ids))
            ids += self._bridge.encode(rest.decode()) if _is_text(rest) else []
        return ids[:budget]

    def masks(self, draft: tuple[int, ...]) -> Masks:
        """Begin to compute what may follow the committed tokens, and each token of `draft`.

        The draft has to be a legal prefix.
        """
        return self._threads.submit(self._fill_all, draft)

    def commit(self, tokens: Sequence[int]) -> None:
        """Tokens were committed, and the sequence goes on."""
        self._committed.extend(tokens)
        if self._matcher is not None and not self._matcher.consume_tokens(list(tokens)):
            self._matcher = None

    def close(self) -> None:
        """The sequence has ended. Closing twice is harmless."""
        self._matcher = None
        if self._request_id is not None:
            self._live.pop(self._request_id, None)
        if self._on_close is not None:
            self._on_close()
            self._on_close = None

    def _fill_all(self, draft: tuple[int, ...]) -> Words:
        masks = np.zeros((len(draft) + 1, self._bridge.num_words), np.uint32)
        matcher, self.problem = self._fill_first(masks[0])
        self._matcher = matcher
        if self.problem is None:
            self._was_tried = bool(draft)
        if self.problem is None and draft:
            _fill_behind(matcher.deep_copy(), draft, masks)
        return masks

    def _fill_first(self, mask: Words) -> tuple[LLMatcher, str | None]:
        """The mask behind the committed tokens; returns the matcher that knows it, or a problem."""
        matcher = self._matcher
        if matcher is not None:
            problem = fill(matcher, mask)
            if problem is None or not self._was_tried:
                return matcher, problem
        matcher = self._make_matcher()
        if not matcher.consume_tokens(self._committed):
            return matcher, error_of(matcher)
        return matcher, fill(matcher, mask)


def _is_text(data: bytes) -> bool:
    """Whether it is UTF-8 of two bytes or more; what a grammar says of token ids is none."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return len(data) > 1


def _fill_behind(trial: LLMatcher, draft: tuple[int, ...], masks: Words) -> None:
    """Positions that cannot be reached keep an empty mask: nothing is accepted there."""
    for token, mask in zip(draft, masks[1:], strict=True):
        if not trial.consume_token(token) or fill(trial, mask):
            return
