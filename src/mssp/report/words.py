"""Words of figures: with and without markup, counts, signs."""

from __future__ import annotations

import re
from html import escape, unescape


def markup(text: str) -> str:
    return escape(text, quote=False)


def plain(text: str) -> str:
    """Words without their markup.

    >>> plain("<b>Regime II</b> · SGD &amp; more")
    'Regime II · SGD & more'
    """
    return unescape(re.sub(r"<[^>]*>", "", text)).strip()


def many(count: int, thing: str) -> str:
    return f"{count} {thing}{'' if count == 1 else 's'}"


def signed(value: float, digits: int = 2) -> str:
    """With a minus sign, which is no hyphen."""
    return f"{value:.{digits}g}".replace("-", "−")
