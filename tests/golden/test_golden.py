"""What the library and the command line do is what they did when the goldens were recorded."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.golden.cases import CASES, kept, observe
from tests.golden.comparing import differences

_SHOWN = 20


def short(name: str) -> str:
    """A name that fits into a line of pytest's."""
    return name if len(name) <= 90 else f"{name[:40]}…{name[-48:]}"


@pytest.mark.parametrize("name", CASES, ids=short)
def test_it_is_as_it_was(name: str, tmp_path: Path) -> None:
    found = observe(CASES[name], tmp_path)
    lines = list(differences(kept(name), found, CASES[name].tolerance))
    more = [f"and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    how = f"If the change is meant, run: python tests/golden/record.py {shlex.quote(name)}"
    assert not lines, "\n".join([f"{name} is not what it was.", *lines[:_SHOWN], *more, how])


def test_every_golden_has_a_case() -> None:
    from tests.golden.cases import kept_names

    assert kept_names() == set(CASES)
