"""The choice of a path from measured times."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mssp.cli import main
from mssp.nn.experts import choice
from mssp.nn.experts.choice import Machine, Timing, Work, dumps, load, loads, save
from mssp.nn.experts.timing import Problem, grid, measure, milliseconds
from tests.nn.experts.memory import peak_bytes

SPARSE, DENSE = Work(512, 256, 64, 2, 64), Work(512, 256, 64, 64, 64)
MACHINE = Machine(
    "cpu", "cpu", "float32", "today",
    [Timing(SPARSE, {"dense": 32.0, "grouped": 2.0}), Timing(DENSE, {"dense": 32.0, "grouped": 64.0})],
)  # fmt: skip


def test_operations_by_hand() -> None:
    # Two products forward, four backward, two operations each.
    assert SPARSE.operations("grouped") == 12 * 512 * 2 * 256 * 64
    assert SPARSE.operations("dense") == 12 * 512 * 64 * 256 * 64
    # Three matrices instead of two.
    assert Work(1, 1, 1, 1, 1, gated=True).operations("loop") == 18


def test_the_fastest_is_predicted_from_the_nearest_shapes() -> None:
    assert MACHINE.predicted(SPARSE, "grouped") == pytest.approx(2.0, rel=0.01)
    assert MACHINE.best(SPARSE, ["dense", "grouped"]) == "grouped"
    assert MACHINE.best(DENSE, ["dense", "grouped"]) == "dense"
    assert MACHINE.best(Work(1024, 256, 64, 2, 64), ["dense", "grouped"]) == "grouped"
    # Twice the tokens, twice the operations at the same slowness.
    assert MACHINE.predicted(Work(1024, 256, 64, 2, 64), "grouped") == pytest.approx(4.0, rel=0.05)
    assert MACHINE.predicted(SPARSE, "triton") == math.inf


def test_prices_are_found_again() -> None:
    """Times made of known prices: a call 0.5 ms, an expert 0.01, an operation 1e-9, no price for numbers moved."""
    works = [Work(T, N, M, K, E) for T in (32, 512) for N in (64, 256) for M, K in ((8, 2), (64, 4)) for E in (16, 128)]
    timings = [Timing(w, {"grouped": 0.5 + 0.01 * w.experts + 1e-9 * w.operations("grouped")}) for w in works]
    machine = Machine("cpu", "cpu", "float32", "", timings)
    assert machine._prices["grouped"] == pytest.approx([0.5, 0.01, 1e-9, 0.0, 0.0], rel=1e-6, abs=1e-15)
    # Far from every measured shape the model still holds.
    tiny = Work(1, 8, 128, 1, 8)
    assert machine.predicted(tiny, "grouped") == pytest.approx(0.5 + 1.28, rel=1e-3)


def test_regrets_leave_out_the_shape_itself() -> None:
    near = Timing(Work(512, 256, 64, 4, 64), {"dense": 32.0, "grouped": 4.0})
    assert Machine("cpu", "cpu", "float32", "", [*MACHINE.timings, near]).regrets()[0] == 0.0
    # From the other shape alone, the sparse one would run dense, at 16 times its best.
    slow = Timing(DENSE, {"dense": 1.0, "grouped": 1000.0})
    wrong = Timing(SPARSE, {"dense": 32.0, "grouped": 2.0})
    assert Machine("cpu", "cpu", "float32", "", [slow, wrong]).regrets() == [0.0, 15.0]


def test_tables_round_trip() -> None:
    assert loads(dumps([MACHINE]), "") == [MACHINE]


def test_the_package_knows_a_gpu_and_a_cpu() -> None:
    machines = {(machine.device, machine.dtype): machine for machine in choice.table()}
    assert {("cuda", "bfloat16"), ("cuda", "float32"), ("cpu", "float32")} <= machines.keys()
    for machine in machines.values():
        assert len(machine.timings) >= 50
        assert sum(machine.regrets()) / len(machine.timings) < 0.02


@pytest.mark.parametrize(
    ("work", "path"),
    [
        (Work(8192, 1024, 128, 64, 32), "dense"),
        (Work(8192, 2048, 256, 128, 32), "dense"),
        (Work(8192, 1024, 32, 16, 512), "grouped"),
        (Work(8192, 2048, 256, 8, 64), "triton"),
        (Work(8192, 2048, 64, 8, 1024), "grouped"),
    ],
)
def test_the_benchmark_shapes_take_their_fastest_path(work: Work, path: str) -> None:
    """As they are, and as the sizes that stand for them, compiled and not."""
    h200 = next(machine for machine in choice.table() if machine.dtype == "bfloat16")
    for tokens in (8192, choice.about(8192), choice.about(8192, step=16)):
        assert h200.best(replace(work, tokens=tokens), ["dense", "grouped", "triton"]) == path


def test_another_table_is_read_where_the_variable_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inverted = Timing(SPARSE, {"dense": 1.0, "grouped": 1000.0, "loop": 1000.0})
    save(tmp_path / "table.json", [Machine("cpu", "cpu", "float32", "", [inverted])])
    monkeypatch.setenv(choice.VARIABLE, str(tmp_path / "table.json"))
    for cached in (choice.table, choice._looked_up):
        cached.cache_clear()
    sizes = ("cpu", None, False, 512, 256, 64, 2, 64, False, ("dense", "grouped", "loop"))
    assert choice.fastest(*sizes) == "dense"
    monkeypatch.delenv(choice.VARIABLE)
    for cached in (choice.table, choice._looked_up):
        cached.cache_clear()
    assert choice.fastest(*sizes) == "grouped"


def test_a_missing_table_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(choice.VARIABLE, "/nowhere/table.json")
    choice.table.cache_clear()
    with pytest.raises(ValueError, match=r"MSSP_DISPATCH_TABLE names /nowhere/table.json, which is no file"):
        choice.table()


def test_an_unknown_device_gets_the_path_that_runs_everywhere() -> None:
    assert choice.fastest("mps", None, False, 512, 256, 64, 2, 64, False, ("dense", "grouped", "loop")) == "dense"


def test_sizes_that_share_an_answer() -> None:
    assert [choice.about(tokens) for tokens in (1, 2, 3, 4, 8192)] == [1, 1, 3, 3, 5793]
    assert [choice.about(tokens, step=16) for tokens in (1, 16, 17, 256, 257, 8192)] == [4, 4, 64, 64, 1024, 16384]


def test_a_table_of_impossible_times_is_refused() -> None:
    broken = dumps([MACHINE]).replace("64.0", "0.0")
    with pytest.raises(ValueError, match="a time that is not positive"):
        loads(broken, "")


def test_saving_keeps_other_devices(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    other = Machine("cuda", "A100", "bfloat16", "", MACHINE.timings)
    save(path, [other, MACHINE])
    again = Machine("cpu", "cpu", "float32", "tomorrow", MACHINE.timings)
    save(path, [again])
    assert load(path) == [other, again]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("text", ["", "[]", '{"version": 2, "machines": []}', '{"version": 1, "machines": [{}]}', "{"])
def test_a_foreign_file_is_refused_and_kept(text: str, tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"table.json: not a table of measured paths .*: `mssp dispatch` writes one"):
        save(path, [MACHINE])
    assert path.read_text() == text


def test_measuring_here() -> None:
    device = torch.device("cpu")
    machine = measure(device, torch.float32, [Work(16, 32, 4, 2, 8), Work(16, 32, 4, 2, 8, gated=True)])
    assert [set(timing.ms) for timing in machine.timings] == [{"dense", "grouped", "loop"}] * 2
    assert all(0 < ms < 1e4 for timing in machine.timings for ms in timing.ms.values())
    assert {work.gated for work in grid(device)} == {True, False}
    assert len(grid(torch.device("cuda"))) > 200


def test_peak_memory_is_counted() -> None:
    """A matrix of 1 MiB made, a second one made of it: both are held at once."""
    problem = Problem.random(Work(4, 8, 2, 1, 4), torch.device("cpu"), torch.float32)
    step = problem.step(lambda x, *_: x + (torch.ones(2**18) + 1).sum() * 0, leaves=[problem.x])
    peak = peak_bytes(step, torch.device("cpu"))
    assert 2 * 2**20 <= peak < 2.1 * 2**20


def test_times_are_medians_by_name() -> None:
    counts = {"a": 0, "b": 0}

    def count(name: str) -> tuple[torch.Tensor, ...]:
        counts[name] += 1
        return ()

    times = milliseconds({"a": lambda: count("a"), "b": lambda: count("b")}, torch.device("cpu"), seconds=0.0)
    assert counts == {"a": 5, "b": 5}  # once untimed, once to guess, three turns
    assert all(0 <= ms < 1e3 for ms in times.values())


def test_command_names_what_is_missing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["dispatch", str(tmp_path / "t.json"), "--device", "tpu"]) == 2
    assert "--device must be auto, cpu, cuda or cuda:1, got 'tpu'" in capsys.readouterr().err
    assert main(["dispatch", str(tmp_path / "no" / "t.json")]) == 2
    assert "PATH must be a file to write in a folder that is there" in capsys.readouterr().err
    foreign = tmp_path / "foreign.json"
    foreign.write_text("{}")
    assert main(["dispatch", str(foreign)]) == 2  # before anything is measured
    assert "not a table of measured paths" in capsys.readouterr().err
