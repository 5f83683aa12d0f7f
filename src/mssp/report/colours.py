"""Colours of figures: each is a pair, one for a light ground (background) and one for a dark ground.

A figure names a colour as ``"#1a1a1a|#ececee"``, and :func:`painted` chooses. On both grounds lines contrast with the
ground by 3 to 1 or more, and text by 4.5 to 1, as WCAG 2.2 asks; bands and grid lines are quieter than that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NEED_PLOTLY = "plots need plotly: pip install 'mssp[report]'"
LIGHT, DARK = 0, 1  # the grounds; a number is the place in a pair
GROUND, INK, MUTED, RULE = "#ffffff|#15171c", "#1a1a1a|#ececee", "#595959|#a9adb6", "#e4e4e4|#2b2e36"
BLANK = "#efefef|#2b2e36"  # cells of a heatmap without a value
ON_BRIGHT = "#1a1a1a|#1a1a1a"  # for markers on bright cells of heatmaps, which are bright on both grounds
# The parts of the Magma scale for the smallest to the largest size. Its lightness changes evenly, so that sizes keep
# their order in grey and for the colour-blind. The largest size contrasts most with either ground.
_ON_LIGHT, _ON_DARK = (0.67, 0.08), (0.49, 0.97)


def shades(count: int) -> list[str]:
    """Colours for so many sizes of models or steps of training, from the smallest to the largest.

    >>> shades(2)
    ['rgb(241, 98, 93)|rgb(177, 54, 121)', 'rgb(17, 11, 45)|rgb(253, 239, 178)']
    """
    try:
        from plotly.colors import sample_colorscale
    except ImportError:
        raise ValueError(NEED_PLOTLY) from None
    fractions = [index / max(count - 1, 1) for index in range(count)]
    light, dark = (
        sample_colorscale("Magma", [first + fraction * (last - first) for fraction in fractions])
        for first, last in (_ON_LIGHT, _ON_DARK)
    )
    return [f"{on_light}|{on_dark}" for on_light, on_dark in zip(light, dark, strict=True)]


def painted(part: Any, ground: int, key: str = "") -> Any:
    """A copy of any part of plotly's data or layout in the colours of one ground; ``page.js`` does the same.

    >>> painted({"line": {"color": "#1a1a1a|#ececee"}, "name": "a|b"}, DARK)
    {'line': {'color': '#ececee'}, 'name': 'a|b'}
    """
    if isinstance(part, Mapping):
        return {name: painted(value, ground, name) for name, value in part.items()}
    if isinstance(part, list):
        return [painted(item, ground, key) for item in part]
    return part.split("|")[ground] if isinstance(part, str) and key.endswith("color") else part
