"""The settings of the daemon: one declaration gives flags, environment variables and validation.

Frozen; nobody writes into it. Unknown flags and unknown `SPECD_*` variables are errors.
"""

from __future__ import annotations

import os
import re
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from specd.model.catalog import DEFAULT_MODEL
from specd.model.formats import Invariance, WeightFormat

ENV_PREFIX = "SPECD_"
# Variables that other parts of specd read.
_OTHER_VARIABLES = {"SPECD_CACHE"}
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def default_kv_memory() -> int:
    """A quarter of the memory that is free now. It is touched only as pages are used."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(free // 4)


class ServeSettings(BaseSettings):
    """Settings of `specd serve`, each also as SPECD_NAME in the environment."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, frozen=True, extra="forbid", env_ignore_empty=True
    )

    model: str = Field(DEFAULT_MODEL, description="a catalog name or the path of a GGUF file")
    listen: str = Field("127.0.0.1:50051", description="HOST:PORT; port 0 lets the system choose")
    drafter: Annotated[tuple[str, ...], NoDecode] = Field(
        ("ngram",), description="ngram, none or module:object; repeat for a chain"
    )
    weights: WeightFormat = Field(
        "int4", description="int4 keeps 4-bit blocks as the file stores them"
    )
    invariance: Invariance = Field(
        "strict", description="strict: the same tokens whatever runs beside a request"
    )
    ready_file: str | None = Field(None, description="written as JSON when calls are admitted")
    max_rows: int = Field(64, ge=1, le=1024, description="requests that run at once")
    max_waiting: int = Field(256, ge=0, description="requests that wait at most")
    max_step_tokens: int = Field(
        256, ge=1, le=4096, description="prompt and draft tokens in a step"
    )
    max_draft_tokens: int = Field(7, ge=0, le=64, description="draft tokens of a row in a step")
    draft_deadline_ms: float = Field(5.0, ge=1, le=1000, description="longest wait for drafts")
    kv_memory: int = Field(
        default_factory=default_kv_memory, gt=0, description="bytes, or with a suffix K, M or G"
    )
    threads: int = Field(0, ge=0, le=512, description="of torch; 0 is its own default")
    drain_seconds: float = Field(30.0, ge=0, description="how long streams may go on at the end")
    log_level: str = Field("INFO", pattern="^(DEBUG|INFO|WARNING|ERROR)$", description="to stderr")

    @field_validator("drafter", mode="before")
    @classmethod
    def _split_names(cls, value: Any) -> Any:
        """The environment gives one comma-separated text."""
        parts = value.split(",") if isinstance(value, str) else value
        names = [part.strip() for part in parts]
        if "none" in names and len(names) > 1:
            raise ValueError("none does not go together with other drafters")
        if len(set(names)) != len(names) or "" in names:
            raise ValueError("drafters have to be distinct and not empty")
        return tuple(name for name in names if name != "none")

    @field_validator("kv_memory", mode="before")
    @classmethod
    def _bytes(cls, value: Any) -> Any:
        match = re.fullmatch(r"(\d+)([KMG]?)", value) if isinstance(value, str) else None
        return int(match[1]) * _UNITS[match[2]] if match else value

    @model_validator(mode="after")
    def _rows_fit_a_step(self) -> ServeSettings:
        if self.max_rows > self.max_step_tokens:
            raise ValueError("max_step_tokens has to be at least max_rows")
        return self


def unknown_variables(environment: dict[str, str]) -> list[str]:
    """`SPECD_*` variables that mean nothing: a typing error would else become a default."""
    known = {f"{ENV_PREFIX}{name.upper()}" for name in ServeSettings.model_fields}
    named = {name for name in environment if name.upper().startswith(ENV_PREFIX)}
    return sorted(name for name in named if name.upper() not in known | _OTHER_VARIABLES)
