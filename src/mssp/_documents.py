"""Documents: texts of JSON, read strictly, and refused in one line."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from typing import Any

from mssp._constraints import shown

DEEPEST = 32  # lists and objects inside one another; no document of ours has more than eight
_MOST_DIGITS = 308  # of a whole number that a float can hold
LARGEST = sys.float_info.max
_LONGEST = 300  # characters of a text in a message
_HALF_A_CHARACTER = re.compile(r"\\u[dD][89abAB]|\\u[dD][c-fC-F]")  # escapes that make a character in pairs only


def parsed(content: str | bytes) -> Any:
    """The data of a JSON text; ValueError says why there are none.

    >>> parsed('{"widths": [64, 128]}')
    {'widths': [64, 128]}
    >>> parsed('{"seeds": 1, "seeds": 2}')
    Traceback (most recent call last):
        ...
    ValueError: it is not JSON: 'seeds' is there twice: 1 and 2

    Refused are also numbers that no float can hold, NaN among them, and what is nested deeper than ``DEEPEST``.
    """
    try:
        text = content if isinstance(content, str) else content.decode(json.detect_encoding(content))
        document = json.loads(
            text, parse_float=_real, parse_int=_whole, parse_constant=_no_constant, object_pairs_hook=unique
        )
        if _HALF_A_CHARACTER.search(text):
            json.dumps(document, ensure_ascii=False).encode()  # refuses half of a pair
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    refuse_deep(document)
    return document


_TOO_DEEP = f"it is nested more than {DEEPEST} deep"


def unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, in which every key stands once."""
    entries: dict[str, Any] = {}
    for key, value in pairs:
        if key in entries:
            raise ValueError(f"{shown(key)} is there twice: {shown(entries[key])} and {shown(value)}")
        entries[key] = value
    return entries


def _real(digits: str) -> float:
    real = float(digits)
    if abs(real) > LARGEST:
        raise ValueError(f"{shown(digits)} is beyond the numbers that a float can hold")
    return real


def _whole(digits: str) -> int:
    if len(digits.lstrip("-")) > _MOST_DIGITS:
        raise ValueError(f"a number of {len(digits.lstrip('-'))} digits is beyond those that a float can hold")
    return int(digits)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number that JSON has")


def refuse_deep(document: Any) -> None:
    """Refuse what is nested so deep that copying it would exhaust the stack."""
    layer = [document] if isinstance(document, dict | list) else []
    for _ in range(DEEPEST + 1):
        inner = [value.values() if isinstance(value, dict) else value for value in layer]
        layer = [part for values in inner for part in values if isinstance(part, dict | list)] if layer else []
        if not layer:
            return
    raise ValueError(_TOO_DEEP)


def one_line(text: str) -> str:
    """A text of a file as messages show it: without what breaks lines, and a long one without its middle."""
    return text if text.isprintable() and len(text) <= _LONGEST else shown(text)[1:-1]
