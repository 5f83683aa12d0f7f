"""``python -m tests.kills``: kills commands at random moments, and says of each whether anything differs after that."""

from __future__ import annotations

import argparse
import secrets
import shutil
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from signal import SIGINT, SIGKILL, SIGTERM

from tests.kills.harness import COMMANDS, Bench, DifferenceError, Kill, Moment
from tests.kills.training import Trainings

_WEIGHTS = {"sweep": 10, "tune": 8, "demo": 3, "report": 3}  # the demo takes seconds, and a report hardly has moments
_SIGNALS = {SIGKILL: 2, SIGTERM: 1, SIGINT: 1}
_LONGEST_SECONDS = 0.03  # after an event


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev kills", description=__doc__)
    parser.add_argument("--count", type=int, default=40, help="kills to carry out (default 40)")
    parser.add_argument("--seed", type=int, default=None, help="of the random moments (default: a new one)")
    parser.add_argument("--command", choices=[*COMMANDS, "train"], default=None, help="kill this command alone")
    parser.add_argument("--processes", type=int, default=1, help="of a run of train (default 1)")
    flags = parser.parse_args()
    seed = secrets.randbelow(10**6) if flags.seed is None else flags.seed
    started, different = time.monotonic(), 0
    folder = Path(tempfile.mkdtemp(prefix="mssp-kills-"))
    print(f"{flags.count} kills of seed {seed} in {folder}", flush=True)
    if flags.command == "train":
        return _trainings(folder, Random(seed), flags.count, flags.processes)
    with Bench(folder) as bench:
        for number in range(1, flags.count + 1):
            kill = _drawn(Random(f"{seed} {number}"), bench, flags.command)
            began = time.monotonic()
            try:
                deaths = "; ".join(map(str, bench.carry_out(kill)))
                line = f"{kill}: {deaths}; equal"
            except DifferenceError as error:
                different += 1
                line = f"DIFFERENT: {error}"
            print(f"{number:4d}  {line} ({time.monotonic() - began:.1f} s)", flush=True)
    seconds = time.monotonic() - started
    print(f"{flags.count - different} of {flags.count} kills of seed {seed} changed nothing ({seconds:.0f} s)")
    if not different:
        shutil.rmtree(folder)
    return int(different > 0)


def _trainings(folder: Path, random: Random, count: int, processes: int) -> int:
    """Kills of runs of training: each run is killed up to three times."""
    trainings, done, different = Trainings(folder, processes), 0, 0
    while done < count:
        times = min(random.randint(1, 3), count - done)
        try:
            print(f"{done + 1:4d}  " + ", then ".join(map(str, trainings.kill(random, times))) + "; equal", flush=True)
        except DifferenceError as error:
            different += 1
            print(f"{done + 1:4d}  DIFFERENT: {error}", flush=True)
        done += times
    print(f"{count} kills of train, {different} runs differ")
    return int(different > 0)


def _drawn(random: Random, bench: Bench, command: str | None) -> Kill:
    """A random kill. A quarter of them kill twice, and a quarter of those with a store have another process beside."""
    name = command or random.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
    (signal,) = random.choices(list(_SIGNALS), list(_SIGNALS.values()))
    count = 2 if random.random() < 0.25 else 1
    moments = tuple(_moment(random, name, bench) for _ in range(count))
    return Kill(name, signal, moments, beside=COMMANDS[name].store is not None and random.random() < 0.25)


def _moment(random: Random, name: str, bench: Bench) -> Moment:
    """A part of the command's time, a line of our code, an event, or soon after an event: a quarter of all each."""
    events = bench.reference(name).events
    kind = random.choice(("time", "line", "event", "after"))
    if kind == "time":
        return Moment("started", random.random())
    if kind == "line":
        line = random.choice(sorted(bench.lines(name)))
        return Moment(line, count=random.randint(1, bench.lines(name)[line]))
    event = random.choice(sorted(events.keys() - {"started"}))
    after = random.uniform(0.0, _LONGEST_SECONDS) if kind == "after" else 0.0
    return Moment(event, after, random.randint(1, events[event]))


if __name__ == "__main__":
    sys.exit(main())
