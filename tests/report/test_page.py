"""What a page is made of: its parts in order, texts that stay texts, and nothing from elsewhere."""

from __future__ import annotations

import csv
import json
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any
from urllib.parse import unquote

import pytest

from mssp.report.drawing import layout, traces
from mssp.report.figure import Panel, Series
from mssp.report.figure_data import csv_of
from mssp.report.page import document
from mssp.report.page.document import (
    Block,
    Bullets,
    Cell,
    Chart,
    Command,
    Folded,
    Row,
    Section,
    Table,
    Words,
    page,
    page_of,
)
from tests.report.reading import figures_in
from tests.report.samples import FIGURES

TABLE = Table(
    ["setting", "runs", "drift", "verdict"],
    [
        Row(["II · μP", "64", "0.47 ± 0.07", Cell("drifts up", "bad")], {"regime": "II", "scheme": "μP"}),
        Row(["II · MSSP", "128", "−0.01 ± 0.02", Cell("stays", "good")], {"regime": "II", "scheme": "MSSP"}),
        Row(["III · MSSP", "128", "none", Cell("", "unsure")], {"regime": "III", "scheme": "MSSP"}),
    ],
    "verdicts",
    "What came of `it`",
)
FOLDED = Folded("All sizes", [Words("Many."), Chart(FIGURES["sizes"], "sizes")])
SECTIONS = [
    Section("Does it transfer?", [Chart(FIGURES["transfer"], "transfer", {"regime": "II"}), TABLE]),
    Section("More", [FOLDED, Command("a < b")], "rest"),
]
SUMMARY: list[Block] = [Words("It went `well`."), Bullets(["one", "two"])]


class Elements(HTMLParser):
    """Every element's name and attributes, and the text that it starts with."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str], str]] = []
        self.inside = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {key: value or "" for key, value in attrs}, ""))
        self.inside = True

    def handle_endtag(self, tag: str) -> None:
        self.inside = False

    def handle_data(self, data: str) -> None:
        if self.inside:
            tag, attributes, text = self.found[-1]
            self.found[-1] = tag, attributes, text + data

    def of(self, *tags: str, **wanted: str) -> list[tuple[str, dict[str, str], str]]:
        wanted = {key.rstrip("_"): value for key, value in wanted.items()}
        return [each for each in self.found if each[0] in tags and wanted.items() <= each[1].items()]


@pytest.fixture(scope="module")
def html() -> str:
    return page("A <report>", SUMMARY, SECTIONS, "Made by `mssp`.")


@pytest.fixture(scope="module")
def elements(html: str) -> Elements:
    return Elements(html)


def content_of(html: str, name: str) -> Any:
    """What the script reads of a chart."""
    return figures_in(html)["charts"][name]


def test_headings_are_in_order(elements: Elements) -> None:
    assert [(tag, text.strip()) for tag, _, text in elements.of("h1", "h2", "h3")] == [
        ("h1", "A <report>"), ("h2", "Summary"), ("h2", "Does it transfer?"),
        ("h3", "Does the best learning rate stay where it is?"), ("h2", "More"),
        ("h3", "MSSP · Regime II · SGD: sizes over the width"),
    ]  # fmt: skip


def test_landmarks_contents_and_a_way_past_them(elements: Elements) -> None:
    assert [len(elements.of(tag)) for tag in ("main", "nav", "footer", "form")] == [1, 1, 1, 1]
    links = [(attributes["href"], text) for _, attributes, text in elements.of("a") if "class" not in attributes]
    assert links == [("#summary", "Summary"), ("#does-it-transfer", "Does it transfer?"), ("#rest", "More")]
    assert elements.of("a")[0][1] == {"class": "skip", "href": "#content"}


def test_what_is_referred_to_is_there_once(elements: Elements) -> None:
    ids = [attributes["id"] for _, attributes, _ in elements.found if "id" in attributes]
    assert len(set(ids)) == len(ids)
    for _, attributes, _ in elements.found:
        for key in ("aria-labelledby", "aria-describedby"):
            assert attributes.get(key, "content") in ids
        if attributes.get("href", "").startswith("#"):
            assert attributes["href"][1:] in ids


def test_a_page_needs_nothing_else(html: str, elements: Elements) -> None:
    ((_, policy, _),) = elements.of("meta", **{"http-equiv": "Content-Security-Policy"})
    assert policy["content"].startswith("default-src 'none'; script-src 'unsafe-inline'; ")
    assert not any("src" in attributes for _, attributes, _ in elements.found)
    assert not elements.of("link")
    links = [attributes["href"] for _, attributes, _ in elements.of("a")]
    assert all(link.startswith(("#", "data:text/csv;")) for link in links)
    assert html.count("plotly.js v") == 1


def test_a_chart_says_what_it_shows_and_gives_its_numbers(elements: Elements) -> None:
    title = "Does the best learning rate stay where it is?"
    (plot,) = elements.of("div", class_="plot", **{"aria-label": title})
    assert (plot[1]["role"], plot[1]["aria-describedby"]) == ("img", "transfer.words")
    ((_, _, words),) = elements.of("p", id="transfer.words")
    assert words == FIGURES["transfer"].description
    ((_, link, text),) = elements.of("a", download="transfer.csv")
    assert text == "CSV"
    kind, _, data = link["href"].partition(",")
    assert kind == "data:text/csv;charset=utf-8"
    assert unquote(data) == csv_of(FIGURES["transfer"])
    assert len(list(csv.reader(unquote(data).splitlines()))) > 100
    assert [text for _, _, text in elements.of("button", class_="svg needs-script")] == ["SVG", "SVG"]


def test_a_chart_holds_its_traces_once_and_its_layouts_by_width(html: str, elements: Elements) -> None:
    content, figure = content_of(html, "transfer"), FIGURES["transfer"]
    assert [trace["name"] for trace in content["data"]] == [trace["name"] for trace in traces(figure)]
    widths = [320, 360, 520, 700, 880, 1120, layout(figure)["width"]]
    assert [each["width"] for each in content["layouts"]] == widths
    assert [each["height"] for each in content["layouts"]] == [layout(figure, w)["height"] for w in widths]
    plot = elements.of("div", class_="plot")[0][1]
    assert json.loads(plot["data-sizes"]) == [[each["width"], each["height"]] for each in content["layouts"]]
    assert content["whole"]["annotations"][0]["text"] == "Does the best learning rate stay where it is?"


def test_a_figure_of_one_width_has_one_layout() -> None:
    content = content_of(page("A", [], [Section("S", [Chart(FIGURES["heatmaps"], "maps")])]), "maps")
    assert [each["width"] for each in content["layouts"]] == [layout(FIGURES["heatmaps"])["width"]]


def test_numbers_stand_at_the_right_and_verdicts_have_a_mark(html: str, elements: Elements) -> None:
    assert [(text, attributes["class"]) for _, attributes, text in elements.of("th", scope="col")] == [
        ("setting", "short"), ("runs", "number"), ("drift", "number"), ("verdict", "short"),
    ]  # fmt: skip
    assert [text for _, _, text in elements.of("th", scope="row")] == ["II · μP", "II · MSSP", "III · MSSP"]
    marks = [(attributes["aria-label"], text) for _, attributes, text in elements.of("span", class_="mark")]
    assert marks == [("bad:", "✗"), ("good:", "✓"), ("unsure:", "?")]
    assert '<span class="mark" role="img" aria-label="unsure:">?</span> unsure</span>' in html
    assert "What came of <code>it</code></span></caption>" in html


def test_a_table_scrolls_in_a_box_that_takes_the_focus(elements: Elements) -> None:
    ((_, box, _),) = elements.of("div", class_="table")
    assert (box["role"], box["tabindex"], box["aria-labelledby"]) == ("region", "0", "verdicts.title")


def test_filters_are_for_tags_with_two_values_or_more(elements: Elements) -> None:
    assert [text for _, _, text in elements.of("legend")] == ["regime", "scheme"]
    boxes = [(box["name"], box["value"]) for _, box, _ in elements.of("input")]
    assert boxes == [("regime", "II"), ("regime", "III"), ("scheme", "MSSP"), ("scheme", "μP")]
    tags = [json.loads(attributes["data-tags"]) for _, attributes, _ in elements.found if "data-tags" in attributes]
    assert tags == [{"regime": "II"}, *(dict(row.tags) for row in TABLE.rows)]


def test_without_tags_there_are_no_filters() -> None:
    one = page("A", [], [Section("S", [Table(["a"], [Row(["1"], {"regime": "I"})], "t")])])
    assert not Elements(one).of("form")
    assert "<h2" in one


def test_words_bullets_commands_and_what_is_folded(html: str) -> None:
    assert "<p>It went <code>well</code>.</p>" in html
    assert "<ul>\n<li>one</li>\n<li>two</li>\n</ul>" in html
    assert "<code>a &lt; b</code></pre>" in html
    assert '<details class="folded"><summary>All sizes</summary>\n<p>Many.</p>' in html
    assert "<footer>Made by <code>mssp</code>.</footer>" in html


EVIL = "</script><script>alert(\"1\")</script><b onload='x'>&amp;"


def test_no_text_becomes_markup() -> None:
    series = Series(name=EVIL, x=[0], y=[1], hover=[EVIL])
    panel = Panel(heading=EVIL, subtitle=EVIL, series=[series])
    figure = replace(FIGURES["transfer"], title=EVIL, summary=EVIL, rows=[[panel]], notes=[EVIL])
    table = Table([EVIL], [Row([EVIL], {EVIL: EVIL}), Row([Cell(EVIL, "bad")], {EVIL: f"{EVIL}2"})], "t", EVIL)
    blocks: list[Block] = [
        Words(EVIL),
        Bullets([EVIL]),
        Command(EVIL),
        Folded(EVIL, [table]),
        Chart(figure, "c", {"k": EVIL}),
    ]
    html = page(EVIL, blocks, [Section(EVIL, [])], EVIL)
    plain = page("A", [], [Section("S", [Chart(FIGURES["transfer"], "c")])])
    assert html.count("<script") == plain.count("<script")
    assert html.count("</script") == plain.count("</script")
    elements = Elements(html)
    assert not elements.of("b")
    assert not any("onload" in attributes for _, attributes, _ in elements.found)
    assert next(text for _, _, text in elements.of("h1")) == EVIL
    assert content_of(html, "c")["data"][0]["name"] == EVIL


def test_equal_blocks_give_equal_pages(html: str) -> None:
    assert page("A <report>", SUMMARY, SECTIONS, "Made by `mssp`.") == html


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ([Section("S", []), Section("s", [])], "names are unique"),
        ([Section("S", [Table(["a"], [], "s")])], "names are unique"),
        ([Section("S", [Folded("F", [Table(["a"], [], "t")]), Table(["a"], [], "t")])], "names are unique"),
        ([Section("S", [], "a b")], "names are words and hyphens"),
        ([Section("S", [Table(["a", "b"], [Row(["1"])], "t")])], "rows of t have 2 cells"),
        ([Section("S", [Table(["a"], [Row([Cell("1", "great")])], "t")])], "one of good, bad, unsure, got 'great'"),
    ],
)
def test_mistakes_are_named(sections: list[Section], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        page("A", [], sections)


def test_without_plotly_an_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    document._plotly.cache_clear()
    with pytest.raises(ValueError, match=re.escape("pip install 'mssp[report]'")):
        page("A", [Words("No figures.")], [])


def test_a_page_of_one_figure_has_its_words_below_it() -> None:
    elements = Elements(page_of(FIGURES["transfer"]))
    assert [(tag, text) for tag, _, text in elements.of("h1", "h2", "h3")] == [
        ("h1", "Does the best learning rate stay where it is?")
    ]
    assert not elements.of("nav", "details")
    ((_, _, words),) = elements.of("p", id="figure.words")
    assert words == FIGURES["transfer"].description
