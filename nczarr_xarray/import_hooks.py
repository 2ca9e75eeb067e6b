"""Call a function when a module is imported, without importing the module for it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from types import ModuleType


def when_imported(name: str, call: Callable[[], None]) -> None:
    """Call a function once a module is imported: now if it is already, else right after it.

    Parameters
    ----------
    name
        The module, not one of a package.
    call
        What to call. If the module cannot be imported, it is not called.
    """
    if name in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, _Watch(name, call))


class _Watch:
    """A finder of modules that leaves the finding to the others, and notes what they find."""

    def __init__(self, name: str, call: Callable[[], None]) -> None:
        self._name = name
        self._call = call

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._name:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        found = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_call(module: ModuleType) -> None:
                execute(module)
                if self in sys.meta_path:  # once: others may keep what was found
                    sys.meta_path.remove(self)
                    self._call()

            spec.loader.exec_module = execute_and_call  # type: ignore[method-assign]
        return spec


#: The protocols that aiohttp speaks, for us, for fsspec or for s3fs.
_REMOTE = ("http://", "https://", "s3://")


def preload(target: object) -> None:
    """Begin to import aiohttp in a thread, if a target is behind HTTP or in S3.

    Call it before what opens the target is imported. Half of the import is that OpenSSL reads the
    certificates of this machine, twice, which goes on while other modules are imported. Of the
    packages that are imported meanwhile, aiohttp needs none that needs aiohttp, so that no two
    threads wait for each other.
    """
    if "aiohttp" in sys.modules or not isinstance(target, str):
        return
    if any(protocol in target for protocol in _REMOTE):
        threading.Thread(target=_import_aiohttp, name="nczarr-preload", daemon=True).start()


def _import_aiohttp() -> None:
    with suppress(ImportError):  # what needs it says so
        import aiohttp  # noqa: F401
