"""Text for figures: with and without markup, counts with their nouns, numbers with a minus sign."""

from __future__ import annotations

import re
from html import escape, unescape


def markup(text: str) -> str:
    """Plain text as markup."""
    return escape(text, quote=False)


def plain(text: str) -> str:
    """Text without its markup.

    >>> plain("<b>Regime II</b> · SGD &amp; more")
    'Regime II · SGD & more'
    """
    return unescape(re.sub(r"<[^>]*>", "", text)).strip()


def many(count: int, thing: str) -> str:
    """A count with its noun, such as ``1 seed`` and ``2 seeds``."""
    return f"{count} {thing}{'' if count == 1 else 's'}"


def signed(value: float, digits: int = 2) -> str:
    """A number with so many significant digits, and with a minus sign instead of a hyphen."""
    return f"{value:.{digits}g}".replace("-", "−")
