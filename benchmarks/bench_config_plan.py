"""How long ``mssp plan`` takes over two configs of many parameters, beyond imports and probing.

    ./dev bench config_plan
    ./dev bench config_plan --parameters 500 1000 2000
    ./dev bench config_plan --released

With ``--released`` the models are Qwen3-235B and DeepSeek-V3, each with a base of a quarter of its width, and the whole
command is compared with importing torch and the model's own file, both in processes of their own, turn by turn.

The model is a Qwen3-MoE with eleven parameters in each layer, and plans are printed to nowhere. Time is told apart by
what is done, each part without the parts inside it: reading configs, building models without memory, describing their
parameters, planning (what remains: the rules, the factors, the table), and probing (norms and routers that run once).
Medians.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM  # noqa: F401 (loads them now)

from mssp.cli import main as mssp_main

PER_LAYER, OUTSIDE = 11, 3
# The functions that do each part, by name, wherever the package keeps them.
PARTS = {
    "reading": ("read_config", "sizes_of", "outside_the_paper"),
    "building": ("config_of", "on_meta"),
    "describing": ("adapt", "described_parameters"),
    "probing": ("neutral_gain", "gates_of"),
}
COLUMNS = ("reading", "building", "describing", "planning", "probing")


def config(depth: int, size: int) -> dict[str, Any]:
    return {
        "model_type": "qwen3_moe", "hidden_size": 64 * size, "intermediate_size": 128 * size,
        "moe_intermediate_size": 32 * size, "num_experts": 8 * size, "num_experts_per_tok": 2 * size,
        "num_hidden_layers": depth, "num_attention_heads": 4 * size, "num_key_value_heads": 2 * size, "head_dim": 16,
        "vocab_size": 256,
    }  # fmt: skip


class Stopwatch:
    """Seconds by part; a part stops while a part inside it runs."""

    def __init__(self) -> None:
        self.taken: Counter[str] = Counter()
        self._running = ["planning"]
        self._since = time.perf_counter()

    def _turn(self) -> None:
        now = time.perf_counter()
        self.taken[self._running[-1]] += now - self._since  # type: ignore[assignment] # seconds, not counts
        self._since = now

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*args: Any, **settings: Any) -> Any:
            self._turn()
            self._running.append(part)
            try:
                return function(*args, **settings)
            finally:
                self._turn()
                self._running.pop()

        return run

    def stop(self) -> None:
        self._turn()


@contextlib.contextmanager
def watched(watch: Stopwatch) -> Any:
    """Every function of ``PARTS`` is timed, under all the names by which modules of the package know it."""
    modules = [module for name, module in sys.modules.items() if name.split(".")[0] == "mssp"]
    parts = {name: part for part, names in PARTS.items() for name in names}
    replaced = []
    wrapped: dict[Any, Any] = {}
    for module in modules:
        for name, held in list(vars(module).items()):
            if name in parts and callable(held):
                replaced.append((module, name, held))
                setattr(module, name, wrapped.setdefault(held, watch.timed(parts[name], held)))
    try:
        assert {name for _, name, _ in replaced} == set(parts), "a function has another name now"
        yield
    finally:
        for module, name, held in replaced:
            setattr(module, name, held)


def planned(command: list[str]) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        assert mssp_main(command) == 0


def once(command: list[str]) -> Counter[str]:
    watch = Stopwatch()
    with watched(watch):
        watch._since = time.perf_counter()
        planned(command)
        watch.stop()
    return watch.taken


# Released models, and by what their sizes are divided for a base.
RELEASED = ("qwen3-235b", "deepseek-v3")
DIVIDED = (
    "hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size", "moe_intermediate_size",
    "q_lora_rank", "kv_lora_rank",
)  # fmt: skip
PAIRS = Path(__file__).parents[1] / "tests" / "hf" / "pairs"


def seconds_of(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, *command], check=True, capture_output=True)
    return time.perf_counter() - start


def released(repeats: int) -> None:
    """Seconds of ``mssp plan``, and of importing torch and the file of the model's family."""
    print(f"{'model':>12}{'import':>9}{'plan':>9}{'ratio':>9}")
    for name in RELEASED:
        target = PAIRS / name / "target.json"
        content = json.loads(target.read_text(encoding="utf-8"))
        small = content | {key: content[key] // 4 for key in DIVIDED if key in content}
        family = content["model_type"]
        with tempfile.TemporaryDirectory() as folder:
            base = Path(folder) / "base.json"
            base.write_text(json.dumps(small), encoding="utf-8")
            plan = ["-m", "mssp", "plan", "--base-config", str(base), "--target-config", str(target), "--lr", "4e-3"]
            load = ["-c", f"import torch, transformers.models.{family}.modeling_{family}"]
            seconds_of(plan)  # reads all files once
            runs = [(seconds_of(load), seconds_of(plan)) for _ in range(repeats)]
        loaded, planned_in = (statistics.median(column) for column in zip(*runs, strict=True))
        print(f"{name:>12}{loaded:9.2f}{planned_in:9.2f}{planned_in / loaded:9.2f}", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--parameters", type=int, nargs="+", default=[500, 1000, 2000])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--released", action="store_true")
    options = parser.parse_args(arguments)
    if options.released:
        released(options.repeats)
        return
    versions = f"transformers {transformers.__version__}, torch {torch.__version__}"
    print(f"{versions}; milliseconds, medians of {options.repeats}")
    print(f"{'parameters':>10}" + "".join(f"{name:>12}" for name in COLUMNS) + f"{'all but probing':>18}")
    for parameters in options.parameters:
        depth = max(1, round((parameters - OUTSIDE) / PER_LAYER))
        with tempfile.TemporaryDirectory() as folder:
            files = [Path(folder) / f"{which}.json" for which in ("base", "target")]
            for size, file in enumerate(files, 1):
                file.write_text(json.dumps(config(depth, size)), encoding="utf-8")
            command = ["plan", "--base-config", str(files[0]), "--target-config", str(files[1]), "--lr", "4e-3"]
            planned(command)  # what is imported and compiled once
            runs = [once(command) for _ in range(options.repeats)]
        medians = {name: 1000 * statistics.median(run[name] for run in runs) for name in COLUMNS}
        rest = 1000 * statistics.median(sum(run.values()) - run["probing"] for run in runs)
        numbers = "".join(f"{medians[name]:12.0f}" for name in COLUMNS)
        print(f"{OUTSIDE + PER_LAYER * depth:>10}{numbers}{rest:18.0f}", flush=True)


if __name__ == "__main__":
    main()
