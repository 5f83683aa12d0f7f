"""How long ``mssp plan --json`` takes, as a share of what importing torch alone takes.

    ./dev bench plan

Both are whole processes, run in turns; medians.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

SIZES = "--{0}.width {1} --{0}.expert-width {1} --{0}.experts {2} --{0}.active {2} --{0}.depth 8"
PLAN = f"plan {SIZES.format('target', 1024, 32)} {SIZES.format('base', 256, 8)} --lr 4e-3 --json".split()
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "mssp plan --json": [sys.executable, "-m", "mssp", *PLAN],
    "import torch": [sys.executable, "-c", "import torch"],
}


def seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args(arguments)
    taken: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(options.repeats):
        for name, command in COMMANDS.items():
            taken[name].append(seconds(command))
    medians = {name: statistics.median(times) for name, times in taken.items()}
    for name, median in medians.items():
        print(f"{name:<18} {median * 1000:7.0f} ms   {median / medians['import torch']:6.2f} of importing torch")


if __name__ == "__main__":
    main()
