"""A run store under a name that must be quoted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mssp.store.runs import Store, Study
from tests.store.stores import SETTINGS


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs of 100% #1?.db"


@pytest.fixture
def study(path: Path) -> Iterator[Study]:
    with Store(path, device="two cores") as store:
        yield store.study("sweep", SETTINGS)
