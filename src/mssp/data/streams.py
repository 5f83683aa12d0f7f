"""Random numbers that are the same bits on every machine.

Philox is a counter-based generator of 64-bit integers (words), which are the same in every version of numpy. The
normals and permutations that numpy makes of words need not be, so both are made here, by operations on integers.

>>> order(3, "order", 0).tolist()
[0, 2, 1]
>>> bool((exact_normals(10, "noise", 0)[:4] == exact_normals(4, "noise", 0)).all())
True
"""

from __future__ import annotations

import hashlib
import math
from typing import SupportsIndex

import numpy as np
import numpy.typing as npt

from mssp._constraints import positive_int, whole

# A mask for two of the four 16-bit numbers in a word, and a mask for its lower half.
_LANES = np.uint64(0x0000FFFF0000FFFF)
_LOW = np.uint64(0xFFFFFFFF)
# How many normals are made at a time: few enough that the words stay in cache.
_CHUNK = 1 << 15
# Of the Feistel network, each of which changes both numbers of a pair.
_ROUNDS = 4


def generator(*key: str | int) -> np.random.Philox:
    """The generator that belongs to a key of words and numbers."""
    digest = hashlib.sha256("\0".join(str(part) for part in key).encode()).digest()
    return np.random.Philox(key=int.from_bytes(digest[:16], "little"))


def words(count: int, *key: str | int) -> npt.NDArray[np.uint64]:
    """The first ``count`` 64-bit words that belong to a key."""
    return generator(*key).random_raw(count)


def order(count: int, *key: str | int) -> npt.NDArray[np.int64]:
    """A permutation of 0 to ``count`` - 1: the indices that sort as many random words."""
    return np.argsort(words(count, *key), kind="stable").astype(np.int64)


def exact_normals(count: int, *key: str | int) -> npt.NDArray[np.float32]:
    """Standard normal numbers, as sums of twelve uniform numbers of 16 bits.

    Such a sum has mean 12 · 65535 / 2 and standard deviation 65536 (to 10 digits), and every step is exact, while
    logarithms and cosines differ in their last bits between processors. It is normal except for its tails, which end at
    six standard deviations (its excess kurtosis is -0.1).
    """
    source = generator(*key)
    out = np.empty(count, dtype=np.float32)
    for start in range(0, count, _CHUNK):
        chunk = out[start : start + _CHUNK]
        raw = source.random_raw(3 * len(chunk))
        # A word holds two sums, one in each half of 32 bits: twelve numbers of 16 bits do not overflow it.
        lanes = (raw & _LANES) + ((raw >> np.uint64(16)) & _LANES)
        lanes = lanes[0::3] + lanes[1::3] + lanes[2::3]
        sums = (lanes & _LOW) + (lanes >> np.uint64(32))
        chunk[:] = (sums.astype(np.int64) - 6 * 65535) * 2.0**-16
    return out


def single_pass(
    seed: SupportsIndex, count: int, batch: SupportsIndex, steps: SupportsIndex, things: str, name: str
) -> npt.NDArray[np.int64]:
    """Which of ``count`` things each step takes, [steps, batch]; none is taken twice.

    The order depends on the seed and the count alone, so a run of fewer steps takes the same first batches.
    """
    seed, batch, steps = whole("seed", seed), positive_int("batch", batch), positive_int("steps", steps)
    if steps * batch > count:
        raise ValueError(f"{steps} steps of {batch} need {steps * batch} {things} in a single pass, {name} has {count}")
    return order(count, "order", seed)[: steps * batch].reshape(steps, batch)


def shuffled(positions: npt.NDArray[np.int64], count: int, *key: str | int) -> npt.NDArray[np.int64]:
    """What stands at some positions of a permutation of 0 to ``count`` - 1, of which no more is computed.

    The permutation belongs to the key. It takes no memory, however many things there are: it is a Feistel network on
    numbers that are written as a pair (a, b). Each round adds to one of the two a hash of the other, so it can be taken
    back. Where the pairs are a few more than the things, a number beyond the last is sent through again, until it is
    the number of a thing.

    >>> shuffled(np.arange(5), 5, "windows", 0).tolist()
    [1, 2, 0, 4, 3]
    """
    assert count > 0, count
    columns = np.uint64(max(math.isqrt(count - 1) + 1, 1))
    rows = np.uint64(-(-count // int(columns)))
    keys = words(2 * _ROUNDS, "shuffled", *key)

    def once(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        a, b = numbers // columns, numbers % columns
        for left, right in zip(keys[0::2], keys[1::2], strict=True):
            a = (a + _hashed(b + left) % rows) % rows
            b = (b + _hashed(a + right) % columns) % columns
        return a * columns + b

    found = once(positions.astype(np.uint64))
    while (beyond := found >= count).any():
        found[beyond] = once(found[beyond])
    return found.astype(np.int64)


def _hashed(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """A hash of each word: the last step of SplitMix64, in which products are taken modulo 2^64."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
