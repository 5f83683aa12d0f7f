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
import torch

# Philox makes four 64-bit words per counter step, each word two normals.
_NORMALS_PER_STEP = 8
# Elements made at a time: enough to amortise calls, few enough to stay in cache and for torch to use one thread.
_CHUNK = 1 << 16
# Elements for which a thread of its own is worth while.
BLOCK = 1 << 20


def normals(seed: int, name: str, start: int, stop: int) -> npt.NDArray[np.float32]:
    """Elements ``start`` to ``stop`` of the standard normal sequence that belongs to ``(seed, name)``."""
    out = np.empty(stop - start, dtype=np.float32)
    key = key_of(seed, name)
    if len(out) <= BLOCK:
        _fill(out, key, start)
        return out
    with ThreadPoolExecutor(threads()) as pool:  # numpy lets go of the interpreter while it computes
        blocks = range(0, len(out), BLOCK)
        list(pool.map(lambda first: _fill(out[first : first + BLOCK], key, start + first), blocks))
    return out


def _fill(out: npt.NDArray[np.float32], key: int, start: int) -> None:
    first_step = start // _NORMALS_PER_STEP
    skipped = start - first_step * _NORMALS_PER_STEP
    generator = np.random.Philox(key=key)
    generator.advance(first_step)
    box_muller = _BoxMuller()
    filled = 0
    while filled < len(out):
        steps = -(-(len(out) - filled + skipped) // _NORMALS_PER_STEP)
        chunk = box_muller(generator.random_raw(min(_CHUNK, steps * _NORMALS_PER_STEP) // 2))[skipped:]
        taken = min(len(chunk), len(out) - filled)
        out[filled : filled + taken] = chunk[:taken]
        filled, skipped = filled + taken, 0


def threads() -> int:
    """As many as other libraries take: launchers that start many processes set OMP_NUM_THREADS."""
    threads = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(threads) if threads.isdecimal() and int(threads) else os.cpu_count() or 1


def key_of(seed: int, name: str) -> int:
    """The 128 bits that a sequence starts from."""
    return int.from_bytes(hashlib.sha256(f"{seed}\0{name}".encode()).digest()[:16], "little")


class _BoxMuller:
    """Turns words into pairs of normals, in memory that all chunks share: new arrays would take as long as the numbers.

    It is computed in float64 and then rounded, so that processors and libraries whose log and cos differ in the last
    bit still agree. Sines and cosines are torch's, which takes many at a time where numpy takes one.
    """

    def __init__(self) -> None:
        self._integers = np.empty(_CHUNK // 2, dtype=np.uint64)
        self._radii, self._angles, self._sines = (np.empty(_CHUNK // 2) for _ in range(3))
        self._pairs = np.empty((_CHUNK // 2, 2), dtype=np.float32)

    def __call__(self, words: npt.NDArray[np.uint64]) -> npt.NDArray[np.float32]:
        """The normals, two for each word; the next call writes over them."""
        count = len(words)
        integers, pairs = self._integers[:count], self._pairs[:count]
        radii, angles, sines = self._radii[:count], self._angles[:count], self._sines[:count]
        np.right_shift(words, np.uint64(32), out=integers)
        np.add(integers, np.uint64(1), out=integers)
        np.multiply(integers, 2.0**-32, out=radii)
        np.log(radii, out=radii)
        np.multiply(radii, -2.0, out=radii)
        np.sqrt(radii, out=radii)
        np.bitwise_and(words, np.uint64(0xFFFFFFFF), out=integers)
        np.multiply(integers, 2 * np.pi * 2.0**-32, out=angles)
        for column, function in enumerate((torch.cos, torch.sin)):
            function(torch.from_numpy(angles), out=torch.from_numpy(sines))
            np.multiply(radii, sines, out=pairs[:, column], casting="same_kind")
        return pairs.reshape(-1)
