"""``./dev fuzz``: breaks what commands read with fresh seeds for some minutes, and prints each failure once."""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
import warnings
from collections import Counter
from itertools import cycle
from pathlib import Path
from random import SystemRandom
from tempfile import TemporaryDirectory

# Before anything imports torch or transformers, which read them once.
os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}

from tests.fuzz.cases import Kind, tried
from tests.fuzz.kinds import KINDS

_EVERY = 30.0  # seconds between two lines that say how far it is
_MEMORY = 12 * 2**30  # bytes of addresses: a case that asks for more is found, and does not end the machine


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="how long (default 10)")
    parser.add_argument("--kind", choices=KINDS, help="one kind alone (default: all in turn)")
    parser.add_argument("--seed", type=int, help="one seed alone, to see a failure again")
    flags = parser.parse_args()
    kinds = [KINDS[flags.kind]] if flags.kind else list(KINDS.values())
    warnings.simplefilter("error")  # as in the tests
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    with TemporaryDirectory() as name:
        if flags.seed is not None:
            return _once(kinds, flags.seed, Path(name) / "case")
        try:
            return _for_seconds(60 * flags.minutes, kinds, Path(name) / "case")
        except KeyboardInterrupt:
            print("stopped")
            return 130


def _once(kinds: list[Kind], seed: int, folder: Path) -> int:
    found = [failure for kind in kinds if (failure := tried(kind, seed, folder)[1]) is not None]
    print("\n\n".join(map(str, found)) or "nothing found")
    return int(bool(found))


def _for_seconds(seconds: float, kinds: list[Kind], folder: Path) -> int:
    random, started, said = SystemRandom(), time.monotonic(), 0.0
    cases, accepted, places = Counter[str](), Counter[str](), Counter[str]()
    for kind in cycle(kinds):
        outcome, failure = tried(kind, random.randrange(2**32), folder)
        cases[kind.name] += 1
        accepted[kind.name] += outcome.accepted
        if failure is not None:
            places[failure.place] += 1
            if places[failure.place] == 1:
                print(f"\n{failure}\n", flush=True)
        passed = time.monotonic() - started
        if passed - said > _EVERY or passed > seconds:
            said = passed
            counts = ", ".join(f"{name} {cases[name]} ({accepted[name]} accepted)" for name in cases)
            print(f"{passed:.0f} s: {counts}; {len(places)} failures", flush=True)
        if passed > seconds:
            return int(bool(places))
    raise AssertionError("there are no kinds")


if __name__ == "__main__":
    sys.exit(main())
