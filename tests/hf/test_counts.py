"""How often things are done for a plan over two configs: counted, not timed."""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import mssp
import mssp.hf.named_plan  # what the command imports late is counted too
from mssp.apply.description import describe
from mssp.cli import main
from mssp.hf.probing import Probed, _state, neutral_gain
from tests.hf.tiny_models import BASE, config_of

DEPTHS = 4, 8


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Calls of some functions, whichever module of the package they are called from."""
    calls: Counter[str] = Counter()

    def counting(name: str, function: Any) -> Any:
        def call(*args: Any, **settings: Any) -> Any:
            calls[name] += 1
            return function(*args, **settings)

        return call

    for name, module in list(sys.modules.items()):
        for wanted in ("read_config", "on_meta", "neutral_gain", "gates_of", "name_cleaner"):
            if name.startswith("mssp.") and wanted in vars(module):
                monkeypatch.setattr(module, wanted, counting(wanted, vars(module)[wanted]))
    monkeypatch.setattr(re, "compile", counting("regex", re.compile))
    return calls


def plan_of_depth(folder: Path, depth: int) -> None:
    flags = []
    for which, width in (("base", 64), ("target", 128)):
        file = folder / f"{which}-{depth}.json"
        config = config_of("olmoe", mssp.Shape(width, width // 2, width // 16, width // 32, depth))
        file.write_text(json.dumps(config.to_dict()), encoding="utf-8")
        flags += [f"--{which}-config", str(file)]
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(["plan", *flags, "--lr", "0.01"]) == 0


def test_each_config_is_read_once_and_built_once(counted: Counter[str], tmp_path: Path) -> None:
    plan_of_depth(tmp_path, DEPTHS[0])
    assert (counted["read_config"], counted["on_meta"]) == (2, 2)


def test_norms_and_routers_that_are_alike_run_once_and_names_are_read_as_often_at_any_depth(
    counted: Counter[str], tmp_path: Path
) -> None:
    counts = []
    for depth in DEPTHS:
        counted.clear()
        plan_of_depth(tmp_path, depth)
        counts.append([counted[each] for each in ("neutral_gain", "gates_of", "name_cleaner", "regex")])
    assert counts[0] == counts[1]
    assert counts[0][:2] == [2, 1]  # the norms of a width, and those of keys, which have half of it; one router


def test_no_name_becomes_a_regular_expression(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.ModuleDict({f"part{index}": nn.Linear(4, 4) for index in range(50)})
    claims = {name: "bias" for name, _ in model.named_parameters() if name.endswith("bias")}
    compiled: Counter[str] = Counter()
    kept = re.compile

    def counting(pattern: str) -> re.Pattern[str]:
        compiled[pattern] += 1
        return kept(pattern)

    monkeypatch.setattr(re, "compile", counting)
    infos = describe(model, claims | {"*.weight": mssp.ParamInfo("hidden", layout="out in")})
    assert len(infos) == 100
    assert compiled.total() == 1


def test_norms_that_may_differ_are_run_each() -> None:
    class Shifted(nn.Module):
        def __init__(self, shift: float) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(8))
            self.shift = shift

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * (self.shift + self.weight)

    neutral = Probed(neutral_gain)
    assert [neutral(Shifted(shift), "norm") for shift in (0.0, 1.0, 0.0)] == [1.0, 0.0, 1.0]
    hooked = Shifted(0.0)
    hooked.register_forward_pre_hook(lambda module, args: (args[0] * 0 + 1,))
    hooked.register_forward_hook(lambda module, args, output: output + 1)
    assert neutral(hooked, "norm") == 0.0
    around, other = Shifted(0.0), Shifted(0.0)
    around.inside, other.inside = nn.Dropout(0.5), nn.Dropout(0.5)
    assert [neutral(around, "norm"), neutral(other, "norm")] == [1.0, 1.0]
    other.inside.register_forward_hook(lambda module, args, output: output)
    assert (_state(around), _state(other)) == (_state(around), None)


def test_a_config_that_is_base_and_target_is_built_as_if_read_twice(counted: Counter[str], tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config_of("olmoe", BASE).to_dict()), encoding="utf-8")
    flags = ["--base-config", str(file), "--target-config", str(file), "--lr", "0.01", "--regime", "III"]
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(["plan", *flags]) == 0
    assert (counted["read_config"], counted["on_meta"]) == (1, 2)
