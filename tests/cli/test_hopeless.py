"""Commands that no machine can carry out are refused in one line, before anything is built, and with nothing written.

Sizes are counted first: runs, memory, and how far numbers lie from 1.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mssp.cli.commands import main

FREE = r"and cpu has [\d.]+ free"
RANGE = r"numbers to search must lie from 1e-100 to 1e\+100"
REFUSED = {
    # Numbers that floats do not hold.
    "sweep --lr-ratio 1e300": rf"8 learning rates .*--lr-ratio\) would reach 1e-\d+: {RANGE}",
    "sweep --lr-points 5000": rf"5000 learning rates .*--lr-points, --lr-ratio\) would reach 1e-\d+: {RANGE}",
    "sweep --lrs 1e300": rf".*--lrs\) would reach 1e\+300: {RANGE}",
    "tune --lr 1e-300": rf".*--lr-points.* would reach 1e-304: {RANGE}",
    "tune --lr-ratio 1e300": rf".*--lr-ratio\) would reach 1e-1802: {RANGE}",
    "tune --ratio 1e300": rf".*--ratio.* would reach 1e\+1802: {RANGE}",
    "tune --broad-ratio 1e300": rf".*--broad-ratio.* would reach 1e\+304: {RANGE}",
    "tune --aggregation-mult 1e300": rf"the aggregation multiplier would reach 1e\+300: {RANGE}",
    "tune --method random --ratio 1.0001": r"a grid of steps of 1\.0001 \(--ratio\).*: use a larger --ratio",
    # Runs.
    "tune --broad-points 1000": r"1e\+18 runs are more than the 300,000 .*1000\^6 of the broad grid \(--broad.*",
    "tune --points 100": r"3,000,000,000,746 runs .*3 x 100\^6 of fine grids \(--rounds, --points\).*",
    "tune --method random --budget 1000000000000": r"1,000,000,000,017 runs .*--budget.*",
    "tune --confirm 1000000000": r"1,000,047,617 runs .*1000000000 to confirm \(--confirm\)",
    "tune --rounds 1000000000": r"15,625,000,000,746 runs .*",
    "tune --seeds 1000000000": r"47,617,000,000,004 runs .*1000000000 seeds \(--seeds\).*",
    "tune --lr-points 10000000": r"10,047,608 runs .*10000000 learning rates \(--lr-points\).*",
    "sweep --seeds 1000000000": r"48,000,000,000 runs .*1000000000 seeds \(--seeds\)",
    "sweep --lr-points 10000000": r"240,000,000 runs .*10000000 learning rates \(--lr-points\).*",
    "demo --seeds 100000000": r"4,800,000,000 runs .*100000000 seeds \(--seeds\)",
    "demo --steps 100000000": r"100000000 steps of 50 need 5000000000 examples.*",
    "dmft --solves 100000000": r".*100,000,000 times \(--solves\), .* at most 10,000 are solved",
    "dmft --samples 100000000000": r"100,000,000,000 samples \(--samples\).* at most 10,000 are solved",
    # Memory.
    "check --widths 16 1000000": rf"size 1000000 with 3 seeds \(--seeds\), .* needs \d+\.\d GiB, {FREE}",
    "check --seeds 1000000000": rf"size 64 with 1000000000 seeds .* needs \d+\.\d GiB, {FREE}",
    "check --regime III --widths 16 10000000000000": r".*N=10000000000000,.* needs 5e\+29 GiB: no device has that much",
    "check --depths 1 1000000": r".*L=1000000,.* has 1,000,000 blocks: use 10,000 at most",
    "sweep --widths 1000000": rf"one replica of width 1000000 needs \d+\.\d GiB, {FREE}",
    "tune --width 1000000": rf"one replica of width 1000000 needs \d+\.\d GiB, {FREE}",
    "demo --widths 64 1000000": rf"size 1000000 with 6 seeds .* needs \d+\.\d GiB, {FREE}",
    "dmft --inputs 1000000000": rf"a limit for 21,000,000,000 pairs .*\(--inputs, --steps\) needs 4e\+13 GiB, {FREE}",
    "dmft --test-inputs 10000000000": rf"a limit for 210,000,000,084 pairs .* needs 4e\+15 GiB, {FREE}",
    "dmft --steps 1000000000": rf"a limit for 4,000,000,004 pairs .* needs 1e\+12 GiB, {FREE}",
    "dmft --compare 16 1000000": rf"one network of width 1000000 \(--compare\) needs [\d.]+ GiB, {FREE}",
    "dmft --compare 16 32 --seeds 1000000000": rf".*3,000,000,000 networks \(--compare, --seeds\) needs .*, {FREE}",
}


@pytest.mark.parametrize("line", REFUSED)
def test_a_hopeless_command_is_refused(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    device = [] if line.startswith("demo") else ["--device", "cpu"]
    assert main([*line.split(), *device]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(f"mssp: error: {REFUSED[line]}\n", err), err
    assert list(tmp_path.iterdir()) == []
