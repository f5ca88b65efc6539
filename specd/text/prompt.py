"""The three forms of a prompt. Made by `server/convert.py`, turned into tokens by `text/`.

Invariant: no prompt is empty, and token ids are below the vocabulary size.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Plain text. `add_special_tokens`: the tokenizer adds its own, for instance a first one."""

    text: str
    add_special_tokens: bool = True


@dataclass(frozen=True, slots=True)
class TokensPrompt:
    """Token ids, taken as they are."""

    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation. role: system, user, assistant or tool."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation for the chat template of the model file, which adds special tokens itself."""

    messages: tuple[ChatMessage, ...]


Prompt = TextPrompt | TokensPrompt | ChatPrompt
