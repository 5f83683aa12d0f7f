"""Files: pages that need nothing else, images through a stand-in for kaleido, and what is refused."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mssp.planning.setting import Setting
from mssp.report import saving
from mssp.report.drawing import layout
from mssp.report.figure import Figure
from mssp.report.figures.sweeps import transfer_figure
from mssp.report.page.document import page_of
from mssp.report.saving import save
from mssp.sweep.metrics import Metric
from mssp.sweep.transfer import Contender, Score, Transfer
from tests.report.reading import figures_in


def make(title: str = "Best <rates> & more") -> Figure:
    scores = [Score(width, 2.0**k, seed, 1 - 0.1 * k**2) for width in (64, 128) for k in (-1, 0, 1) for seed in (0, 1)]
    return transfer_figure(
        {Contender(Setting.of("mssp", "II", "sgd")): Transfer(Metric("accuracy", True, "accuracy"), scores)}, title
    )


def test_a_page_needs_nothing_else(tmp_path: Path) -> None:
    page = save(make(), tmp_path / "figure.html").read_text(encoding="utf-8")
    assert '<html lang="en">' in page
    assert "<title>Best &lt;rates&gt; &amp; more</title>" in page
    assert not re.search(r"<script[^>]*\ssrc\s*=", page)
    assert not re.search(r"<link\b[^>]*href", page)
    assert "default-src 'none'" in page
    assert len(page) > 1_000_000  # plotly itself
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page


def test_a_page_says_in_words_what_it_shows(tmp_path: Path) -> None:
    page = save(make("Rates"), tmp_path / "figure.html").read_text(encoding="utf-8")
    assert 'role="img" aria-label="Rates" aria-describedby="figure.words"' in page
    assert f'<p id="figure.words">{make("Rates").description}</p>' in page


def test_no_button_uploads_the_data() -> None:
    assert "sendChartToCloud" in figures_in(page_of(make()))["noButtons"]


def test_equal_figures_give_equal_pages(tmp_path: Path) -> None:
    first, second = (save(make(), tmp_path / f"{i}.html").read_bytes() for i in range(2))
    assert first == second


def test_a_page_closes_no_script_early() -> None:
    assert "</script><b>" not in page_of(make("</script><b>"))


@pytest.mark.parametrize("name", ["figure.gif", "figure"])
def test_an_unknown_suffix_lists_the_known_ones(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"use one of the suffixes \.html, \.svg, \.pdf, \.png"):
        save(make(), tmp_path / name)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot write .*figure\.html: there is no folder .*nowhere"):
        save(make(), tmp_path / "nowhere" / "figure.html")
    assert not (tmp_path / "nowhere").exists()


def test_a_failure_leaves_what_was_there_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "figure.html"
    path.write_text("before")

    def fail(self: Path, content: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(ValueError, match=r"cannot write .*figure\.html: No space left on device"):
        save(make(), path)
    assert [each.name for each in tmp_path.iterdir()] == ["figure.html"]
    assert path.read_text() == "before"


# -- images ------------------------------------------------------------------------------------------------------------


class Kaleido:
    """Stands in for kaleido: answers with what it was given to say, or fails."""

    def __init__(self, answer: bytes | Exception) -> None:
        self.answer, self.asked = answer, SimpleNamespace()

    def calc_fig_sync(self, figure: dict[str, Any], opts: dict[str, Any], kopts: dict[str, Any]) -> bytes:
        self.asked = SimpleNamespace(figure=figure, opts=opts, kopts=kopts)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def use(monkeypatch: pytest.MonkeyPatch, answer: bytes | Exception) -> Kaleido:
    kaleido = Kaleido(answer)
    monkeypatch.setitem(sys.modules, "kaleido", kaleido)
    monkeypatch.setattr(saving, "find_spec", lambda name: object())
    return kaleido


def test_an_image_has_the_figures_size_and_fetches_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kaleido = use(monkeypatch, b"png")
    assert save(make(), tmp_path / "figure.PNG").read_bytes() == b"png"
    whole = layout(make(), titled=True)
    assert kaleido.asked.opts == {"format": "png", "scale": 2, "width": whole["width"], "height": whole["height"]}
    assert kaleido.asked.kopts == {"mathjax": False}
    assert [trace["uid"] for trace in kaleido.asked.figure["data"][:2]] == ["0", "1"]


def test_an_svg_has_fixed_names_and_says_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, b'<svg class="main-svg"><defs id="defs-1a2b3c"/><g clip-path="url(#clip1a2b3cxy)"/></svg>')
    text = save(make("Rates"), tmp_path / "figure.svg").read_text(encoding="utf-8")
    assert text.startswith('<svg role="img" class="main-svg"><title>Rates</title><desc>Rates. It shows accuracy')
    assert text.endswith('<defs id="defs-figure"/><g clip-path="url(#clipfigurexy)"/></svg>')


def test_a_pdf_has_a_fixed_date_of_the_same_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = b"/CreationDate (D:20260301121314+00'00')\n/ModDate (D:20260301121314+00'00')"
    use(monkeypatch, before)
    after = save(make(), tmp_path / "figure.pdf").read_bytes()
    assert after == before.replace(b"20260301121314", b"20000101000000")


def test_without_kaleido_an_error_names_what_images_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "find_spec", lambda name: None)
    message = (
        r"images need kaleido \(pip install kaleido\) and a Chrome or Chromium, and kaleido is not installed; \.html"
    )
    with pytest.raises(ValueError, match=message):
        save(make(), tmp_path / "figure.svg")


def test_without_a_browser_an_error_says_so_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, RuntimeError("Chrome was not found.\nMore lines."))
    with pytest.raises(ValueError, match=r"the browser does not run \(Chrome was not found\.\); \.html needs neither$"):
        save(make(), tmp_path / "figure.svg")
    assert not list(tmp_path.iterdir())
