"""The examples of hosts: nanoGPT's trains, the others build, fill and group a model of the real framework."""

from __future__ import annotations

import os
import re
import subprocess
import sys
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


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the frameworks are made for Linux")
@pytest.mark.parametrize("example", HOSTS)
def test_the_others_run(example: str) -> None:
    run = running(example)
    # Width 32 to 64 from lr 4e-3 and weight decay 0.1: hidden matrices get half of one and twice the other.
    assert "lr 0.002, eps 2.5e-09, weight decay 0.2" in run.stdout, run.stderr
    assert "experts start equal: True" in run.stdout
    assert run.returncode == 0


@pytest.mark.parametrize(("example", "package"), HOSTS.items())
def test_where_their_host_is_missing_they_say_so(example: str, package: str) -> None:
    code = f"import runpy, sys; sys.modules[{package!r}] = None; runpy.run_path(sys.argv[1], run_name='__main__')"
    run = running(example, "-c", code)
    assert run.returncode == 0, run.stderr
    assert re.fullmatch(rf"{package} is not installed: pip install \S+==[\d.]+, then run .*\n", run.stdout)


def running(example: str, *options: str) -> subprocess.CompletedProcess[str]:
    # OLMo-core imports its downloader at once, which brings cloud clients along.
    paths = [EXAMPLES, Path(__file__).parent / "without_downloads"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    command = [sys.executable, *options, str(EXAMPLES / f"{example}.py")]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment)
