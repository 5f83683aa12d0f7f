"""Every benchmark runs to its end at a tiny size, so that none breaks unnoticed; nothing is timed here."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mssp.nn.experts.choice import Work
from mssp.planning.setting import Setting
from tests.planted.equations import TERMS

ROOT = Path(__file__).parent.parent
SLOW = ("check", "gpt", "hugging_face")
TINY = {"width": 64, "expert_width": 4, "experts": 4, "active": 2, "vocabulary": 32, "context": 8}


class Smoke(NamedTuple):
    """How to run a benchmark in seconds: what its command line offers, and constants of its module for the rest."""

    arguments: str = ""
    constants: Mapping[str, Any] = {}
    prints: str = ""


BENCHMARKS = {
    "check": Smoke("--widths 16 32 --regimes I --repeats 1 --device cpu", {"STEPS": 1, "SEEDS": 2}, "caught"),
    "config_plan": Smoke("--parameters 14 --repeats 1", {}, "all but probing"),
    "dmft": Smoke("--device cpu --cases I-mssp --widths I=8,16 --seeds 2 --samples 1000 --solves 2",
                  {"SOFTMAX_RATES": (0.01,), "SOFTMAX_SAMPLES": (1000,)}, "softmax gates"),
    "draws": Smoke("--numbers 1 --normals 1000", {"_WIDTH": 16}, "normals per second"),
    "faithfulness": Smoke("", {"SHRINK": [1.0, 2.0**-60]}, "scaled gradients down to"),
    "gpt": Smoke("", {"SMALL": TINY, "STEPS": 1, "COMPILER": "eager", "LAYERS": [(64, 64, 16, 64)], "TOKENS": 8},
                 "tokens per second"),
    "gradients": Smoke("--seeds 2 --steps 1", {"WIDTHS": (32, 64), "DEPTHS": (1, 2)}, "off"),
    "growth": Smoke("check --growths two --variants column --steps 1 --seeds 2 --device cpu", {}, "II, half of the"),
    "hf_check": Smoke("--families olmoe --growths II --seeds 2", {"SIZES": (32, 64)}, "with a plan"),
    "hugging_face": Smoke("", {"FAMILIES": ("olmoe",), "CHECK_WIDTHS": (64, 128), "CHECK_STEPS": 1, "BATCH": 1,
                               "TRANSFER_WIDTHS": (32, 64), "TRANSFER_STEPS": 2, "COST_WIDTH": 32}, "ms with"),
    "minimal_moe": Smoke("", {"WIDTHS": {"II": (32, 64), "III": (32, 64)}, "SEEDS": 2}, "consistent"),
    "moe": Smoke("--seconds 0 --save {folder}", {"LARGE_MATRIX": 64, "ON_CPU": [Work(16, 32, 4, 2, 8)]},
                 "HF grouped_mm"),
    "plan": Smoke("--repeats 1", {}, "of importing torch"),
    "planted": Smoke("--device cpu --regimes I --samples 400 --solves 2 --networks 4",
                     {"TERMS": dict(islice(TERMS.items(), 2))}, "of 2 found"),
    "reference": Smoke("clusters", {"STEPS": 1, "SEEDS": 1, "TUNED_WIDTH": 16}, "validation top-5"),
    "replicas": Smoke("", {"TOGETHER": 2, "TOGETHER_STEPS": 1, "TURNS": 1}, "in lockstep"),
    "router_health": Smoke("--families gpt --seeds 1", {"STEPS": 2, "PLANTED": {}}, "1 of 1 healthy runs"),
    "store": Smoke("--runs 1", {"WIDTHS": (16,), "RATES": 2, "SETTINGS": [Setting.of("mssp", "I", "sgd")]}, "resume"),
    "train": Smoke("--steps 1", {"SEQUENCE": 16, "SMALL": {"width": 16, "expert_width": 4, "experts": 4, "depth": 2,
                                                           "head": 16, "vocabulary": 256}}, "time over plain"),
    "tuning": Smoke("clusters mssp sgd 4 1", {"STEPS": 1, "TUNED_WIDTH": 16, "POINTS": 1, "BROAD_POINTS": 1}, "grid"),
    "walks": Smoke("--walks rate run", {"SMALL": "--widths 16 32 --regime II --optimizer sgd --seeds 2 --device cpu"},
                   "functions"),
}  # fmt: skip


def test_every_benchmark_is_run_here() -> None:
    files = sorted((ROOT / "benchmarks").glob("bench_*.py"))
    assert [path.stem.removeprefix("bench_") for path in files] == list(BENCHMARKS)


@pytest.mark.filterwarnings("default")  # benchmarks of what is not planned, and of torch.compile, come with warnings
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in BENCHMARKS]
)
def test_a_benchmark_runs_to_its_end(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    smoke = BENCHMARKS[name]
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)  # sizes for a CPU, whatever this machine has
    module = importlib.import_module(f"benchmarks.bench_{name}")
    for constant, value in smoke.constants.items():
        assert hasattr(module, constant), constant
        monkeypatch.setattr(module, constant, value)
    monkeypatch.setattr("sys.argv", [f"bench_{name}.py", *smoke.arguments.format(folder=tmp_path).split()])
    module.main()
    assert smoke.prints in capsys.readouterr().out
