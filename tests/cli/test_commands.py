from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import mssp
from mssp.cli import main
from mssp.cli.explain import ExplainCommand

SIZES = ["width", "expert-width", "experts", "active", "depth"]
BASE = [256, 128, 8, 4, 8]
TARGET = [2048, 1024, 64, 32, 8]


def flags(which: str, sizes: list[int]) -> list[str]:
    return [word for name, size in zip(SIZES, sizes, strict=True) for word in (f"--{which}.{name}", str(size))]


STEP = [*flags("target", TARGET), *flags("base", BASE), "--lr", "4e-3"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    out, err = capsys.readouterr()
    return code, out, err


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("mssp: error: ")
    return err.removeprefix("mssp: error: ").strip()


def test_plan_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "plan", *STEP, "--weight-decay", "0.1", "--json")
    assert (code, err) == (0, "")
    base, target = (mssp.Shape(*sizes) for sizes in (BASE, TARGET))
    assert mssp.Plan.from_json(out) == mssp.plan(target, base, lr=4e-3, weight_decay=0.1)


def test_every_flag_reaches_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    options = (
        "--scheme mup --optimizer adam --regime III --eps 1e-6 --init-std 0.02 router=0.1 --init-mult 0.5 "
        "--lr-mult router=2 --lr-mult expert_out=0.25 --aggregation-mult 8 --readout mup --grad-scale "
        "--recipe.betas 0.9 0.95 --recipe.batch 512 --recipe.steps 10 --recipe.warmup 2 "
        "--target.inputs 12 --base.inputs 3"
    )
    code, out, _ = run(capsys, "plan", *STEP, *shlex.split(options), "--json")
    assert code == 0
    data = json.loads(out)
    assert data["scheme"] == "mup"
    assert data["optimizer"] == "adam"
    assert data["eps"] == 1e-6
    assert data["init_std"] == {"all": 0.02, "router": 0.1}
    assert data["init_mult"] == {"all": 0.5}
    assert data["lr_mult"] == {"expert_out": 0.25, "router": 2.0}
    assert data["aggregation_mult"] == 8.0
    assert data["readout"] == "mup"
    assert data["grad_scale"] is True
    assert data["recipe"] == {"betas": [0.9, 0.95], "batch": 512, "steps": 10, "warmup": 2}
    assert (data["target"]["inputs"], data["base"]["inputs"]) == (12, 3)
    printed = run(capsys, "plan", *STEP, "--optimizer", "sgd", "--as-printed", "--json")[1]
    assert json.loads(printed)["roles"]["norm"]["power"]["lr"] == {"N": "1"}


def test_plan_prints_a_table_and_markdown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "plan", *STEP)[1].startswith("MSSP, Regime III, AdamW\n")
    assert "| role | init std |" in run(capsys, "plan", *STEP, "--markdown")[1]


def test_warnings_go_to_stderr_and_into_the_json(capsys: pytest.CaptureFixture[str]) -> None:
    ignored = ["--regime", "III", "--lr", "1", "--init-std", "readout=1"]
    code, out, err = run(capsys, "plan", *flags("target", BASE), *ignored, "--json")
    assert code == 0
    assert err.startswith("mssp: warning: init_std of readout has no effect")
    assert json.loads(out)["warnings"][0] in err


def test_a_plan_file_can_be_extended(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(run(capsys, "plan", *STEP, "--json")[1], encoding="utf-8")
    sizes = flags("target", [4096, 2048, 128, 64, 8])
    code, out, _ = run(capsys, "plan", "--extend", str(file), *sizes, "--json")
    assert code == 0
    assert json.loads(out)["roles"]["hidden"]["lr"] == pytest.approx(4e-3 / 16)
    assert refused(capsys, "plan", "--extend", str(file), *sizes, "--lr", "1") == (
        "--lr does not go with --extend: the plan file says it"
    )
    for flag, default in (
        ("--optimizer", "adamw"),
        ("--scheme", "mssp"),
        ("--readout", "zero"),
        ("--weight-decay", "0"),
    ):
        assert f"{flag} does not go with --extend" in refused(
            capsys, "plan", "--extend", str(file), *sizes, flag, default
        )
    file.write_text("{}", encoding="utf-8")
    assert "not a plan file" in refused(capsys, "plan", "--extend", str(file), *sizes)
    assert "--extend must be a file that is there, got" in refused(
        capsys, "plan", "--extend", str(tmp_path / "none.json"), *sizes
    )


def test_shapes_from_hugging_face_configs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    names = ["hidden_size", "moe_intermediate_size", "num_experts", "num_experts_per_tok", "num_hidden_layers"]
    files = []
    for which, sizes in (("base", BASE), ("target", TARGET)):
        file = tmp_path / f"{which}.json"
        file.write_text(json.dumps(dict(zip(names, sizes, strict=True))), encoding="utf-8")
        files += [f"--{which}-config", str(file)]
    by_config = run(capsys, "plan", *files, "--lr", "4e-3", "--json")
    assert by_config == run(capsys, "plan", *STEP, "--json")
    assert "exclude each other" in refused(capsys, "plan", *files, "--lr", "1", "--base.width", "3")
    assert "--target.inputs must be" in refused(capsys, "plan", *files, "--lr", "1", "--target.inputs", "0")
    (tmp_path / "base.json").write_text("[" * 100_000, encoding="utf-8")
    assert "base.json: " in refused(capsys, "plan", *files, "--lr", "1")
    (tmp_path / "base.json").write_text('{"hidden_size": 3}', encoding="utf-8")
    assert "base.json: the model config has no expert_width" in refused(capsys, "plan", *files, "--lr", "1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no command given: use one of demo, proxy, plan, explain"),
        (["scale"], "unknown command 'scale': use one of demo, proxy, plan, explain"),
        (["plan", *STEP, "--tarket.width", "3"], "--tarket.width, 3; perhaps you meant --target.width"),
        (["plan", *STEP, "--target.width", "12.5"], "--target.width must be a positive whole number, got 12.5"),
        (["plan", *STEP, "--target.width", "0"], "--target.width must be a positive whole number, got 0"),
        (["plan", *STEP, "--target.active", "65"], "--target: active must be at most experts"),
        (["plan", *STEP, "--lr", "fast"], "--lr must be a positive number, got 'fast'"),
        (["plan", *STEP, "--lr", "nan"], "lr must be a positive number, got nan"),
        (["plan", *STEP, "--scheme", "x"], "--scheme must be one of mssp, mup, mup-heuristic, sp, ntp, jiang, got 'x'"),
        (["plan", *STEP, "--optimizer", "lion"], "--optimizer must be one of sgd, adam, adamw, got 'lion'"),
        (["plan", *STEP, "--regime", "V"], "--regime must be one of I, II, III, any, got 'V'"),
        (
            ["plan", *STEP, "--init-std", "tiny"],
            "--init-std must be a positive number, or positive numbers by role, as router=2, got 'tiny'",
        ),
        (["plan", *STEP, "--init-std", "q=1"], "unknown role 'q' in init_std"),
        (["plan", *STEP, "--lr-mult", "3"], "--lr-mult must be positive numbers by role, as router=2, got '3'"),
        (
            ["plan", *STEP, "--lr-mult", "router=1", "router=2"],
            "--lr-mult must be one number for router, got (1.0, 2.0)",
        ),
        (
            ["plan", *STEP, "--lr-mult", "router=1", "--lr-mult", "router=2"],
            "--lr-mult must be one number for router, got (1.0, 2.0)",
        ),
        (
            ["plan", *STEP, "--init-std"],
            "--init-std must be a positive number, or positive numbers by role, as router=2, got ''",
        ),
        (["plan", *STEP, "--base.inputs", "9"], "the base has inputs 9: say the target's too"),
        (["plan", *STEP, "--weight-decay", "some"], "--weight-decay must be a number of at least 0, got 'some'"),
        (
            ["plan", *STEP, "--target.width", "1" + "0" * 320],
            "--target.width must be a positive whole number, got a number of 321",
        ),
        (["plan", *STEP, "--optimizer", "sgd", "--lr", "1e308", "--json"], "comes to inf: outside the range"),
        (["plan", "--extend", "", *flags("target", TARGET)], "--extend must be a file that is there, got ''"),
        (["--json", "plan"], "unknown command '--json': use one of demo, proxy, plan"),
        (["demo", "--steps", "1.5"], "--steps must be a positive whole number, got 1.5"),
        (["plan", *STEP, "--recipe.betas", "0.9", "x"], "--recipe.betas must be two numbers in [0, 1), got (0.9, 'x')"),
        (["plan", *STEP, "--json", "--markdown"], "--json and --markdown exclude each other"),
        (["plan", *flags("target", TARGET), "--lr", "1"], "regime cannot be inferred: there is no base"),
        (["plan", "--lr", "1"], "--target.width is missing: all of width, expert-width"),
        (["plan", "--lr", "1", "--target.width", "8"], "--target.expert-width is missing"),
        (["plan", *flags("target", TARGET)], "--lr is missing"),
        (["explain"], "ROLE"),
        (["explain", "gate"], "ROLE must be one of embedding, norm, qk_norm"),
        (["demo", "--steps", "0"], "--steps must be a positive whole number, got 0"),
    ],
)
def test_mistakes_get_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert message in refused(capsys, *arguments)


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "explain", "expert_out", "--regime", "II")
    assert code == 0
    assert "M¹ᐟ²N_e⁻¹ᐟ²" in out
    assert json.loads(run(capsys, "explain", "router", "--json")[1])["role"] == "router"
    assert "| MSSP |" in run(capsys, "explain", "router", "--markdown")[1]


def test_help_fits_a_screen(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert left.value.code == 0
    out = capsys.readouterr().out
    assert all(command in out for command in ("plan", "explain", "demo"))
    assert out.count("\n") < 40


# -- commands that are stopped -----------------------------------------------------------------------------------------

Doing = Callable[[Callable[[], None]], None]  # takes what `mssp explain` does instead of what it does


@pytest.fixture
def doing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Doing]:
    """With the handlers of signals that a Python program starts with, whatever pytest has made of them."""

    def do(act: Callable[[], None]) -> None:
        def run(_: ExplainCommand) -> int:
            act()
            return 0

        monkeypatch.setattr(ExplainCommand, "run", run)

    defaults: dict[signal.Signals, Any] = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
    before = {number: signal.signal(number, handler) for number, handler in defaults.items()}
    yield do
    for number, old in before.items():
        signal.signal(number, old)


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_stopped_command_says_how_to_go_on(
    number: signal.Signals, expected: int, capsys: pytest.CaptureFixture[str], doing: Doing
) -> None:
    doing(lambda: signal.raise_signal(number))
    assert run(capsys, "explain", "router") == (expected, "", "mssp: stopped: run the same command again\n")
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_stopped_sweep_says_where_its_runs_are(
    number: signal.Signals,
    expected: int,
    capsys: pytest.CaptureFixture[str],
    doing: Doing,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr("mssp.sweep.execution.train_trials", lambda *_: signal.raise_signal(number))
    monkeypatch.chdir(tmp_path)
    words = "sweep --widths 16 --lr-points 2 --multipliers ones --device cpu --steps 8 --batch 10 --seeds 1"
    told = "mssp: stopped: what is finished is in runs.sqlite, the same command goes on\n"
    assert run(capsys, *words.split()) == (expected, "", told)


def test_signals_are_as_before_when_a_command_has_ended(capsys: pytest.CaptureFixture[str], doing: Doing) -> None:
    handlers = []
    doing(lambda: handlers.append(signal.getsignal(signal.SIGTERM)))
    assert run(capsys, "explain", "router") == (0, "", "")
    assert handlers[0] is not signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_the_handler_of_a_program_that_calls_main_stays(capsys: pytest.CaptureFixture[str], doing: Doing) -> None:
    caught = []

    def handler(number: int, _: FrameType | None) -> None:
        caught.append(number)

    signal.signal(signal.SIGTERM, handler)
    doing(lambda: signal.raise_signal(signal.SIGTERM))
    assert run(capsys, "explain", "router") == (0, "", "")
    assert caught == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is handler


def test_a_program_that_ignores_sigterm_goes_on_to_do_so(capsys: pytest.CaptureFixture[str], doing: Doing) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    doing(lambda: signal.raise_signal(signal.SIGTERM))
    assert run(capsys, "explain", "router") == (0, "", "")
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


def test_a_command_in_a_thread_leaves_signals_alone(capsys: pytest.CaptureFixture[str], doing: Doing) -> None:
    handlers = []
    doing(lambda: handlers.append(signal.getsignal(signal.SIGTERM)))
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(run, capsys, "explain", "router").result() == (0, "", "")
    assert handlers == [signal.SIG_DFL]


def test_a_second_sigterm_ends_a_command_at_once() -> None:
    program = """
import signal
from mssp.cli import main
from mssp.cli.explain import ExplainCommand

def run(command):
    try:
        signal.raise_signal(signal.SIGTERM)
    except KeyboardInterrupt:
        print("stopping takes long", flush=True)
        signal.raise_signal(signal.SIGTERM)
        print("too long", flush=True)

ExplainCommand.run = run
main(["explain", "router"])
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGTERM, "stopping takes long\n", "")


def test_a_long_word_or_a_strange_one_of_the_user_does_not_spoil_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Names of files and words stand in the messages of the system and of tyro as they are."""
    for words in (["report", "1" * 4300], ["explain", "router", "2" * 4300], ["plan", *["--lr", "3"] * 300, "4"]):
        assert len(refused(capsys, *words)) <= 501
    assert refused(capsys, "report", "1" * 4300).endswith("1: File name too long")
    assert refused(capsys, "report\x1b[31m\u202e").startswith(r"unknown command 'report\x1b[31m\u202e'")
    folder = "\x1b[31m\u2028no"
    assert refused(capsys, "plan", "--extend", folder).isprintable()
