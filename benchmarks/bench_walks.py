"""How many files and functions of the package a number passes on three walks (docs/architecture.md).

    ./dev bench walks
    ./dev bench walks --walks rate
    PYTHONPATH=OTHER/src ./dev bench walks      # those of another checkout

Each walk is a few commands or calls that a user makes. A function is counted once, however often it is called. What
runs only while modules are imported is left out.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import mssp
import mssp.hf
from mssp.cli import main as mssp_main

PACKAGE = f"{Path(mssp.__file__).parent}/"
OPTIMISED = 0x1  # a code flag that functions have, and bodies of modules and classes do not
SMALL = "--regime II --optimizer sgd --widths 32 64 --seeds 2 --data clusters --device cpu"


def command(words: str) -> str:
    """What a command of mssp prints; a failed verdict is a result too."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        code = mssp_main(words.split())
    assert code in (0, 1), words
    return printed.getvalue()


def config(size: int) -> dict[str, Any]:
    """An OLMoE of two layers, as a config.json."""
    return {
        "model_type": "olmoe", "hidden_size": 64 * size, "intermediate_size": 32 * size, "num_experts": 8 * size,
        "num_experts_per_tok": 8 * size, "num_hidden_layers": 2, "num_attention_heads": 4 * size,
        "num_key_value_heads": 4 * size, "vocab_size": 256, "pad_token_id": 0, "eos_token_id": 1,
    }  # fmt: skip


def learning_rate() -> Callable[[], None]:
    """From the flag ``--lr`` to a group of an optimizer."""
    from transformers import AutoModelForCausalLM, OlmoeConfig

    for name, size in (("base", 1), ("target", 2)):
        Path(f"{name}.json").write_text(json.dumps(config(size)), encoding="utf-8")
    model = AutoModelForCausalLM.from_config(OlmoeConfig(**config(2)))

    def walk() -> None:
        plan = mssp.Plan.from_json(command("plan --base-config base.json --target-config target.json --lr 4e-3 --json"))
        mssp.hf.adapt(model, "base.json")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", mssp.PlanWarning)  # of a router without a gradient: nothing is trained here
            mssp.initialize(model, plan)
        torch.optim.AdamW(mssp.param_groups(model, plan))

    return walk


def exponent() -> Callable[[], None]:
    """From a forward pass to the page of a report."""

    def walk() -> None:
        Path("check.json").write_text(command(f"check {SMALL} --steps 3 --json"), encoding="utf-8")
        command("report check.json -o report.html")

    return walk


def run() -> Callable[[], None]:
    """From the flags of a sweep to the figure of a report."""

    def walk() -> None:
        command(f"sweep {SMALL} --scheme mssp --steps 5 --lr-points 3 --store runs.sqlite")
        command("report runs.sqlite -o report.html")

    return walk


WALKS = {"rate": learning_rate, "exponent": exponent, "run": run}


def passed(walk: Callable[[], None]) -> Counter[tuple[str, str]]:
    """How often a walk calls every function of the package, by its file and its name."""
    calls: Counter[tuple[str, str]] = Counter()

    def profile(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_flags & OPTIMISED or not (code.co_filename or "").startswith(PACKAGE):
            return
        if any(word in code.co_qualname for word in ("<lambda>", "comp>", "<genexpr>")) or is_imported(frame):
            return
        calls[code.co_filename.removeprefix(PACKAGE), code.co_qualname] += 1

    sys.setprofile(profile)
    try:
        walk()
    finally:
        sys.setprofile(None)
    return calls


def is_imported(frame: FrameType) -> bool:
    """Whether a function runs because a module of the package is being imported."""
    callers = ancestors(frame)
    return any(each.f_code.co_name == "<module>" and each.f_code.co_filename.startswith(PACKAGE) for each in callers)


def ancestors(frame: FrameType) -> Iterator[FrameType]:
    caller = frame.f_back
    while caller is not None:
        yield caller
        caller = caller.f_back


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--walks", nargs="+", choices=WALKS, default=list(WALKS))
    parser.add_argument("--list", action="store_true", help="print every function")
    options = parser.parse_args(arguments)
    for name in options.walks:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            calls = passed(WALKS[name]())
        files = {file for file, _ in calls}
        print(f"{name:<10} {len(files):4} files {len(calls):5} functions {calls.total():7} calls")
        if options.list:
            print("\n".join(f"  {file}: {function} {count}" for (file, function), count in sorted(calls.items())))


if __name__ == "__main__":
    main()
