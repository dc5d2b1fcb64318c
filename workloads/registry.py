"""Find a workload by what the user typed.

::

    digits                       a built-in name, see WORKLOADS
    package.module:function      the function returns the workload
    path/file.py:function        likewise
    replay:profile.json          recorded computation, see replay.py

What such a function may return is described in :mod:`.user`.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from comm_plan.errors import CommPlanError, WorkloadError, one_line
from comm_plan.workloads.base import Workload

WORKLOADS = {
    "digits": "digits:digits",
    "char-lm": "char_lm:char_lm",
    "resnet20": "resnet:resnet20",
    "resnet50": "resnet:resnet50",
    "vgg16": "vgg:vgg16",
    "vgg16-imagenet": "vgg:vgg16_imagenet",
    "vgg16-dropout": "vgg:vgg16_dropout",
    "lenet": "lenet:lenet",
    "cifarnet": "cifarnet:cifarnet",
    "alexnet": "alexnet:alexnet",
    "googlenet": "googlenet:googlenet",
    "inception-v4": "inception:inception_v4",
    "lstm-ptb": "lstm:lstm_ptb",
}
"""Module and function of each built-in workload; loaded on first use."""

REPLAY = "replay:"
"""What comes before the file of a profile that is to be replayed."""

_OTHER_FORMS = "package.module:function, path/file.py:function or replay:profile.json"


def load(name: str, *, seed: int = 0, **options: Any) -> Workload:
    """Return the workload called ``name``.

    Args:
        name: a built-in name, ``package.module:function``, ``path/file.py:function``
            or ``replay:profile.json``.
        seed: of whatever its module and its function draw from the global random
            numbers of Python, NumPy and PyTorch; the same on every rank.
        options: keyword arguments of the workload's function, such as ``batch_size``.

    Raises:
        WorkloadError: there is no such workload, it cannot be imported, it takes no
            such option, or it does not return what :mod:`.user` asks for; or, when
            a function of the workload runs, see :mod:`.checks`.
    """
    from comm_plan.workloads.checks import checked
    from comm_plan.workloads.seeding import seeded
    from comm_plan.workloads.user import from_parts

    with seeded(seed):
        make = _find(name)
    _check_options(name, make, options)
    with seeded(seed):
        made = _called(name, make, options)
        if not isinstance(made, Workload):
            made = from_parts(name, made)
    return checked(made)


def _find(name: str) -> Callable[..., Any]:
    known = name.replace("_", "-")
    if known in WORKLOADS:
        module, function = WORKLOADS[known].split(":")
        builtin = importlib.import_module(f"{__package__}.{module}")
        return _function(name, builtin, function)
    place, colon, function = name.rpartition(":")
    if name.startswith(REPLAY):
        from comm_plan.workloads.replay import replay

        return partial(replay, name.removeprefix(REPLAY))
    if not colon:
        raise WorkloadError(_unknown(name))
    importer = _import_file if place.endswith(".py") else _import_module
    try:
        return _function(name, importer(place), function)
    except WorkloadError:
        raise
    except (Exception, SystemExit) as error:
        raise WorkloadError(
            f"workload {name}: {place} cannot be imported: {_in_one_line(error)}"
        ) from error


def _unknown(name: str) -> str:
    if name.endswith(".py"):
        return f"workload {name} names no function: write {name}:FUNCTION"
    if name.endswith(".json"):
        return f"workload {name} is a file: write replay:{name} to replay a profile"
    close = get_close_matches(name, WORKLOADS, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    known = ", ".join(WORKLOADS)
    return f"workload {name!r} is unknown: {hint}known are {known}; or {_OTHER_FORMS}"


def _import_module(path: str) -> ModuleType:
    """Import as ``python -m`` would: the working directory counts too."""
    _make_importable(Path.cwd())
    return importlib.import_module(path)


def _import_file(path: str) -> ModuleType:
    """Import as ``python path`` would: its neighbours can be imported."""
    file = Path(path).resolve()
    if not file.is_file():
        raise WorkloadError(f"workload file {path} does not exist")
    _make_importable(file.parent)
    name = f"comm_plan_workload_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise WorkloadError(f"workload file {path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _make_importable(folder: Path) -> None:
    """Add ``folder`` last, so that it hides nothing."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _function(name: str, module: ModuleType, function: str) -> Callable[..., Any]:
    make = getattr(module, function, None)
    if callable(make):
        return make  # type: ignore[no-any-return]
    own = [
        key
        for key, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__
    ]
    near = get_close_matches(function, own, n=3, cutoff=0.0)
    remedy = f"it has {', '.join(near)}" if near else "it defines no function"
    if len(own) > len(near):
        remedy += f" and {len(own) - len(near)} more"
    raise WorkloadError(f"workload {name}: there is no function {function!r}: {remedy}")


def _check_options(
    name: str, make: Callable[..., Any], options: dict[str, Any]
) -> None:
    try:
        signature = inspect.signature(make)
    except ValueError:  # as of some that are written in C
        return
    try:
        signature.bind(**options)
    except TypeError as error:
        given = ", ".join(options) or "no options"
        taken = ", ".join(signature.parameters) or "none"
        raise WorkloadError(
            f"workload {name} cannot be made with {given} ({error}): its function "
            f"takes {taken}"
        ) from None


def _called(name: str, make: Callable[..., Any], options: dict[str, Any]) -> Any:
    try:
        return make(**options)
    except CommPlanError:
        raise
    except Exception as error:
        raise WorkloadError(
            f"workload {name}: its function failed: {_in_one_line(error)}"
        ) from error


def _in_one_line(error: BaseException) -> str:
    text = one_line(str(error))
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
