"""The folder of a run: what is kept there of its settings, its plan and its data, and whether another run may go on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from mssp._documents import parsed
from mssp._files import write_whole
from mssp.planning.plans import Plan
from mssp.train.settings import RunSettings

if TYPE_CHECKING:
    from mssp.data import TokenFile
    from mssp.train.language_models import LanguageModel

SETTINGS, PLAN = "settings.json", "plan.json"
_MOST = 3  # differences that a message names


@dataclass(frozen=True)
class Kept:
    """What a run's folder says of it: its settings, the model's sizes, the data, and the plan."""

    settings: RunSettings
    model: Mapping[str, Any]
    data: Mapping[str, Any]
    plan: Plan

    @classmethod
    def of(cls, settings: RunSettings, model: LanguageModel, data: TokenFile) -> Kept:
        identity = {"checksum": data.checksum, "tokens": data.tokens, "tokenizer": data.tokenizer}
        return cls(settings, model.identity(), identity, model.plan)

    @classmethod
    def read(cls, folder: Path) -> Kept:
        """What a folder keeps."""
        for name in (SETTINGS, PLAN):
            if not (folder / name).is_file():
                raise ValueError(f"{folder} holds no run: it has no {name}")
        try:
            document = parsed((folder / SETTINGS).read_bytes())
            settings = RunSettings.of(document["settings"])
            model, data = dict(document["model"]), dict(document["data"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{folder / SETTINGS} is not what a run writes: {error}") from None
        try:
            return cls(settings, model, data, Plan.from_json((folder / PLAN).read_bytes()))
        except ValueError as error:
            raise ValueError(f"{folder / PLAN}: {error}") from None

    def json(self) -> str:
        document = {"settings": self.settings.json(), "model": self.model, "data": self.data}
        return json.dumps(document, indent=1, ensure_ascii=False, default=str) + "\n"


def make(folder: Path, kept: Kept) -> None:
    """Make the folder of a new run; one that holds a run already is refused."""
    if (folder / SETTINGS).exists() or (folder / "run.jsonl").exists():
        raise ValueError(f"{folder} holds a run: go on with --resume, or choose another folder with --out")
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / PLAN, kept.plan.json() + "\n")
    write_whole(folder / SETTINGS, kept.json())


def refuse_another_run(folder: Path, now: Kept) -> None:
    """Refuse to go on with another plan, model or data than a folder's run has."""
    kept = Kept.read(folder)
    here = parsed(now.json())
    differences = now.settings.differences(kept.settings)
    differences += [f"model: {text}" for text in _differences(here["model"], kept.model)]
    differences += [f"data: {text}" for text in _differences(here["data"], kept.data)]
    if not differences:  # a plan of a file, or another version's numbers
        differences = [f"plan: {path} is {b} here, {a} there" for path, a, b in kept.plan.diff(now.plan).entries]
    if differences:
        more = f", and {len(differences) - _MOST} more" if len(differences) > _MOST else ""
        raise ValueError(f"{folder} holds another run: {'; '.join(differences[:_MOST])}{more}")


def _differences(here: Mapping[str, Any], there: Mapping[str, Any]) -> list[str]:
    return [
        f"{name} is {here.get(name, 'not given')} here, {there.get(name, 'not given')} there"
        for name in {**here, **there}
        if here.get(name) != there.get(name)
    ]


def inner(module: nn.Module) -> nn.Module:
    """The model inside DDP's wrapper."""
    held = getattr(module, "module", None)
    return held if isinstance(held, nn.Module) else module
