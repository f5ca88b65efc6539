"""Speaks as much of llama-server's HTTP API as a benchmark needs; runs as a program of its own.

    python fake_llama_server.py --port N [--misbehave short | status | event | garbage | hang-up]

Answers a prompt of ids with the ids behind its last one. Refuses a request that would not be
measured right: a cached prompt, sampling, an answer that may end early.
"""

from __future__ import annotations

import argparse
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

WANTED = {"temperature": 0.0, "ignore_eos": True, "stream": True, "cache_prompt": False}
RUN = 2  # tokens that come together, as behind an accepted draft


def program(folder: Path) -> str:
    """Write a program that runs this file, as a built llama-server is one; returns its path."""
    path = folder / "llama-server"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} "$@"\n')
    path.chmod(0o755)
    return str(path)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    misbehave = ""

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """The health check."""
        self._answer(200 if self.path == "/health" else 404, b"{}")

    def do_POST(self) -> None:
        """A completion."""
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        wrong = [name for name, value in WANTED.items() if request.get(name) != value]
        if wrong or self.path != "/completion" or self.misbehave == "status":
            self._answer(400, json.dumps({"refused": wrong}).encode())
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self._stream(request)

    def _stream(self, request: dict[str, Any]) -> None:
        count = request["n_predict"] - (self.misbehave == "short")
        ids = [request["prompt"][-1] + place + 1 for place in range(count)]
        for start in range(0, count, RUN):
            if start and self.misbehave == "event":
                self._event({"error": {"message": "out of room"}})
                return
            if start and self.misbehave == "garbage":
                self.wfile.write(b"data: {no json\n\n")
                return
            if start and self.misbehave == "hang-up":
                return
            self._event({"tokens": ids[start : start + RUN], "stop": False})
        timings = {"draft_n": count, "draft_n_accepted": count // RUN}
        self._event({"tokens": ids, "stop": True, "timings": timings})

    def _event(self, document: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(document).encode() + b"\n\n")
        self.wfile.flush()

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> int:
    """Serve until a signal ends it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--version", action="store_true")
    parser.add_argument("--port", type=int)
    parser.add_argument("--misbehave", default="")
    chosen, _ = parser.parse_known_args()
    if chosen.version:
        sys.stderr.write("version: 7 (fake)\n")
        return 0
    if chosen.misbehave == "start":
        sys.stderr.write("error: no such model\n")
        return 4
    Handler.misbehave = chosen.misbehave
    ThreadingHTTPServer(("127.0.0.1", chosen.port), Handler).serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
