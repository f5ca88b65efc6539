"""gRPC ignores options that it does not know, without a word."""

from __future__ import annotations

from pathlib import Path

from grpc._cython import cygrpc

from specd.server.listener import Connections


def test_grpc_knows_every_option_by_its_name() -> None:
    library = Path(cygrpc.__file__).read_bytes()
    options = Connections(keepalive_s=60, max_age_s=60, reflection=True).options()
    assert [name for name, _ in options if name.encode() not in library] == []
    assert b"grpc.no_such_option" not in library
