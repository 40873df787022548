"""Import the worker's app in a child process, by the names that the worker determines.

A child is a new interpreter, so it cannot import an app that is in no module, or a program that cannot be read twice.
"""

from __future__ import annotations

import importlib
import runpy
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from ...errors import ConfigError
from ...registry import Registry
from ...task import TaskSpec

MAIN = "__main__"
MAIN_AGAIN = "__mp_main__"  # the program's name in multiprocessing: code under `if __name__ == "__main__"` is not run
_child = False


class Origin(Struct, frozen=True):
    """The source of an app, for its import. `spec` is MODULE:NAME of the app, or of one of its tasks; `modules` declare
    its tasks. `main` is the program's file, or `main_module` its name, if the app or a task is in the program."""

    spec: str
    modules: tuple[str, ...] = ()
    main: str | None = None
    main_module: str | None = None


def origin_of(app: Registry) -> Origin:
    """Return the Origin by which a child imports this app. Raises ConfigError, with the fix, if a child cannot."""
    spec = app.spec or next(_names_of(app), None)
    if spec is None:
        raise ConfigError(
            "the app has no name in any module, so a child process cannot import it; assign it, "
            "and declare its tasks, at the top of a module: `app = App(…)`"
        )
    modules = tuple(dict.fromkeys(name for name in _modules_of(app) if name in sys.modules))
    if MAIN not in (spec.partition(":")[0], *modules):
        return Origin(spec, modules)
    main, main_module = _main()
    return Origin(spec, modules, main, main_module)


def imported(origin: Origin) -> Registry:
    """Import the app of this origin. Raises the errors of its modules; LookupError if they do not contain the app."""
    if origin.main is not None or origin.main_module is not None:
        _import_main(origin)
    module, _, path = origin.spec.partition(":")
    target: Any = importlib.import_module(module)
    for name in path.split("."):
        target = getattr(target, name, None)
    app = target.app if isinstance(target, TaskSpec) else target
    if not isinstance(app, Registry):
        raise LookupError(f"{origin.spec} is {type(target).__name__}, not the app, once it is imported in a child")
    for name in origin.modules:
        importlib.import_module(name)
    return app


def become_child() -> None:
    """Mark this process as a child, in which imported modules must not start a worker."""
    global _child
    _child = True


def refuse_in_child(what: str) -> None:
    """Raise ConfigError if this process is a child. `what` names the refused call."""
    if _child:
        raise ConfigError(
            f"{what} was called while a child process imported the module; put it under "
            '`if __name__ == "__main__":`, so that importing it starts nothing'
        )


def _modules_of(app: Registry) -> Iterator[str]:
    for task in app.tasks.values():
        yield getattr(task.handler, "__module__", None) or MAIN


def _names_of(app: Registry) -> Iterator[str]:
    """Yield every MODULE:NAME under which the app can be imported, then those of its tasks."""
    for name in dict.fromkeys([*_modules_of(app), *sys.modules]):
        module = sys.modules.get(name)
        if not isinstance(module, types.ModuleType) or name == MAIN_AGAIN:
            continue
        for key, value in list(vars(module).items()):
            if value is app:
                yield f"{name}:{key}"
    for task in app.tasks.values():
        module_name, path = getattr(task.handler, "__module__", ""), getattr(task.handler, "__qualname__", "")
        target: Any = sys.modules.get(module_name)
        for part in path.split("."):
            target = getattr(target, part, None)
        if target is task:
            yield f"{module_name}:{path}"


def _main() -> tuple[str | None, str | None]:
    main = sys.modules[MAIN]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name:
        return None, str(spec.name)
    file = getattr(main, "__file__", None)
    if file is None or not Path(file).is_file():
        raise ConfigError(
            "the app is in an interactive session, or a program read from its input, which a child process cannot "
            "import; put it into a module"
        )
    return str(Path(file).absolute()), None


def _import_main(origin: Origin) -> None:
    """Import the worker's own program under another name, so that its main part does not run."""
    module = types.ModuleType(MAIN_AGAIN)
    if origin.main_module is not None:
        content = runpy.run_module(origin.main_module, run_name=MAIN_AGAIN, alter_sys=True)
    else:
        content = runpy.run_path(str(origin.main), run_name=MAIN_AGAIN)
    module.__dict__.update(content)
    sys.modules[MAIN] = sys.modules[MAIN_AGAIN] = module
