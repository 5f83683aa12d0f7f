"""Whatever is broken: a command accepts it, or refuses it in one line. No traceback, no waiting, nothing half-written.

The seeds are fixed. ``./dev fuzz`` draws fresh ones.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest

from mssp.cli.explain import ExplainCommand
from tests.fuzz.cases import Case, Failure, Kind, Outcome, as_program, in_process, nothing_to_ask, tried
from tests.fuzz.kinds import KINDS
from tests.fuzz.mutations import Step

CASES, BLOCK = 200, 50
PROGRAMS = 2  # of each kind that are accepted, and as many that are refused: each takes a second to start


@pytest.mark.parametrize("first", range(0, CASES, BLOCK))
@pytest.mark.parametrize("name", KINDS)
def test_what_is_broken_is_accepted_or_refused_in_one_line(name: str, first: int, tmp_path: Path) -> None:
    ends = [tried(KINDS[name], seed, tmp_path / "case") for seed in range(first, first + BLOCK)]
    assert not (failures := [str(failure) for _, failure in ends if failure is not None]), "\n\n".join(failures)
    # Mutations that no command took, or that broke nothing, would ask nothing.
    assert 0 < sum(outcome.accepted for outcome, _ in ends) < BLOCK


@pytest.mark.parametrize("accepted", [True, False])
@pytest.mark.parametrize("name", KINDS)
def test_the_program_ends_as_the_command_does_in_this_process(name: str, accepted: bool, tmp_path: Path) -> None:
    ended = 0
    for seed in range(CASES):
        here, _ = tried(KINDS[name], seed, tmp_path / "case")
        if here.accepted != accepted:
            continue
        outcome, failure = tried(KINDS[name], seed, tmp_path / "case", as_program)
        assert failure is None, str(failure)
        assert outcome.code == here.code, seed
        if not accepted:
            assert outcome.err == here.err, seed
        ended += 1
        if ended == PROGRAMS:
            return
    pytest.fail(f"of {CASES} cases {ended} end so")


# -- the harness finds what is planted ---------------------------------------------------------------------------------

PLANTED = Step("planted", 1)


def planted(case: Case) -> Kind:
    """A kind of three steps, of which one matters."""
    steps = [Step("before", 0), PLANTED, Step("after", 2)]
    sound = Case(["explain", "router"])
    return Kind("planted", lambda _: steps, lambda _, steps, folder: case if PLANTED in steps else sound)


def found(case: Case, folder: Path, seconds: float = 20.0) -> Failure:
    _, failure = tried(planted(case), 7, folder / "case", in_process, seconds)
    assert failure is not None
    assert failure.steps == [PLANTED]
    return failure


def plant(monkeypatch: pytest.MonkeyPatch, run: Callable[[], int]) -> Case:
    """A case of which the command does something else than ``mssp explain hidden``."""
    explain = ExplainCommand.run
    monkeypatch.setattr(ExplainCommand, "run", lambda self: run() if self.role == "hidden" else explain(self))
    return Case(["explain", "hidden"])


def test_a_sound_case_is_no_failure(tmp_path: Path) -> None:
    outcome, failure = tried(planted(Case(["explain", "hidden"])), 7, tmp_path / "case")
    assert failure is None
    assert outcome.code == 0
    refused, failure = tried(planted(Case(["explain", "nobody"])), 7, tmp_path / "case")
    assert failure is None
    assert refused.code == 2


def test_a_planted_traceback_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> int:
        raise ZeroDivisionError("planted")

    failure = found(plant(monkeypatch, run), tmp_path)
    assert "ZeroDivisionError: planted" in failure.faults[0]
    assert failure.place.startswith(f"{__file__}:")
    text = str(failure)
    assert text.startswith("planted, seed 7, after 'planted'(1)\nexit code 3: Traceback")
    assert text.endswith("again: python -m tests.fuzz --kind planted --seed 7")


def test_a_planted_hang_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> int:
        try:
            time.sleep(60)
        except Exception:
            return 0
        return 0

    failure = found(plant(monkeypatch, run), tmp_path, seconds=0.3)
    assert failure.faults[0].startswith("it was stopped after 0 s")
    assert "time.sleep(60)" in failure.faults[0]


def test_whoever_stops_a_command_stops_the_harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> int:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tried(planted(plant(monkeypatch, run)), 7, tmp_path / "case")


def test_a_planted_half_written_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> int:
        Path("plan.json").write_text("{", encoding="utf-8")
        raise ValueError("the plan has no end")

    assert found(plant(monkeypatch, run), tmp_path).faults == ["it changed plan.json"]

    def leave() -> int:
        Path(".plan.json.1234.part").write_text("{", encoding="utf-8")
        return 0

    case = plant(monkeypatch, leave)
    assert found(Case(case.words, writes=[".plan*"]), tmp_path).faults == ["it left .plan.json.1234.part"]


@pytest.mark.parametrize(
    "text", ["one\nmssp: error: two\n", "mssp: error: \n", "error\n", f"mssp: error: {'x' * 600}\n"]
)
def test_a_planted_refusal_in_other_than_one_line_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    def run() -> int:
        sys.stderr.write(text)
        return 2

    assert found(plant(monkeypatch, run), tmp_path).faults == [
        f"it refused not in one line of 600 characters: {text!r}"
    ]


def test_planted_mistakes_in_python_are_found(tmp_path: Path) -> None:
    def raising(error: Exception) -> Callable[[], None]:
        def read() -> None:
            raise error

        return read

    for error, said in (
        (ValueError("one\ntwo"), "in Python: refused not in one line of 600 characters: 'one\\ntwo'"),
        (KeyError("gone"), "in Python: KeyError: Traceback"),
        (UnicodeError("half a character"), "in Python: UnicodeError: Traceback"),
        (AssertionError("other arrays"), "in Python: AssertionError: Traceback"),
    ):
        assert found(Case(["explain", "hidden"], read=raising(error)), tmp_path).faults[0].startswith(said)


def test_an_accepted_case_that_its_oracle_denies_is_found(tmp_path: Path) -> None:
    def deny(outcome: Outcome) -> None:
        assert outcome.out == "nothing"

    failure = found(Case(["explain", "hidden"], oracle=deny), tmp_path)
    assert failure.faults[0].startswith("accepted: AssertionError: Traceback")
    assert Case(["explain", "hidden"]).oracle is nothing_to_ask


def test_a_planted_traceback_and_a_planted_hang_of_the_program_are_found(tmp_path: Path) -> None:
    def run_as(text: str) -> Callable[[Sequence[str], float], Outcome]:
        return lambda words, seconds: as_program(words, seconds, ("-c", text))

    kind = Kind("planted", lambda random: [], lambda random, steps, folder: Case(["explain"], has_verdict=True))
    _, failure = tried(kind, 7, tmp_path / "case", run_as("raise RuntimeError('planted')"))
    assert failure is not None
    assert "RuntimeError: planted" in failure.faults[0]
    _, failure = tried(kind, 7, tmp_path / "case", run_as("import time; time.sleep(60)"), 0.3)
    assert failure is not None
    assert failure.faults[0].startswith("it was stopped after 0 s")


@pytest.mark.parametrize("name", KINDS)
def test_a_case_is_the_same_every_time(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    assert kind.steps(3) == kind.steps(3) != kind.steps(4)
    random_numbers: list[Random] = []

    def make(random: Random, steps: Sequence[Step], folder: Path) -> Case:
        random_numbers.append(random)
        return Case(["explain", "router"])

    same = Kind(name, kind.draw, make)
    for _ in range(2):
        same.case(3, [], tmp_path)
    assert random_numbers[0].random() == random_numbers[1].random()
