"""The examples of hosts: nanoGPT's trains; the others run where their host is installed, and say so where it is not."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import nanogpt_moe

EXAMPLES = Path(nanogpt_moe.__file__).parent
HOSTS = {"torchtitan_moe": "torchtitan", "megatron_moe": "megatron", "olmo_core_moe": "olmo_core"}


@pytest.mark.slow
def test_the_hand_written_loop_carries_its_hyperparameters(capsys: pytest.CaptureFixture[str]) -> None:
    nanogpt_moe.main()
    final = [float(found) for found in re.findall(r"-> ([\d.]+),", capsys.readouterr().out)]
    assert len(final) == 3
    assert max(final) < 3.0  # from log(256) = 5.55
    assert final[2] < final[0]


@pytest.mark.parametrize(("example", "package"), HOSTS.items())
def test_the_others_run_or_say_what_is_missing(example: str, package: str) -> None:
    run = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{example}.py")], capture_output=True, text=True, check=False, timeout=300
    )
    assert run.returncode == 0, run.stderr
    if find_spec(package) is None:
        assert re.fullmatch(rf"{package} is not installed: pip install \S+==[\d.]+, then run .*\n", run.stdout)
    else:
        # Width 32 to 64 from lr 4e-3 and weight decay 0.1: hidden matrices get half of one and twice the other.
        assert "lr 0.002, eps 2.5e-09, weight decay 0.2" in run.stdout
        assert "experts start equal: True" in run.stdout
