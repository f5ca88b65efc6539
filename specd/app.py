"""The daemon's life: bind, boot, serve, drain, stop.

Knows the order of these and who starts whom. Invariant: the ready file appears after the model is
warm and calls are admitted; however the daemon ends, listener, drafters and device thread are
closed, in this order.
"""

from __future__ import annotations

import logging
import os
import resource
import secrets
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path

import anyio
import anyio.to_thread

from drafters import registry
from drafters.contract import Drafter
from specd.addresses import Address, parse
from specd.config import ServeSettings
from specd.device.assembly import DeviceSettings, Progress
from specd.device.boot import Booted
from specd.device.thread import DeviceThread
from specd.engine.drafting import Drafting
from specd.engine.facts import ModelFacts
from specd.engine.loop import Engine
from specd.engine.scheduler import Limits as StepLimits
from specd.errors import DrafterNotLoadable
from specd.model.catalog import resolve
from specd.server.admission import Admission
from specd.server.convert import Limits
from specd.server.front import Front, Rooms
from specd.server.listener import Connections
from specd.server.listeners import Listeners
from specd.server.text_desk import TextDesk
from specd.server.tls import Certificates, TlsFiles
from specd.structure import drafter as grammar_drafter
from specd.structure.drafter import GrammarDrafter
from specd.structure.workshop import Workshop

_log = logging.getLogger("specd.app")

# What is still in flight when the streams have been ended: last writes, and a running step.
_STOP_GRACE_S = 2.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


async def serve(settings: ServeSettings, progress: Progress) -> None:
    """Run the daemon until a signal ends it. Raises as `_serve`."""
    os.register_at_fork(after_in_child=_forget_signals)
    _raise_file_limit()
    # Before the address is bound: whoever can reach the daemon may also stop it.
    with anyio.open_signal_receiver(*_SIGNALS) as signals:
        await _serve(settings, progress, signals)


def _raise_file_limit() -> None:
    """Every connection is a file, and many systems begin with room for a thousand."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # some systems say that there is no limit, and have one
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _forget_signals() -> None:
    """A process that a drafter forks ends of a signal by itself and does not pass it on to us.

    It has a copy of the loop's handlers, which write to the loop's own pipe (until Python 3.12).
    """
    signal.set_wakeup_fd(-1)
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)


async def _serve(
    settings: ServeSettings, progress: Progress, signals: AsyncIterator[signal.Signals]
) -> None:
    """Bind, boot, serve, drain, stop.

    Raises:
        StartFailed: it could not start; the message says what to do.
        DeviceLost: it served and cannot any more.
        Either alone or in an exception group: most of it runs inside a task group.
    """
    grammar = GrammarDrafter()
    drafters = _with_grammar(settings.drafter, grammar)
    path = resolve(settings.model)
    front = Front()
    listeners = _listeners(settings, front)
    await listeners.start(*_addresses(settings))
    _log.info("settings: %s", settings.model_dump_json())
    device = DeviceThread()
    desk, workshop = TextDesk(), Workshop(grammar)
    drafting = Drafting(drafters, max_deadline_s=settings.draft_deadline_ms / 1000)
    try:
        async with anyio.create_task_group() as tasks:
            warm, asked_to_stop = anyio.Event(), anyio.Event()
            tasks.start_soon(_watch_signals, signals, warm, asked_to_stop, tasks.cancel_scope)
            booted = await device.boot(_device_settings(settings, path), progress)
            await workshop.open(booted.tokenizer, booted.config.vocab_size)
            engine = _engine(settings, device, booted, drafting)
            tasks.start_soon(engine.run)
            admission = Admission(engine, listeners.tell)
            front.open(_rooms(settings, engine, admission, booted, desk, workshop))
            warm.set()
            await _admit(settings, admission, asked_to_stop)
            tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await listeners.stop(_STOP_GRACE_S)
            await drafting.aclose()
            desk.close()
            workshop.close()
            await anyio.to_thread.run_sync(device.close, _STOP_GRACE_S)


async def _admit(settings: ServeSettings, admission: Admission, asked_to_stop: anyio.Event) -> None:
    """Admit calls until a signal comes, then drain; whatever ends it, nothing is admitted then."""
    try:
        admission.open()
        await asked_to_stop.wait()
        with anyio.move_on_after(settings.drain_seconds + _STOP_GRACE_S):
            await admission.drain(settings.drain_seconds)
    finally:
        admission.close("the daemon is stopping")


def _with_grammar(specs: tuple[str, ...], grammar: GrammarDrafter) -> Mapping[str, Drafter]:
    """The drafters of the settings behind `grammar`, which every daemon has that drafts at all.

    Raises DrafterNotLoadable.
    """
    name = grammar_drafter.NAME
    others = load_drafters(tuple(spec for spec in specs if spec != name))
    return {name: grammar, **others} if specs else {}


def load_drafters(specs: tuple[str, ...]) -> Mapping[str, Drafter]:
    """Load every drafter by its specification. Raises DrafterNotLoadable."""
    try:
        return {registry.name_of(spec): registry.load(spec) for spec in specs}
    except registry.DrafterNotFound as error:
        raise DrafterNotLoadable(str(error)) from error


async def _watch_signals(
    signals: AsyncIterator[signal.Signals],
    warm: anyio.Event,
    asked_to_stop: anyio.Event,
    everything: anyio.CancelScope,
) -> None:
    """The first signal drains, or ends a start-up; the second ends at once."""
    async for number in signals:
        if asked_to_stop.is_set() or not warm.is_set():
            break
        _log.info("signal %s: draining; a second one ends at once", number.name)
        asked_to_stop.set()
    everything.cancel()


def _addresses(settings: ServeSettings) -> tuple[list[Address], Address | str]:
    admin = settings.admin_listen
    listen = [parse(text) for text in settings.listen]
    return listen, admin if admin in {"auto", "none"} else parse(admin)


def _listeners(settings: ServeSettings, front: Front) -> Listeners:
    return Listeners(
        front,
        Connections(
            keepalive_s=settings.keepalive_seconds,
            max_age_s=settings.max_connection_age_seconds,
            reflection=settings.reflection,
            certificates=_certificates(settings),
        ),
        model=settings.model,
        ready_file=Path(settings.ready_file) if settings.ready_file else None,
    )


def _certificates(settings: ServeSettings) -> Certificates | None:
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    client_ca = None if settings.tls_client_ca is None else Path(settings.tls_client_ca)
    return Certificates(TlsFiles(Path(settings.tls_certificate), Path(settings.tls_key), client_ca))


def _device_settings(settings: ServeSettings, path: Path) -> DeviceSettings:
    return DeviceSettings(
        model_path=path,
        weights=settings.weights,
        invariance=settings.invariance,
        kernels=settings.kernels,
        kv_memory=settings.kv_memory,
        max_rows=settings.max_rows,
        max_positions=settings.max_step_tokens,
        num_threads=settings.threads,
    )


def _engine(
    settings: ServeSettings, device: DeviceThread, booted: Booted, drafting: Drafting
) -> Engine:
    return Engine(
        device,
        ModelFacts(settings.model, booted.config.vocab_size, booted.fingerprint),
        drafting,
        num_pages=booted.num_pages,
        limits=StepLimits(settings.max_rows, settings.max_step_tokens),
        max_waiting=settings.max_waiting,
    )


def _rooms(
    settings: ServeSettings,
    engine: Engine,
    admission: Admission,
    booted: Booted,
    desk: TextDesk,
    workshop: Workshop,
) -> Rooms:
    limits = Limits(
        vocab_size=booted.config.vocab_size,
        context_length=booted.config.context_length,
        drafters=tuple(engine.drafting.statistics()),
        default_drafters=settings.drafter,
        max_draft_tokens=settings.max_draft_tokens,
        models=(settings.model,),
        draw_seed=lambda: secrets.randbits(64),
        end_ids=booted.tokenizer.eos_ids,
    )
    return Rooms(
        engine=engine,
        admission=admission,
        booted=booted,
        desk=desk,
        workshop=workshop,
        limits=limits,
        weights=settings.weights,
        max_rows=settings.max_rows,
        max_waiting=settings.max_waiting,
    )
