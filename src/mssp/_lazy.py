"""Lazy exports: a package imports a module when one of its public names is first used (PEP 562).

So ``import mssp`` and everything in ``mssp.planning`` work without importing torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any


def lazy_exports(
    package: str, names_by_module: Mapping[str, Collection[str]], modules: Collection[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A package's ``__getattr__`` and ``__dir__``.

    Args:
        package: the package's full name.
        names_by_module: maps each module of the package to the public names it defines.
        modules: submodules that are exported as such.
    """
    module_of = {name: module for module, names in names_by_module.items() for name in names}

    def get(name: str) -> Any:
        if name in modules:
            return import_module(f"{package}.{name}")
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{module_of[name]}"), name)

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[package]), *module_of, *modules})

    return get, listed
