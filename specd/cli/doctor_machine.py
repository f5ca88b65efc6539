"""`specd doctor`: what specd finds on this machine, without loading a model.

Knows Python, the processor, memory, torch, the core, the cache of models and the addresses of the
daemon. Exit status 0; 1 where torch cannot be loaded, with its sentence.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import sys
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from specd import __version__
from specd.addresses import Address, Unix, parse
from specd.config import default_kv_memory, load
from specd.core import library
from specd.model.catalog import CATALOG, cache_dir, cached_path, pulled_from_hub

COLUMNS = 100
_PATIENCE_S = 0.5


def run(parsed: argparse.Namespace) -> int:
    """Print what is here; return the exit status."""
    facts = {
        "specd": __version__,
        "python": f"{platform.python_version()}, {sys.executable}",
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "processor": f"{processor_name()}, {_cores()}",
        "memory": _memory(),
    }
    problem = None
    try:
        facts["torch"] = _torch()
    except (ImportError, OSError) as error:
        problem = f"torch cannot be loaded: {error}"
    facts["kernels"] = _kernels()
    facts["models"] = _models()
    facts["listen"] = _addresses()
    if parsed.json:
        print(json.dumps({"facts": facts, "problem": problem}))
    else:
        _show(facts)
    if problem is not None:
        print(f"specd: {problem}", file=sys.stderr)
        return 1
    return 0


def processor_name() -> str:
    """As its maker calls it, where the system tells."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _cores() -> str:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{usable} of {os.cpu_count()} cores for this process"


def _memory() -> str:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return f"{decimal(total)}; keys and values get {decimal(default_kv_memory())} by default"


def _torch() -> str:
    """Raises what a broken installation raises."""
    import torch

    capability = torch.backends.cpu.get_cpu_capability()
    return f"{torch.__version__}, {capability}, {torch.get_num_threads()} threads"


def _kernels() -> str:
    there = library.supported()
    if there:
        return f"{', '.join(there)}, torch; the first is the default"
    why = "this processor lacks AVX2" if library.load() is not None else "the core was not built"
    return f"torch alone, several times slower than the core: {why}"


def _models() -> str:
    here = [name for name, model in CATALOG.items() if cached_path(model.name).is_file()]
    named = ", ".join((*here, *map(str, pulled_from_hub()))) or "none; `specd models pull` gets one"
    return f"{named} (in {cache_dir()})"


def _addresses() -> str:
    """Where `specd serve` would listen, and whether somebody answers there."""
    try:
        addresses = [parse(text) for text in load({}, None).listen]
    except ValidationError:
        return "unknown: a SPECD_ variable is wrong; `specd serve --print-config` says which"
    return ", ".join(f"{one} is {'taken' if _answers(one) else 'free'}" for one in addresses)


def _answers(address: Address) -> bool:
    where: Any = str(address.path) if isinstance(address, Unix) else (address.host, address.port)
    with socket.socket(socket.AF_UNIX if isinstance(address, Unix) else socket.AF_INET) as trying:
        trying.settimeout(_PATIENCE_S)
        try:
            trying.connect(where)
        except OSError:
            return False
        return True


def _show(facts: dict[str, str]) -> None:
    terminal = Console()
    console = terminal if terminal.is_terminal else Console(width=COLUMNS)
    table = Table(box=None, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name, Text(value))
    console.print(table)
    console.print(Text("`specd doctor --invariance` checks the guarantee with a model of yours."))
