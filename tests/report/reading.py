"""What a figure holds, as tests ask for it."""

from __future__ import annotations

import json
import re
import zlib
from base64 import b64decode
from typing import Any

from mssp.report.figure import Figure, Panel, Series


def there(figure: Figure | None) -> Figure:
    """A figure of something that was measured."""
    assert figure is not None
    return figure


def headings(figure: Figure) -> list[str]:
    return [panel.heading for panel in figure.panels]


def panel_of(figure: Figure, heading: str) -> Panel:
    (found,) = (panel for panel in figure.panels if panel.heading == heading)
    return found


def series_of(figure: Figure, heading: str = "", **wanted: Any) -> list[Series]:
    """Those of a panel, or of all, by what is wanted of them."""
    panels = [panel_of(figure, heading)] if heading else figure.panels
    found = [series for panel in panels for series in panel.series]
    return [series for series in found if all(getattr(series, name) == value for name, value in wanted.items())]


def named(figure: Figure) -> list[tuple[str, str]]:
    """The legend and the name of what stands in legends."""
    entries = [*series_of(figure, in_legend=True), *figure.marks]
    return list(dict.fromkeys((series.legend, series.name) for series in entries))


def figures_in(html: str) -> dict[str, Any]:
    """What the script of a page draws."""
    found = re.search(r'id="page.figures">(.*?)</script>', html)
    assert found is not None
    figures = json.loads(zlib.decompress(b64decode(found[1])))
    assert isinstance(figures, dict)
    return figures
