"""What the examples of hosts share: the file that ``mssp export`` writes, imported as a user would."""

from __future__ import annotations

import tempfile
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import mssp
from mssp.hosts import Sizes, export


def imported(plan: mssp.Plan, host: str, sizes: Sizes | None = None) -> ModuleType:
    """`mssp export HOST --plan plan.json -o planned.py`, and ``import planned``."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "planned.py"
        file.write_text(export(plan, host, sizes), encoding="utf-8")
        spec = spec_from_file_location(file.stem, file)
        assert spec is not None
        assert spec.loader is not None
        planned = module_from_spec(spec)
        spec.loader.exec_module(planned)
    return planned


def installed(package: str, requirement: str) -> bool:
    """Whether a host is there; says in one line how to get it where it is not."""
    if find_spec(package) is not None:
        return True
    print(f"{package} is not installed: pip install {requirement}, then run this example again")
    return False
