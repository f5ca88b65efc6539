"""Renders a conversation into prompt text with the chat template of the model.

Knows Jinja as chat templates use it. A template is foreign code: it runs sandboxed, and its
loops, macro calls, repetitions and output are counted against limits, so that an endless one
cannot hang the daemon. Left open, for a file that means harm: one filter with an absurd argument
(`center(10**9)`), and text that a loop doubles with `~`.

Invariant: the text holds the special tokens itself; it is encoded with `parse_special=True` and
`add_special=False`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from specd.errors import InvalidField
from specd.text.folder import Folder
from specd.text.prompt import ChatMessage
from specd.text.tokenizer import Source, Tokenizer

FIELD = "input.chat"
# Templates of known models have up to 15,000 characters.
MAX_TEMPLATE_CHARACTERS = 1 << 17
# Loop rounds and macro calls of one rendering; 200,000 take about 0.1 s.
MAX_ROUNDS = 200_000
MAX_OUTPUT_CHARACTERS = 1 << 24
MAX_REPETITION = 1 << 20

_ROUND = "_count_round"


class ChatTemplate:
    """The compiled template of one model. A broken or missing one fails only chat requests."""

    def __init__(
        self, source: str | None, *, bos_token: str = "", eos_token: str = "", problem: str = ""
    ) -> None:
        """`problem`: why there is no `source`, where there is more to say than that."""
        self._special = {"bos_token": bos_token, "eos_token": eos_token}
        self._problem = ""
        if source is None:
            problem = problem or "the model file has no chat template"
            self._problem = f"{problem}; send text or tokens instead"
            return
        try:
            self._template = _ENVIRONMENT.from_string(_counted(source))
        # A template becomes Python code, and Python refuses more than Jinja does: a `break` outside
        # of a loop is a SyntaxError.
        except Exception as error:
            self._problem = f"the model's chat template is not usable: {error}"

    @staticmethod
    def from_source(source: Source, tokenizer: Tokenizer) -> ChatTemplate:
        """The template of an opened model, whose special texts are those of `tokenizer`.

        Raises: ModelFileError where a folder has a file that cannot be read.
        """
        if source.path.is_dir():
            return ChatTemplate._of(*Folder(source.path).chat_template(), tokenizer)
        return ChatTemplate.from_gguf(source.metadata, tokenizer)

    @staticmethod
    def from_gguf(metadata: Mapping[str, object], tokenizer: Tokenizer) -> ChatTemplate:
        found = metadata.get("tokenizer.chat_template")
        if found is None or isinstance(found, str):
            return ChatTemplate._of(found, "", tokenizer)
        return ChatTemplate._of(None, "the model file's chat template is no text", tokenizer)

    @staticmethod
    def _of(source: str | None, problem: str, tokenizer: Tokenizer) -> ChatTemplate:
        return ChatTemplate(
            source,
            bos_token=tokenizer.token_text(tokenizer.bos_id),
            eos_token=tokenizer.token_text(tokenizer.eos_id),
            problem=problem,
        )

    @property
    def usable(self) -> bool:
        """Whether chat prompts can be served."""
        return not self._problem

    def render(self, messages: Sequence[ChatMessage]) -> str:
        """The prompt text up to where the assistant's answer begins.

        Raises: InvalidField where there is no usable template or it refuses the messages.
        """
        if self._problem:
            raise InvalidField(FIELD, self._problem)
        values = {
            "messages": [{"role": m.role, "content": m.content} for m in messages],
            "tools": None,
            "documents": None,
            "add_generation_prompt": True,
            _ROUND: _round_counter(),
            **self._special,
        }
        try:
            return _bounded_join(self._template.generate(values))
        # A template can raise anything that an expression can: TypeError, ZeroDivisionError, ...
        except Exception as error:
            reason = str(error) or type(error).__name__
            raise InvalidField(FIELD, f"the model's chat template refused it: {reason}") from error


def _bounded_join(pieces: Any) -> str:
    found: list[str] = []
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > MAX_OUTPUT_CHARACTERS:
            raise TemplateError(f"it writes more than {MAX_OUTPUT_CHARACTERS} characters")
        found.append(piece)
    return "".join(found)


def _round_counter() -> Callable[[], str]:
    rounds = 0

    def count() -> str:
        nonlocal rounds
        rounds += 1
        if rounds > MAX_ROUNDS:
            raise TemplateError(f"it takes more than {MAX_ROUNDS} rounds of its loops")
        return ""

    return count


def _counted(source: str) -> nodes.Template:
    """Parse `source` and put a call of the round counter into each loop and macro body."""
    if len(source) > MAX_TEMPLATE_CHARACTERS:
        raise ValueError(f"it has more than {MAX_TEMPLATE_CHARACTERS} characters")
    tree = _ENVIRONMENT.parse(source)
    bodies = [node.body for node in tree.find_all(nodes.For)]
    bodies += [node.body for node in tree.find_all(nodes.Macro)]
    bodies += [node.body for node in tree.find_all(nodes.CallBlock)]
    for body in bodies:
        call = nodes.Call(nodes.Name(_ROUND, "load"), [], [], None, None)
        body.insert(0, nodes.Output([call]))
    tree.set_environment(_ENVIRONMENT)
    return tree


class _GenerationBlock(Extension):
    """`{% generation %}` marks what trainers learn from; here it is its own body."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        sizes = [_repetition(left), _repetition(right)]
        if operator == "**" or isinstance(left, str | list | tuple) or isinstance(right, str):
            if max(sizes) > MAX_REPETITION or sizes[0] * sizes[1] > MAX_REPETITION:
                raise TemplateError(f"{operator} makes a value larger than {MAX_REPETITION}")
        return super().call_binop(context, operator, left, right)


def _repetition(value: Any) -> int:
    if isinstance(value, str | list | tuple):
        return len(value)
    return abs(int(value)) if isinstance(value, int | float) else 1


def _to_json(value: Any, indent: int | None = None, ensure_ascii: bool = False) -> str:
    """As templates of the field expect it: readable characters, no HTML escapes."""
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii)


def _raise(message: str) -> str:
    raise TemplateError(message)


def _environment() -> _Environment:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationBlock]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return environment


_ENVIRONMENT = _environment()
