"""The contract: its rules, its stubs, and what these may not disturb."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import specd_client.v1
from google.protobuf.descriptor import FileDescriptor
from specd_client.v1 import admin_pb2, drafter_pb2, generation_pb2, model_pb2, types_pb2

ROOT = Path(__file__).resolve().parents[2]
MODULES = (admin_pb2, drafter_pb2, generation_pb2, model_pb2, types_pb2)
FILES: list[FileDescriptor] = [module.DESCRIPTOR for module in MODULES]


def buf(*arguments: str) -> None:
    """Runs buf on the protos; its complaint is the failure."""
    command = shutil.which("buf", path=Path(sys.executable).parent) or shutil.which("buf")
    if command is None:
        pytest.skip("buf is not installed")
    ran = subprocess.run([command, *arguments], cwd=ROOT / "proto", capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_protos_keep_the_rules_of_buf() -> None:
    buf("lint")


def test_the_protos_are_in_the_format_of_buf() -> None:
    buf("format", "--diff", "--exit-code")


def test_the_protos_break_no_client_of_the_baseline() -> None:
    buf("breaking", "--against", "baseline.binpb")


def test_the_stubs_are_what_the_protos_give() -> None:
    script = [sys.executable, str(ROOT / "scripts" / "generate"), "--check"]
    ran = subprocess.run(script, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_descriptors_keep_the_names_that_other_languages_see() -> None:
    names = {file.name for file in FILES}
    assert names == {
        path.relative_to(ROOT / "proto").as_posix() for path in ROOT.glob("proto/specd/v1/*")
    }
    assert {file.package for file in FILES} == {"specd.v1"}


def test_the_stubs_do_not_shadow_the_daemon() -> None:
    code = "import sys, specd_client.v1.admin_pb2_grpc; print('specd' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert ran.stdout.strip() == "False", ran.stdout + ran.stderr
    folder = Path(specd_client.v1.__file__).parent
    stubs = [path.read_text() for path in folder.glob("*_pb2*")]
    assert stubs
    assert not [text for text in stubs if "from specd." in text or "import specd." in text]


def test_a_message_survives_pickling() -> None:
    request = generation_pb2.AbortGenerationRequest(request_id="r")
    assert pickle.loads(pickle.dumps(request)) == request


def test_the_protos_import_the_basics_of_protobuf_alone() -> None:
    imported = {dependency.name for file in FILES for dependency in file.dependencies}
    others = {name for name in imported if not name.startswith("specd/v1/")}
    assert others == {"google/protobuf/duration.proto", "google/protobuf/struct.proto"}


def test_both_generate_requests_have_the_same_fields() -> None:
    unary, stream = (
        [(f.name, f.number, f.type, f.message_type) for f in message.DESCRIPTOR.fields]
        for message in (generation_pb2.GenerateRequest, generation_pb2.StreamGenerateRequest)
    )
    assert unary == stream


def test_no_time_is_a_bare_number() -> None:
    fields = [
        field for file in FILES for m in file.message_types_by_name.values() for field in m.fields
    ]
    units = [f.full_name for f in fields if f.name.endswith(("_ms", "_us", "_s", "_seconds"))]
    times = [f for f in fields if f.name.endswith(("_time", "_budget", "budget", "timeout"))]
    assert units == []
    assert {f.message_type and f.message_type.full_name for f in times} == {
        "google.protobuf.Duration"
    }
