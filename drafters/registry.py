"""Finds a drafter by what an operator wrote behind `--drafter`.

Knows names (built in, or in the entry-point group `specd.drafters`) and `module:object`; knows
neither addresses of remote drafters nor what "none" means, which the caller handles before.
Invariant: what `load` returns has the full form, or `DrafterNotFound` says what to do.
"""

from __future__ import annotations

import importlib
import os
import sys
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType

from drafters.contract import Drafter
from drafters.user import UnusableDrafter, as_drafter

GROUP = "specd.drafters"

# Kept beside the entry points so that a source tree on the path works without an installation.
_BUILT_IN = {"ngram": "drafters.ngram:NgramDrafter"}


class DrafterNotFound(Exception):
    """A drafter specification that cannot be resolved."""

    def __init__(self, spec: str, reason: str) -> None:
        super().__init__(f"drafter {spec!r}: {reason}")
        self.spec = spec
        self.reason = reason


def name_of(spec: str) -> str:
    """Return the word by which requests and statistics call the drafter of `spec`.

    It is the specification itself: what the operator wrote is unique, a function's name is not.
    """
    return spec.strip()


def known_names() -> list[str]:
    """Return the names that `load` resolves without a module path, sorted."""
    return sorted({*_BUILT_IN, *(point.name for point in entry_points(group=GROUP))})


def load(spec: str) -> Drafter:
    """Return a new drafter for a name or a `module:object`.

    A function is wrapped, a class is called without arguments, an instance is used as it is. The
    current directory is importable, after everything that is installed.

    Raises: DrafterNotFound with a sentence that says what to do.
    """
    spec = spec.strip()
    try:
        return as_drafter(_resolve(spec))
    except UnusableDrafter as error:
        raise DrafterNotFound(spec, str(error)) from error


def _resolve(spec: str) -> object:
    path = _BUILT_IN.get(spec)
    if path is None and ":" not in spec:
        point = _entry_point(spec)
        path = f"{point.module}:{point.attr}"
    module_name, _, attributes = (path or spec).partition(":")
    if not module_name or not attributes:
        raise DrafterNotFound(spec, "both sides of the colon are needed, as in my_module:propose")
    return _attribute(spec, _module(spec, module_name), attributes)


def _entry_point(spec: str) -> EntryPoint:
    for point in entry_points(group=GROUP, name=spec):
        return point
    raise DrafterNotFound(
        spec,
        f"no drafter has this name; known names are {', '.join(known_names())}; "
        "your own is given as module:object",
    )


def _module(spec: str, name: str) -> ModuleType:
    _make_current_directory_importable()
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and _names_part_of(error.name, name):
            reason = (
                f"there is no module {name!r}, neither installed nor in {os.getcwd()}; "
                "check its spelling, or start where it lies"
            )
        else:
            reason = f"importing {name!r} raised {type(error).__name__}: {error}"
        raise DrafterNotFound(spec, reason) from error


def _names_part_of(missing: str | None, name: str) -> bool:
    return missing is not None and (name == missing or name.startswith(missing + "."))


def _make_current_directory_importable() -> None:
    """Append it: in front, a file there could take the place of a module that specd needs."""
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)


def _attribute(spec: str, module: ModuleType, attributes: str) -> object:
    found: object = module
    for name in attributes.split("."):
        try:
            found = getattr(found, name)
        except AttributeError as error:
            where = getattr(module, "__file__", None) or "built in"
            raise DrafterNotFound(
                spec,
                f"module {module.__name__!r} ({where}) has no {attributes!r}; "
                "the part behind the colon names a function, class or instance in it",
            ) from error
    return found
