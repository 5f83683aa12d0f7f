"""Result files of checks, sweeps, limits and plans by name, as `mssp report` reads them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from random import Random

from mssp.report.contents import read
from tests.fuzz.cases import Case, Kind, Outcome
from tests.fuzz.mutations import Step, file_after, steps_of_document
from tests.report.test_result_files import KINDS, of_kind

_SOUND: dict[str, object] = {}


def _make(random: Random, steps: Sequence[Step], folder: Path) -> Case:
    kind, other = random.choices(sorted(KINDS), k=2)
    for name in (kind, other):
        if name not in _SOUND:
            _SOUND[name] = of_kind(name)
    (folder / "x.json").write_bytes(file_after(_SOUND[kind], steps))
    more = []
    if random.random() < 0.2:
        more = ["other.json"]
        (folder / "other.json").write_text(json.dumps(_SOUND[other]), encoding="utf-8")
    title = random.choice(([], [], ["--title", "<b>A title</b>"]))
    return Case(["report", "x.json", *more, *title], partial(_read, folder / "x.json"), _drawn, ["report.html"])


def _drawn(_: Outcome) -> None:
    assert is_page(Path("report.html").read_text(encoding="utf-8"))


def is_page(text: str) -> bool:
    """Whether a text is a whole page."""
    return text.lstrip().startswith("<!DOCTYPE html>") and text.rstrip().endswith("</html>")


def _read(path: Path) -> None:
    assert not read([path]).is_empty


KIND = Kind("results", steps_of_document, _make)
