"""What may differ between two observations of the same behaviour, and what may not.

Words, keys, their order and the length of lists must be the same. Numbers may differ by a tolerance, because sums are
added in an order that depends on the processor. In text that has a tolerance, a number may also differ by one in its
last printed digit, and the width of columns follows the numbers.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

MASK = "masked"
# What says when, where and with what something was made: the keys stay, the values do not.
_MADE = frozenset({"made_with", "environment"})
_TIMES = frozenset({"seconds", "started"})
_NUMBER = re.compile(r"(?<![\w.])[-+−]?\d+(?:,\d\d\d)*(?:\.\d+)?(?:e[-+]?\d+)?(?![\w])")
_TIME_TAKEN = re.compile(r"\b\d+(\.\d+)? ?(s|ms|seconds|minutes)\b")
_FITTED = re.compile(
    r"exponent|/expected/|/ci\b|/judged/|/drift/|/log2_best_lr/|agreement|/figures/\d+/traces/\d+/(error|y)\b"
)
_DIGITS_KEPT = 10
_LINE = 118


@dataclass(frozen=True)
class Tolerance:
    """How far numbers may lie apart.

    Args:
        fitted: an absolute tolerance for what is fitted to numbers (exponents, intervals, drifts).
        in_text: numbers in texts may differ too.
    """

    relative: float = 1e-9
    absolute: float = 0.0
    fitted: float = 0.0
    in_text: bool = False

    def at(self, path: str) -> Tolerance:
        """That of a place in a document."""
        if self.fitted and "/regret/" in path:  # a difference of scores
            return replace(self, absolute=1e-5)
        if self.fitted and _FITTED.search(path):
            return replace(self, relative=5 * self.fitted, absolute=self.fitted)
        return self


def masked(entry: Any, words: Mapping[str, str]) -> Any:
    """An observation without what another machine, another day or another folder would change.

    Args:
        words: what to put in place of some texts, such as the name of a temporary folder.
    """
    if isinstance(entry, str):
        for word, instead in words.items():
            entry = entry.replace(word, instead)
        return entry
    if isinstance(entry, Mapping):
        return {masked(key, words): _masked_value(key, value, words) for key, value in entry.items()}
    if isinstance(entry, list | tuple):
        return [masked(each, words) for each in entry]
    if isinstance(entry, float):
        return _short(entry)
    return entry


def without_times(text: str) -> str:
    """Text in which lengths of time are masked."""
    return _TIME_TAKEN.sub(MASK, text)


def _masked_value(key: str, value: Any, words: Mapping[str, str]) -> Any:
    if key in _MADE and isinstance(value, Mapping):
        return dict.fromkeys(value, MASK)
    return MASK if key in _TIMES else masked(value, words)


def _short(number: float) -> float | str:
    """A number of fewer digits than a machine has; what is no number to JSON becomes a word."""
    return float(f"{number:.{_DIGITS_KEPT}g}") if math.isfinite(number) else str(number)


def differences(kept: Any, found: Any, tolerance: Tolerance, path: str = "") -> Iterator[str]:
    """Every difference, as a line that names its place, the value that was kept and the value that was found."""
    if isinstance(kept, dict) and isinstance(found, dict):
        for key in [*kept, *(key for key in found if key not in kept)]:
            where = f"{path}/{key}"
            if key not in found:
                yield f"{where}: {_shown(kept[key])} was kept, and nothing was found"
            elif key not in kept:
                yield f"{where}: nothing was kept, and {_shown(found[key])} was found"
            else:
                yield from differences(kept[key], found[key], tolerance, where)
        if kept.keys() == found.keys() and list(kept) != list(found):
            yield f"{path}: the order of keys was {', '.join(kept)} and is {', '.join(found)}"
    elif isinstance(kept, list) and isinstance(found, list):
        if len(kept) != len(found):
            yield f"{path}: {len(kept)} entries were kept, and {len(found)} were found"
        for index, (one, other) in enumerate(zip(kept, found, strict=False)):
            yield from differences(one, other, tolerance, f"{path}/{index}")
    elif not _alike(kept, found, tolerance.at(path)):
        yield f"{path}: {_shown(kept)} was kept, and {_shown(found)} was found"


def _alike(kept: Any, found: Any, tolerance: Tolerance) -> bool:
    if isinstance(kept, bool) or isinstance(found, bool) or kept is None or found is None:
        return kept is found
    if isinstance(kept, int) and isinstance(found, int):
        return kept == found
    if isinstance(kept, int | float) and isinstance(found, int | float):
        return _close(kept, found, tolerance)
    if isinstance(kept, str) and isinstance(found, str):
        return kept == found or (tolerance.in_text and _same_text(kept, found, tolerance))
    return False


def _close(kept: float, found: float, tolerance: Tolerance, absolute: float = 0.0) -> bool:
    return math.isclose(kept, found, rel_tol=tolerance.relative, abs_tol=max(absolute, tolerance.absolute))


def _same_text(kept: str, found: str, tolerance: Tolerance) -> bool:
    """The same words around the same numbers, but for the last digit that is printed."""
    if _words(kept) != _words(found):
        return False
    pairs = zip(_NUMBER.findall(kept), _NUMBER.findall(found), strict=True)
    return all(_close(_value(one), _value(other), tolerance, 1.01 * _last_digit(one)) for one, other in pairs)


def _words(text: str) -> str:
    return re.sub(r"─+", "─", " ".join(_NUMBER.sub("#", text).split()))


def _value(number: str) -> float:
    return float(number.replace("−", "-").replace(",", ""))


def _last_digit(number: str) -> float:
    digits, _, exponent = number.partition("e")
    if "," in digits:  # an extrapolation over many sizes: three digits of it
        return 0.01 * _value(number)
    return 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 300 else f"{text[:300]}…"


def pretty(entry: Any, line: int = _LINE, indent: int = 0) -> str:
    """JSON for people: what fits into a line stands in one, and lists of numbers fill their lines."""
    flat = json.dumps(entry, ensure_ascii=False)
    if not isinstance(entry, dict | list) or len(flat) + indent <= line:
        return flat
    inner = " " * (indent + 1)
    if isinstance(entry, dict):
        keys = [json.dumps(key, ensure_ascii=False) for key in entry]
        rows = [f"{key}: {pretty(each, line, indent + 1)}" for key, each in zip(keys, entry.values(), strict=True)]
        return f"{{\n{inner}" + f",\n{inner}".join(rows) + f"\n{' ' * indent}}}"
    if any(isinstance(each, dict | list | str) for each in entry):
        rows = [pretty(each, line, indent + 1) for each in entry]
    else:
        rows = [""]
        for word in (json.dumps(each) for each in entry):
            if rows[-1] and len(rows[-1]) + len(word) + indent + 3 > line:
                rows.append("")
            rows[-1] += f", {word}" if rows[-1] else word
    return f"[\n{inner}" + f",\n{inner}".join(rows) + f"\n{' ' * indent}]"
