"""A package index and a model hub as real HTTP servers on a loopback socket.

Both serve bytes with Range requests, write down what was asked of them, and misbehave on demand:
cut a connection, hold an answer back until they are told to go on, ignore ranges.
Invariant: when the context ends, no connection and no thread is left.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

COMMIT = "0123456789abcdef0123456789abcdef01234567"
HOLD_LIMIT_S = 60.0
# Small enough that a body takes many writes, so that cuts and holds have a place.
PIECE_BYTES = 1 << 14


@dataclass(frozen=True, slots=True)
class Asked:
    """One request. start: where its range begins, 0 without one."""

    method: str
    path: str
    start: int
    authorization: str | None


@dataclass(frozen=True, slots=True)
class Answer:
    """What to say; a body is served with ranges."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


class FakeHost:
    """One server. Subclasses say what is where."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        # Bytes after which the next bodies are cut off, in order.
        self.cuts: list[int] = []
        # Bytes after which a body of a path that contains `hold_path` waits for `release`.
        self.hold_path: str | None = None
        self.hold_after = 0
        self.held = threading.Event()
        self.released = threading.Event()
        self.ignores_ranges = False
        # How far from the right place an answer to a range says that it begins.
        self.range_error = 0
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def answer(self, method: str, path: str) -> Answer:
        raise NotImplementedError

    def bodies(self, text: str = "") -> list[Asked]:
        """GET requests of paths that contain `text`."""
        return [asked for asked in self.asked if asked.method == "GET" and text in asked.path]

    def release(self) -> None:
        """Go on with every answer that is held back, and hold no other."""
        self.hold_path = None
        self.released.set()


Host = TypeVar("Host", bound=FakeHost)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    host: FakeHost

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _answer(self) -> None:
        host = self.host
        found = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(found[1]) if found else 0
        host.asked.append(Asked(self.command, self.path, start, self.headers.get("Authorization")))
        answer = host.answer(self.command, self.path)
        start = 0 if host.ignores_ranges or answer.status != 200 else start
        self.send_response(206 if start else answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if start:
            size = len(answer.body)
            self.send_header("Content-Range", f"bytes {start + host.range_error}-{size - 1}/{size}")
        self.send_header("Content-Length", str(len(answer.body) - start))
        self.end_headers()
        if self.command == "GET":
            self._send(answer.body[start:])

    def _send(self, body: bytes) -> None:
        host = self.host
        cut = host.cuts.pop(0) if body and host.cuts else None
        is_held = host.hold_path is not None and host.hold_path in self.path
        end = len(body) if cut is None else cut
        try:
            for place in range(0, end, PIECE_BYTES):
                if is_held and place >= host.hold_after:
                    host.held.set()
                    host.released.wait(HOLD_LIMIT_S)
                self.wfile.write(body[place : min(place + PIECE_BYTES, end)])
                self.wfile.flush()
        except OSError:  # the other side has gone
            self.close_connection = True
        if cut is not None:
            self.close_connection = True


class FakeIndex(FakeHost):
    """A package index: wheels by file name, offered as pip asks for them."""

    def __init__(self) -> None:
        super().__init__()
        self.wheels: dict[str, bytes] = {}

    @property
    def environment(self) -> dict[str, str]:
        """What makes pip ask here, and nowhere else."""
        nothing_else = dict.fromkeys(("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX"), "")
        return nothing_else | {
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_INDEX_URL": f"{self.url}/simple",
        }

    def answer(self, method: str, path: str) -> Answer:
        if found := re.fullmatch(r"/simple/([^/]+)/", path):
            package = found[1].replace("-", "_")
            names = [name for name in self.wheels if name.startswith(f"{package}-")]
            links = "".join(f'<a href="/files/{name}">{name}</a>' for name in names)
            page = f"<!DOCTYPE html><html><body>{links}</body></html>".encode()
            return Answer(200 if names else 404, {"Content-Type": "text/html"}, page)
        wheel = self.wheels.get(path.removeprefix("/files/"))
        return Answer(404) if wheel is None else Answer(200, {}, wheel)


class FakeHub(FakeHost):
    """A model hub: large files behind a redirect to another host, as the real ones are."""

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, bytes] = {}
        # What the hub claims of a file where that is not so.
        self.claimed_sha256: dict[str, str] = {}
        self.claimed_blob: dict[str, str] = {}
        # Small files have the id of a blob for an etag, which is no checksum of the bytes alone.
        self.without_sha256 = False
        self.status = 200

    @property
    def environment(self) -> dict[str, str]:
        """What makes `huggingface_hub` ask here, and nowhere else."""
        return {"HF_ENDPOINT": self.url}

    def answer(self, method: str, path: str) -> Answer:
        if self.status != 200:
            return Answer(self.status)
        if found := re.fullmatch(r"/api/models/([^/]+/[^/?]+)\?blobs=.*", path):
            return self._listing(f"{found[1]}/")
        if path.startswith("/storage/"):
            return Answer(200, {}, self.files[path.removeprefix("/storage/")])
        found = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if not found or not any(name.startswith(f"{found[1]}/") for name in self.files):
            return Answer(404, {"X-Error-Code": "RepoNotFound"})
        name = f"{found[1]}/{found[3]}"
        if name not in self.files or found[2] not in {"main", COMMIT}:
            return Answer(404, {"X-Error-Code": "EntryNotFound"})
        return self._redirect(name)

    def _listing(self, prefix: str) -> Answer:
        """All files of a repository; those that git keeps have the id of their blob."""
        files = [name for name in self.files if name.startswith(prefix)]
        if not files:
            return Answer(401, {"X-Error-Code": "RepoNotFound"})
        listed = [
            {"rfilename": name.removeprefix(prefix), **self._told(name)} for name in sorted(files)
        ]
        body = {"id": prefix[:-1], "sha": COMMIT, "siblings": listed}
        return Answer(200, {"Content-Type": "application/json"}, json.dumps(body).encode())

    def _told(self, name: str) -> dict[str, object]:
        content = self.files[name]
        blob = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False)
        if name.endswith((".json", ".txt", ".jinja")):
            return {"size": len(content), "blobId": self.claimed_blob.get(name, blob.hexdigest())}
        sha256 = self.claimed_sha256.get(name, hashlib.sha256(content).hexdigest())
        lfs = {"sha256": sha256, "size": len(content), "pointerSize": 130}
        return {"size": len(content), "blobId": "2" * 40, "lfs": lfs}

    def _redirect(self, name: str) -> Answer:
        content = self.files[name]
        sha256 = self.claimed_sha256.get(name, hashlib.sha256(content).hexdigest())
        headers = {
            "X-Repo-Commit": COMMIT,
            "X-Linked-Etag": f'"{"1" * 40 if self.without_sha256 else sha256}"',
            "X-Linked-Size": str(len(content)),
            # Another name for the same machine: to HTTP it is another host.
            "Location": f"http://localhost:{self.port}/storage/{name}",
        }
        return Answer(302, headers)


class _Server(ThreadingHTTPServer):
    daemon_threads = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed is no error of ours."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def serving(host: Host) -> Iterator[Host]:
    """Run `host` for as long as the block runs."""
    handler = type("Handler", (_Handler,), {"host": host})
    with _Server(("127.0.0.1", 0), handler) as server:
        host.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield host
        finally:
            host.release()
            server.shutdown()
            thread.join()
