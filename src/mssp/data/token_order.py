"""The order in which training takes windows of tokens: decided by a seed, without memory, and the same everywhere.

A part of a token file is one long text: its documents, one after another. Windows of it do not overlap, except for one
token: the last of a window is the first of the next one, since it is a target there and an input here.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mssp._constraints import at_least, kind_of, one_of, positive_int, takes, whole
from mssp.data.dataset import PARTS
from mssp.data.streams import shuffled
from mssp.data.tokens import TokenFile


class TokenOrder:
    """Windows of one part of a token file, in an order that the seed decides.

    Any windows of the order can be read at once, so the number of a step is all that a run needs to go on from there:
    step s of B windows takes ``rows(s * B, B)``, and one process of several takes its share of these.

    >>> from mssp.data import python_tokens
    >>> order = TokenOrder(python_tokens(), "train", sequence=64, seed=0)
    >>> rows = order.rows(8, 4)     # the third step of four windows
    >>> rows.shape, rows.dtype.name, (rows == order.rows(0, 12)[8:]).all()
    ((4, 65), 'int64', np.True_)

    Args:
        part: train or validation. No window has a token of the other part.
        sequence: the inputs of a window, which has one token more.
        passes: how often the text is read, each time in another order.
    """

    @takes(
        file=kind_of(TokenFile), part=one_of(PARTS), sequence=positive_int, seed=whole, passes=positive_int
    )  # fmt: skip
    def __init__(
        self, file: TokenFile, part: str = "train", sequence: int = 256, seed: int = 0, passes: int = 1
    ) -> None:
        self.file, self.part, self.sequence, self.seed, self.passes = file, part, sequence, seed, passes
        stretches = file.stretches(part)
        # Where each stretch of the file begins in the text of the part.
        self._begins = np.concatenate([[0], np.cumsum(stretches[:, 1] - stretches[:, 0])])
        # What leads from a place in the text of the part to the same place in the file.
        self._shifts = stretches[:, 0] - self._begins[:-1]
        self.tokens = int(self._begins[-1])
        self.windows_per_pass = max(self.tokens - 1, 0) // sequence
        self.windows = self.windows_per_pass * passes
        if not self.windows:
            raise ValueError(
                f"{self._name} has {self.tokens:,} tokens, and a window of {sequence} needs {sequence + 1:,}: "
                f"take shorter windows, or prepare more documents, of which some go to each part"
            )

    @property
    def _name(self) -> str:
        return f"the {self.part} part of {self.file.path}"

    @takes(steps=positive_int, batch=positive_int)
    def check_steps(self, steps: int, batch: int) -> None:
        """Refuses a number of steps for which there are too few windows. A step takes ``batch`` windows.

        >>> from mssp.data import python_tokens
        >>> TokenOrder(python_tokens(), "train", sequence=256).check_steps(10**9, batch=16)
        Traceback (most recent call last):
            ...
        ValueError: steps must be at most ..., got 1000000000: the train part of ... has ... windows of 256 tokens ...
        """
        if steps * batch > self.windows:
            in_passes = "in a single pass" if self.passes == 1 else f"in {self.passes} passes"
            enough = -(-steps * batch // self.windows_per_pass)
            raise ValueError(
                f"steps must be at most {self.windows // batch}, got {steps}: {self._name} has {self.windows} windows "
                f"of {self.sequence} tokens {in_passes}, and a step takes {batch}; take more text, or passes={enough}"
            )

    @takes(first=at_least(0), count=positive_int)
    def rows(self, first: int, count: int) -> npt.NDArray[np.int64]:
        """Windows number ``first`` to ``first + count - 1`` of the order, as int64 [count, sequence + 1]."""
        if first + count > self.windows:
            self.check_steps(first + count, 1)
        starts = self.sequence * self._window_numbers(first, count)
        stretch = np.searchsorted(self._begins, starts, side="right") - 1
        rows = np.empty((count, self.sequence + 1), dtype=np.int64)
        # Most windows lie in one stretch of the file: all of them are cut at once.
        whole_ones = starts + self.sequence < self._begins[stretch + 1]
        cut = np.lib.stride_tricks.sliding_window_view(self.file.array, self.sequence + 1)
        rows[whole_ones] = cut[(starts + self._shifts[stretch])[whole_ones]]
        places = starts[~whole_ones, None] + np.arange(self.sequence + 1)
        stretch = np.searchsorted(self._begins, places, side="right") - 1
        rows[~whole_ones] = self.file.array[places + self._shifts[stretch]]
        return rows

    def _window_numbers(self, first: int, count: int) -> npt.NDArray[np.int64]:
        """Which windows of the text stand at these places of the order."""
        places = np.arange(first, first + count)
        passes, places = np.divmod(places, self.windows_per_pass)
        numbers = np.empty(count, dtype=np.int64)
        for number in range(int(passes[0]), int(passes[-1]) + 1):
            of_pass = passes == number
            numbers[of_pass] = shuffled(places[of_pass], self.windows_per_pass, "windows", self.seed, number)
        return numbers
