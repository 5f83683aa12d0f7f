"""Normal numbers that depend on (seed, name, index) and on nothing else.

Element i of a parameter's draw is a function of i alone: Philox is a counter, and Box-Muller turns its i-th pair of
words into the i-th pair of normals. So a shard, an expert or a replica draws its own part, in any order, and gets what
the whole would have held.

>>> bool((normals(0, "router.weight", 4, 10) == normals(0, "router.weight", 0, 10)[4:]).all())
True
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

# Philox makes four 64-bit words per counter step, each word two normals.
_NORMALS_PER_STEP = 8
# Elements made at a time: enough to amortise calls, few enough to stay in cache.
_CHUNK = 1 << 16
# Elements for which a thread of its own is worth while.
_BLOCK = 1 << 20


def normals(seed: int, name: str, start: int, stop: int) -> npt.NDArray[np.float32]:
    """Elements ``start`` to ``stop`` of the standard normal sequence that belongs to ``(seed, name)``."""
    out = np.empty(stop - start, dtype=np.float32)
    key = key_of(seed, name)
    if len(out) <= _BLOCK:
        _fill(out, key, start)
        return out
    with ThreadPoolExecutor(_threads()) as pool:  # numpy lets go of the interpreter while it computes
        blocks = range(0, len(out), _BLOCK)
        list(pool.map(lambda first: _fill(out[first : first + _BLOCK], key, start + first), blocks))
    return out


def _fill(out: npt.NDArray[np.float32], key: int, start: int) -> None:
    first_step = start // _NORMALS_PER_STEP
    skipped = start - first_step * _NORMALS_PER_STEP
    generator = np.random.Philox(key=key)
    generator.advance(first_step)
    filled = 0
    while filled < len(out):
        steps = -(-(len(out) - filled + skipped) // _NORMALS_PER_STEP)
        chunk = _box_muller(generator.random_raw(min(_CHUNK, steps * _NORMALS_PER_STEP) // 2))[skipped:]
        taken = min(len(chunk), len(out) - filled)
        out[filled : filled + taken] = chunk[:taken]
        filled, skipped = filled + taken, 0


def _threads() -> int:
    """As many as other libraries take: launchers that start many processes set OMP_NUM_THREADS."""
    threads = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(threads) if threads.isdecimal() and int(threads) else os.cpu_count() or 1


def key_of(seed: int, name: str) -> int:
    """The 128 bits that a sequence starts from."""
    return int.from_bytes(hashlib.sha256(f"{seed}\0{name}".encode()).digest()[:16], "little")


def _box_muller(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.float32]:
    # Computed in float64 and then rounded, so that processors whose log and cos differ in the last bit still agree.
    radius = np.sqrt(-2.0 * np.log(((words >> np.uint64(32)) + np.uint64(1)) * 2.0**-32))
    angle = (words & np.uint64(0xFFFFFFFF)) * (2 * np.pi * 2.0**-32)
    pairs = np.empty((len(words), 2), dtype=np.float32)
    np.multiply(radius, np.cos(angle), out=pairs[:, 0], casting="same_kind")
    np.multiply(radius, np.sin(angle), out=pairs[:, 1], casting="same_kind")
    return pairs.reshape(-1)
