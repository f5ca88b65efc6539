"""The library is used where it is there and fits; elsewhere torch computes, and says so.

Also what the library promises without being run: its structures are those that Python passes, and
what every processor runs holds no instruction that only some have.
"""

from __future__ import annotations

import ctypes
import logging
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specd.core import layouts, library
from specd.core.choice import choose_kernels
from specd.device.assembly import DeviceSettings
from specd.device.boot import boot
from specd.errors import StartFailed
from specd.model.arch import ModelConfig, config_from_gguf
from specd.model.formats import Kernels
from specd.model.opening import open_model
from tests.unit.core.support import ISAS
from tests.unit.core.toys import build

ROOT = Path(__file__).parents[3]
NO_CORE = "the C++ core is not used: it was not built, or this processor lacks AVX2"


@pytest.fixture
def fresh() -> Iterator[None]:
    """Before and behind a test that changes what is found: nothing is remembered."""
    for remembered in (library.load, library.supported):
        remembered.cache_clear()
    yield
    for remembered in (library.load, library.supported):
        remembered.cache_clear()


@pytest.fixture
def no_core(fresh: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_PATH", tmp_path / "_core.so")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return build(tmp_path, {"layers": 1, "linear_type": "Q4_1", "embed_type": "Q8_0"})


def settings_for(path: Path, kernels: Kernels) -> DeviceSettings:
    return DeviceSettings(
        model_path=path, weights="auto", invariance="strict", kernels=kernels, kv_memory=1 << 24,
        max_rows=2, max_positions=16, num_threads=1,
    )  # fmt: skip


def config_of(path: Path) -> ModelConfig:
    return config_from_gguf(open_model(path).metadata)


def refusal(path: Path, kernels: Any) -> str:
    with pytest.raises(StartFailed) as refused:
        choose_kernels(kernels, config_of(path))
    sentence = str(refused.value)
    assert "\n" not in sentence
    return sentence


def test_without_a_library_torch_serves_and_a_warning_tells(
    no_core: None, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "specd.boot")
    booted = boot(settings_for(path, "auto"))
    assert booted.runner.kernels == "torch"
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith(NO_CORE)


def test_torch_by_name_is_no_reason_to_warn(
    no_core: None, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert choose_kernels("torch", config_of(path)) == "torch"
    assert not caplog.records


@pytest.mark.parametrize("kernels", library.ISAS)
def test_kernels_that_are_not_there_are_refused_by_name(
    no_core: None, path: Path, kernels: Kernels
) -> None:
    sentence = f"--kernels {kernels} is not to be had here; this machine has: torch"
    assert refusal(path, kernels) == sentence


def test_a_library_of_another_version_is_not_used(
    fresh: None, monkeypatch: pytest.MonkeyPatch, needs_core: None
) -> None:
    monkeypatch.setattr(library, "ABI_VERSION", layouts.ABI_VERSION + 1)
    assert library.load() is None and library.supported() == ()


@pytest.mark.parametrize("what", ["text", "another library"])
def test_a_file_that_is_no_core_is_not_used(no_core: None, what: str) -> None:
    if what == "text":
        library._PATH.write_text("no library")
    else:
        shutil.copy(Path(pytest.importorskip("_ctypes").__file__), library._PATH)
    assert library.load() is None and library.supported() == ()


@pytest.mark.usefixtures("needs_core")
def test_auto_chooses_the_first_and_every_set_serves_under_its_name(path: Path) -> None:
    config = config_of(path)
    assert choose_kernels("auto", config) == ISAS[0]
    prints = set()
    names: list[Any] = [*ISAS, "torch"]
    for name in names:
        booted = boot(settings_for(path, name))
        assert booted.runner.kernels == name and booted.invariance == "strict"
        prints.add(booted.fingerprint)
    assert len(prints) == len(names)


@pytest.mark.usefixtures("needs_core")
def test_instruction_sets_of_this_machine_are_named_in_a_refusal(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a processor with AVX2 alone."""
    monkeypatch.setattr(library, "supported", lambda: ("avx2",))
    assert refusal(path, "avx512").endswith("this machine has: avx2, torch")


@pytest.mark.usefixtures("needs_core")
def test_a_model_that_the_core_cannot_run_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = build(tmp_path, {"heads": 4, "kv_heads": 2, "head_dim": 24, "ffn": 96})
    assert refusal(path, "avx2") == (
        "--kernels avx2 cannot run this model: heads of 24 elements; the core takes multiples of "
        "16 up to 512"
    )
    assert choose_kernels("auto", config_of(path)) == "torch"
    assert "the C++ core is not used: heads of 24 elements" in caplog.text
    assert boot(settings_for(path, "auto")).runner.kernels == "torch"


def header() -> str:
    text = (ROOT / "specd/core/src/core.h").read_text()
    return re.sub(r"//.*", "", text)


@pytest.mark.parametrize(
    "name", ["Part", "Linear", "Layer", "Model", "Row", "Step", "Draw", "Standing"]
)
def test_structures_have_the_fields_of_the_header(name: str) -> None:
    """Names, order and kind: numbers of 4 and 8 bytes, structures, pointers."""
    body = re.search(rf"struct {name} {{(.*?)\n}};", header(), re.DOTALL)
    assert body is not None
    wanted = []
    for kind, names in re.findall(r"\s*(?:const )?([\w]+\*?) ([^;]+);", body[1]):
        wanted += [(each.strip(), kind) for each in names.split(",")]
    kinds: dict[str, Any] = {
        "int32_t": ctypes.c_int32, "int64_t": ctypes.c_int64, "uint64_t": ctypes.c_uint64,
        "float": ctypes.c_float, "double": ctypes.c_double,
        "Part": layouts.Part, "Linear": layouts.Linear,
    }  # fmt: skip
    fields = getattr(layouts, name)._fields_
    assert [field for field, _ in fields] == [field for field, _ in wanted]
    for (field, found), (_, kind) in zip(fields, wanted, strict=True):
        if kind.endswith("*"):
            assert ctypes.sizeof(found) == ctypes.sizeof(ctypes.c_void_p), field
        else:
            assert found is kinds[kind], field


def test_constants_are_those_of_the_header() -> None:
    assert f"ABI_VERSION = {layouts.ABI_VERSION};" in header()
    assert f"PAGE = {layouts.PAGE};" in header()
    formats = (ROOT / "specd/core/src/formats.h").read_text()
    assert f"LANES = {layouts.LANES};" in formats


# A function's line in a disassembly, and registers and moves that AVX2 does not have.
FUNCTION = re.compile(r"^[0-9a-f]+ <(.+)>:$")
ONLY_AVX512 = re.compile(
    r"%zmm|%[xy]mm(1[6-9]|2\d|3[01])|%k[1-7]\b|\tvmovdq(u8|u16|[ua]32|[ua]64)\b"
)


@pytest.mark.skipif(shutil.which("objdump") is None, reason="objdump is not here")
@pytest.mark.usefixtures("needs_core")
def test_what_every_processor_runs_holds_no_avx512() -> None:
    """Of inline functions that several objects hold the linker keeps one: it has to be the least.

    The kernels of AVX-512 have namespaces of their own, and nothing else may hold them.
    """
    listing = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", library._PATH],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    function, guilty, kernels = "", set(), set()
    for line in listing.splitlines():
        if begins := FUNCTION.match(line):
            function = begins[1]
        elif ONLY_AVX512.search(line):
            (kernels if "AVX512" in function else guilty).add(function)
    assert kernels, "the library has no AVX-512 kernels, or objdump writes otherwise"
    assert guilty == set()
