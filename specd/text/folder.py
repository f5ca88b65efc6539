"""The small files of a Hugging Face folder that say what its tokens are for.

Knows where such a folder names its special tokens, the ends of a generation, the rows of the model
and the chat template; nothing of tokenizer.json but how it is read.

Invariant: a file that is there is read and checked, or refused with its path.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from specd.errors import ModelFileError
from specd.text.vocabulary import checked_ids

# Eight times the largest tokenizer.json known.
MAX_FILE_BYTES = 1 << 28

Json = dict[str, Any]


@dataclass(frozen=True)
class Folder:
    """A folder whose files are read when they are asked for. All of it may raise ModelFileError."""

    path: Path

    def read(self, name: str) -> Json:
        """The object in a JSON file, empty where there is no such file."""
        path = self.path / name
        if not path.exists():
            return {}
        try:
            document = json.loads(_text(path))
        except (ValueError, RecursionError) as error:
            raise ModelFileError(f"{path} is not JSON: {error}") from error
        if not isinstance(document, dict):
            raise ModelFileError(f"{path} holds no JSON object")
        return document

    @cached_property
    def tokenizer_config(self) -> Json:
        return self.read("tokenizer_config.json")

    @cached_property
    def model_configs(self) -> list[Json]:
        """The model's configuration; one for several kinds of input has one for text in it."""
        config = self.read("config.json")
        inner = config.get("text_config")
        return [inner, config] if isinstance(inner, dict) else [config]

    def num_rows(self) -> int:
        """The rows of the model's embeddings, 0 where no configuration says."""
        sizes = (config.get("vocab_size") for config in self.model_configs)
        return next((size for size in sizes if type(size) is int), 0)

    def token_name(self, role: str) -> str | None:
        """The text of the token that has this role, for instance `bos_token`."""
        for name in ("tokenizer_config.json", "special_tokens_map.json"):
            value = self.read(name).get(role)
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                return text
            if value is not None:
                raise ModelFileError(f"{role} in {self.path / name} is {value!r:.80}, not a token")
        return None

    def adds(self, role: str) -> bool | None:
        """Whether tokenizer_config.json has the token of this role added; None: it is silent."""
        value = self.tokenizer_config.get(f"add_{role}")
        if value is not None and type(value) is not bool:
            raise ModelFileError(f"add_{role} in tokenizer_config.json is {value!r:.80}, no bool")
        return value

    def ends(self, num_tokens: int) -> Iterator[int]:
        """The ids that the configurations say end a generation."""
        configs = [("config.json", config) for config in self.model_configs]
        for name, config in (
            ("generation_config.json", self.read("generation_config.json")),
            *configs,
        ):
            value = config.get("eos_token_id")
            ids = value if isinstance(value, list) else [] if value is None else [value]
            if not set(map(type, ids)) <= {int}:
                raise ModelFileError(f"eos_token_id in {name} is {value!r:.80}, not ids")
            yield from checked_ids(ids, num_tokens, f"eos_token_id in {name}")

    def chat_template(self) -> tuple[str | None, str]:
        """The chat template; where there is none to use, None and why, as far as there is a why."""
        path = self.path / "chat_template.jinja"
        if path.exists():
            return _text(path), ""
        found = self.tokenizer_config.get("chat_template")
        if found is None:
            found = self.read("chat_template.json").get("chat_template")
        if isinstance(found, list):
            named = {str(t.get("name")): t.get("template") for t in found if isinstance(t, dict)}
            found = named.get("default")
            if found is None:
                names = ", ".join(sorted(named))
                return None, f"none of the model's chat templates is called 'default': {names}"
        if found is None or isinstance(found, str):
            return found, ""
        return None, "the model's chat template is no text"


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ModelFileError(f"{path} has more than {MAX_FILE_BYTES} bytes")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelFileError(f"cannot read {path}: {error}") from error
