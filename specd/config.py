"""The settings of the daemon: one declaration gives flags, environment variables, a TOML file and
validation.

A flag wins over a variable, a variable over the file, the file over the default. Frozen; nobody
writes into it. Unknown flags, keys and `SPECD_*` variables are errors.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from specd.addresses import Tcp, is_reachable_from_outside, parse
from specd.errors import AddressUnavailable
from specd.model.catalog import DEFAULT_MODEL
from specd.model.formats import Invariance, Kernels, WeightFormat

ENV_PREFIX = "SPECD_"
CONFIG_VARIABLE = "SPECD_CONFIG"
# Variables that other parts of specd read.
_OTHER_VARIABLES = {"SPECD_CACHE", "SPECD_ADDRESS", CONFIG_VARIABLE}
LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]
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

    model: str = Field(
        DEFAULT_MODEL,
        description="a catalog name, a GGUF file, a model folder, hf:OWNER/REPO/FILE.gguf or "
        "hf:OWNER/REPO",
    )
    listen: Annotated[tuple[str, ...], NoDecode] = Field(
        ("127.0.0.1:50051",),
        description="HOST:PORT (port 0: any free one) or unix:PATH; repeatable",
    )
    admin_listen: str = Field(
        "auto", description="HOST:PORT, unix:PATH, none, or auto: a socket of this user's"
    )
    drafter: Annotated[tuple[str, ...], NoDecode] = Field(
        ("ngram",), description="ngram, none or module:object; repeat for a chain"
    )
    weights: WeightFormat = Field(
        "auto",
        description="auto, int8 and int4 keep quantised blocks of the file and hold other tensors "
        "as bf16, int8 or int4; bf16 and fp32 convert all. specd inspect tells what is lost",
    )
    invariance: Invariance = Field(
        "strict", description="strict: the same tokens whatever runs beside a request"
    )
    kernels: Kernels = Field(
        "auto",
        description="what computes a step: the C++ core with an instruction set, or torch; auto is "
        "the fastest that is there",
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
    threads: int = Field(
        0,
        ge=0,
        le=512,
        description="that compute a step; 0 is one for each core",
    )
    drain_seconds: float = Field(30.0, ge=0, description="how long streams may go on at the end")
    tls_certificate: str | None = Field(
        None, description="PEM file for TCP addresses; read again when it changes"
    )
    tls_key: str | None = Field(None, description="PEM file, the key of the certificate")
    tls_client_ca: str | None = Field(
        None, description="PEM file; only clients with a certificate of this authority may connect"
    )
    insecure: bool = Field(
        False, description="true allows addresses beyond this machine without TLS"
    )
    keepalive_seconds: float = Field(
        60.0, ge=1, le=86_400, description="after so long a silent peer is asked if it lives"
    )
    max_connection_age_seconds: float = Field(
        0.0, ge=0, le=864_000, description="then a client has to connect anew; 0 is never"
    )
    reflection: bool = Field(True, description="true or false: the services describe themselves")
    log_level: LogLevel = Field("INFO", description="to stderr")

    @field_validator("*", mode="before")
    @classmethod
    def _is_clean_text(cls, value: Any) -> Any:
        """What no file, address or name can hold would only fail later, and worse."""
        for text in value if isinstance(value, list | tuple) else [value]:
            if isinstance(text, str) and ("\0" in text or not _is_utf8(text)):
                raise ValueError("takes text in UTF-8 without zero bytes")
        return value

    @field_validator("drafter", mode="before")
    @classmethod
    def _drafters(cls, value: Any) -> Any:
        names = _split(value)
        if "none" in names and len(names) > 1:
            raise ValueError("none does not go together with other drafters")
        return tuple(name for name in names if name != "none")

    @field_validator("listen", mode="before")
    @classmethod
    def _addresses(cls, value: Any) -> Any:
        addresses = tuple(_checked_address(name) for name in _split(value))
        if not addresses:
            raise ValueError("takes at least one address")
        return addresses

    @field_validator("admin_listen")
    @classmethod
    def _admin_address(cls, value: str) -> str:
        return value if value in {"auto", "none"} else _checked_address(value)

    @field_validator("kv_memory", mode="before")
    @classmethod
    def _bytes(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        match = re.fullmatch(r"([0-9]{1,18})([KMG]?)", value)
        if match is None:
            raise ValueError("takes bytes, or a number with a suffix K, M or G")
        return int(match[1]) * _UNITS[match[2]]

    @model_validator(mode="after")
    def _tls_is_whole(self) -> ServeSettings:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("--tls-certificate and --tls-key go together")
        if self.tls_client_ca is not None and self.tls_certificate is None:
            raise ValueError("--tls-client-ca needs --tls-certificate and --tls-key")
        if self.tls_certificate is not None and not self._listens_on_tcp():
            raise ValueError(
                "--tls-certificate is for HOST:PORT; every address is a socket, which has no TLS"
            )
        if self.tls_certificate is None and not self.insecure:
            for text in (*self.listen, self.admin_listen):
                if text not in {"auto", "none"} and is_reachable_from_outside(parse(text)):
                    raise ValueError(
                        f"{text} can be reached from other machines: give --tls-certificate and "
                        "--tls-key, or allow it with --insecure"
                    )
        return self

    def _listens_on_tcp(self) -> bool:
        """Whether any address is of TCP; the default one for admin calls is a socket."""
        texts = {*self.listen, self.admin_listen} - {"auto", "none"}
        return any(isinstance(parse(text), Tcp) for text in texts)

    @model_validator(mode="after")
    def _rows_fit_a_step(self) -> ServeSettings:
        if self.max_rows > self.max_step_tokens:
            raise ValueError("--max-step-tokens has to be at least --max-rows")
        return self


def load(flags: Mapping[str, Any], config: Path | None) -> ServeSettings:
    """Settings from flags, the environment and a TOML file, in this order.

    Raises:
        pydantic.ValidationError: a value or a key is wrong.
        OSError: the file cannot be read.
        ValueError, RecursionError: the file is no TOML, or more than tomllib can take.
    """
    if config is None:
        return ServeSettings(**flags)
    # Not by pydantic-settings' own reader: it passes over a pipe.
    values = tomllib.loads(config.read_bytes().decode())

    class WithFile(ServeSettings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, InitSettingsSource(settings_cls, values)

    return WithFile(**flags)


def _is_utf8(text: str) -> bool:
    """Bytes of the command line and the environment that are none become surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _split(value: Any) -> list[str]:
    """A variable holds one comma-separated text. Raises ValueError."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise ValueError("takes a text or a list of texts")
    names = [part.strip() for part in parts]
    if len(set(names)) != len(names) or "" in names:
        raise ValueError("takes texts that are distinct and not empty")
    return names


def _checked_address(text: str) -> str:
    try:
        return str(parse(text))
    except AddressUnavailable as error:
        raise ValueError(str(error)) from error


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """`SPECD_*` variables that mean nothing: a typing error would else become a default."""
    known = {f"{ENV_PREFIX}{name.upper()}" for name in ServeSettings.model_fields}
    named = {name for name in environment if name.upper().startswith(ENV_PREFIX)}
    return sorted(name for name in named if name.upper() not in known | _OTHER_VARIABLES)
