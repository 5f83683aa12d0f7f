"""What comes from elsewhere: no command uses the network unasked, and locked versions with advisories are named."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]

# Every way out of the process fails, and is told of at the end, since a library may go on without its answer.
OFFLINE = """
import socket, sys
attempts = []

def refuse(*arguments, **named):
    attempts.append(arguments[-2:])
    raise OSError("no network")

for name in ("connect", "connect_ex", "sendto"):
    setattr(socket.socket, name, refuse)
for name in ("create_connection", "getaddrinfo", "gethostbyname"):
    setattr(socket, name, refuse)
from mssp.cli.commands import main
code = main(sys.argv[1:])
sys.exit(f"it tried to reach {attempts}" if attempts else code)
"""
_SIZES = "--target.width 64 --target.expert-width 32 --target.experts 8 --target.active 8 --target.depth 2"
_TINY = "--multipliers ones --device cpu --steps 2 --batch 10 --seeds 1"
COMMANDS = {
    "plan": f"plan {_SIZES} --regime III --lr 0.01",
    "configs": "plan --lr 0.01 --base-config small.json --target-config large.json --by-name --json",
    "explain": "explain router --regime II",
    "sweep": f"sweep --widths 16 --lrs 0.5 --validation 10 {_TINY}",
    "check": f"check --widths 16 32 {_TINY}",
}


def config(width: int) -> dict[str, Any]:
    return {
        "model_type": "olmoe", "hidden_size": width, "intermediate_size": width // 2, "num_experts": width // 8,
        "num_experts_per_tok": width // 16, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 50,
    }  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_uses_the_network_unasked(name: str, tmp_path: Path) -> None:
    for size, width in (("small", 32), ("large", 64)):
        (tmp_path / f"{size}.json").write_text(json.dumps(config(width)), encoding="utf-8")
    asked_to_be_offline = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
    environment = {key: value for key, value in os.environ.items() if key not in asked_to_be_offline}
    command = [sys.executable, "-c", OFFLINE, *COMMANDS[name].split()]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    assert "it tried to reach" not in done.stderr


def test_an_attempt_is_seen(tmp_path: Path) -> None:
    attempt = "try: socket.create_connection(('localhost', 9))\nexcept OSError: pass\n"
    code = OFFLINE.replace("from mssp", f"{attempt}from mssp")
    command = [sys.executable, "-c", code, *COMMANDS["explain"].split()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "it tried to reach" in done.stderr


# -- the audit of the lock ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def audit() -> Any:
    spec = importlib.util.spec_from_file_location("audit", ROOT / ".ci" / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def answer(monkeypatch: pytest.MonkeyPatch, audit: Any, text: str) -> None:
    done = subprocess.CompletedProcess([], 1, text, "")
    monkeypatch.setattr(audit.subprocess, "run", lambda *arguments, **named: done)


def test_a_locked_version_with_an_advisory_fails(
    audit: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"id": "PYSEC-1", "fix_versions": ["1.2", "1.1.9"], "aliases": [], "description": ""}
    dependencies = [
        {"name": "sound", "version": "1.0", "vulns": []},
        {"name": "broken", "version": "1.1", "vulns": [found]},
        {"name": "unknown", "skip_reason": "not found"},
    ]
    answer(monkeypatch, audit, json.dumps({"dependencies": dependencies}))
    assert audit.main(["a.lock"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "audit: 2 of 3 locked packages were held against the registry's advisories",
        "audit: broken 1.1: PYSEC-1, mended in 1.2, 1.1.9",
    ]


@pytest.mark.parametrize("text", ["", "no network", '{"dependencies": [{"name": "torch", "skip_reason": "x"}]}'])
def test_that_nothing_was_audited_is_said(
    text: str, audit: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, audit, text)
    assert audit.main(["a.lock"]) == 0
    assert capsys.readouterr().out.startswith("audit: nothing was audited, since ")
