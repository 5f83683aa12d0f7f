"""Pages as readers have them: opened as files in a browser, on screens of several widths, by keyboard, and printed."""

from __future__ import annotations

import csv
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from mssp.report import contents, sections
from mssp.report.colours import DARK, GROUND, INK, LIGHT, painted
from mssp.report.drawing import layout, traces
from mssp.report.figure_data import csv_of
from mssp.report.page.document import Bullets, Cell, Chart, Command, Folded, Row, Section, Table, Words, page, page_of
from tests.report.samples import FIGURES
from tests.report.test_sections import check_file, filled, trials

ON_DARK = painted(GROUND, DARK, "color")
NAMES = {name: re.sub(r"\W+", "-", name) for name in FIGURES}  # in the page
ROWS = [
    Row([f"Regime {regime}", scheme, str(number), Cell("stays", "good")], {"regime": regime, "scheme": scheme})
    for number, (regime, scheme) in enumerate((r, s) for r in ("II", "III") for s in ("μP", "MSSP"))
]
TABLE = Table(["setting", "scheme", "number of runs that did not diverge", "verdict"], ROWS, "verdicts", "Verdicts")
REPORT = page(
    "A report",
    [Words("It went `well`."), Bullets(["one", "two"]), TABLE],
    [
        Section("Rates", [Chart(FIGURES["transfer"], "transfer", {"regime": "II"})]),
        Section("Check", [Chart(FIGURES["exponents"], "exponents", {"scheme": "MSSP", "regime": "III"})], "check"),
        Section("Tuning", [Chart(FIGURES["heatmaps"], "heatmaps")]),
        Section("Limit", [Folded("Its curves", [Chart(FIGURES["limit and networks"], "limit")])], "of-large"),
        Section("Again", [Command("mssp report runs.sqlite --out report.html"), Chart(FIGURES["scaling"], "scaling")]),
    ],
    "Made by `mssp`.",
)
ALL = page("All", [], [Section("All", [Chart(figure, NAMES[name]) for name, figure in FIGURES.items()])])


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None and not os.environ.get("CI"):
        pytest.skip("there is no Chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("pages")
    pages = {"report": REPORT, "all": ALL, "one": page_of(FIGURES["transfer"])}
    for name, html in pages.items():
        (folder / f"{name}.html").write_text(html, encoding="utf-8")
    return {name: (folder / f"{name}.html").as_uri() for name in pages}


class Opened:
    """A page, with all that it said and asked for."""

    def __init__(self, browser: Browser, address: str, width: int = 1280, **options: Any) -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 800}, **options)
        self.page: Page = self.context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.go(address)

    def go(self, address: str) -> None:
        self.page.goto(address)
        self.page.evaluate("window.reportReady")

    def drawn(self) -> list[str]:
        found: list[str] = self.page.evaluate(
            "[...document.querySelectorAll('.chart')].filter((c) => c.querySelector('.main-svg')).map((c) => c.id)"
        )
        return found

    def scroll_to(self, name: str) -> None:
        self.page.locator(f"[id='{name}']").scroll_into_view_if_needed()
        self.page.wait_for_function("(id) => document.getElementById(id).querySelector('.main-svg')", arg=name)

    def plot(self, name: str, expression: str) -> Any:
        """Something of plotly's own state of a figure, ``gd``."""
        return self.page.evaluate(f"(id) => {{ const gd = document.getElementById(id).querySelector('.plot'); "
                                  f"return {expression}; }}", name)  # fmt: skip

    def focused(self, expression: str) -> Any:
        return self.page.evaluate(f"(() => {{ const at = document.activeElement; return {expression}; }})()")


@pytest.fixture
def report(browser: Browser, addresses: dict[str, str]) -> Iterator[Opened]:
    opened = Opened(browser, addresses["report"])
    yield opened
    assert opened.said == []
    opened.context.close()


def test_nothing_is_said_or_fetched(report: Opened, addresses: dict[str, str]) -> None:
    for name in ("transfer", "exponents", "heatmaps", "scaling"):
        report.scroll_to(name)
    assert report.asked == [addresses["report"]]
    assert report.said == []


def test_figures_are_drawn_when_one_comes_near(report: Opened) -> None:
    before = report.drawn()
    assert "scaling" not in before
    assert "limit" not in before
    report.scroll_to("scaling")
    assert "scaling" in report.drawn()
    assert "limit" not in report.drawn()  # folded away


@pytest.mark.parametrize("name", ["transfer", "exponents", "heatmaps", "scaling"])
def test_figures_have_the_traces_they_were_made_of(report: Opened, name: str) -> None:
    report.scroll_to(name)
    data = traces(FIGURES[name])
    assert report.plot(name, "gd.data.map((t) => t.name ?? null)") == [trace.get("name") for trace in data]
    points = [len(trace.get("y", ())) for trace in data]
    assert report.plot(name, "gd.data.map((t) => t.y ? t.y.length : 0)") == points


def test_a_link_leads_into_folded_parts(report: Opened, browser: Browser, addresses: dict[str, str]) -> None:
    report.page.evaluate("location.hash = 'limit'")
    report.page.wait_for_function("() => document.querySelector('#limit .main-svg')")
    assert report.page.locator("details.folded").get_attribute("open") is not None
    top = report.page.evaluate("document.getElementById('limit').getBoundingClientRect().top")
    assert 0 <= top < 200
    other = Opened(browser, f"{addresses['report']}#limit")
    assert "limit" in other.drawn()
    other.context.close()


# -- filters -----------------------------------------------------------------------------------------------------------


def shown_rows(report: Opened) -> list[str]:
    rows: list[str] = report.page.locator("#verdicts tbody tr:visible").evaluate_all(
        "(rows) => rows.map((row) => row.cells[0].textContent + ' ' + row.cells[1].textContent)"
    )
    return rows


def test_filters_hide_what_has_a_value_and_survive_a_reload(report: Opened) -> None:
    status = report.page.locator("[role=status]")
    assert status.inner_text() == "Shown: 5 of 5 charts, 4 of 4 rows."
    report.page.get_by_role("checkbox", name="III", exact=True).uncheck()
    assert shown_rows(report) == ["Regime II μP", "Regime II MSSP"]
    assert not report.page.locator("#exponents").is_visible()
    assert report.page.locator("#transfer").is_visible()
    assert report.page.locator("#heatmaps").is_visible()  # it has no such tag
    assert status.inner_text() == "Shown: 4 of 5 charts, 2 of 4 rows."
    nothing = report.page.locator("section:visible > .nothing:visible")
    assert nothing.evaluate_all("(all) => all.map((each) => each.parentElement.id)") == ["check"]
    assert report.page.url.endswith("report.html?hide=regime%3AIII")

    report.page.reload()
    report.page.evaluate("window.reportReady")
    assert not report.page.get_by_role("checkbox", name="III", exact=True).is_checked()
    assert shown_rows(report) == ["Regime II μP", "Regime II MSSP"]

    report.page.get_by_role("button", name="Show all").click()
    report.page.wait_for_function("() => document.querySelectorAll('#verdicts tr[hidden]').length === 0")
    assert status.inner_text() == "Shown: 5 of 5 charts, 4 of 4 rows."
    assert report.page.url.endswith("report.html")


def test_a_table_without_rows_is_hidden_and_links_keep_the_filters(report: Opened) -> None:
    for name in ("II", "III"):
        report.page.get_by_role("checkbox", name=name, exact=True).uncheck()
    assert not report.page.locator("#verdicts").is_visible()
    report.page.get_by_role("link", name="Tuning").click()
    assert report.page.url.endswith("?hide=regime%3AII&hide=regime%3AIII#tuning")
    assert not report.page.locator("#verdicts").is_visible()


# -- by keyboard -------------------------------------------------------------------------------------------------------


def test_everything_is_reached_and_worked_by_keyboard(report: Opened) -> None:
    keyboard = report.page.keyboard
    keyboard.press("Tab")
    assert report.focused("at.textContent") == "Skip to the content"
    while report.focused("at.name") != "scheme":
        keyboard.press("Tab")
        assert report.focused("at !== document.body")
    keyboard.press("Space")
    assert shown_rows(report) == ["Regime II μP", "Regime III μP"]
    stops = 0
    while report.focused("at.className") != "csv":
        keyboard.press("Tab")
        stops += 1
        # Where one is can be seen, and figures are no traps.
        assert report.focused("getComputedStyle(at).outlineStyle !== 'none' || at.matches('main')")
    assert stops < 12
    with report.page.expect_download() as download:
        keyboard.press("Enter")
    assert download.value.suggested_filename == "transfer.csv"
    keyboard.press("Tab")
    assert report.focused("at.textContent") == "In words"
    keyboard.press("Enter")
    assert report.page.locator("[id='transfer.words']").is_visible()


@pytest.mark.slow
def test_what_scrolls_takes_the_focus_and_nothing_else_does(browser: Browser, addresses: dict[str, str]) -> None:
    found = {}
    for width in (1280, 390):
        opened = Opened(browser, addresses["report"], width)
        opened.scroll_to("heatmaps")
        opened.page.locator("#verdicts").scroll_into_view_if_needed()
        selectors = ("#verdicts", "#heatmaps .box", "#transfer .box")
        found[width] = [opened.page.locator(each).evaluate("(box) => box.tabIndex") for each in selectors]
        opened.context.close()
    assert found == {1280: [-1, -1, -1], 390: [0, 0, -1]}


# -- files -------------------------------------------------------------------------------------------------------------


def test_figures_are_had_as_svg_and_csv(report: Opened, tmp_path: Path) -> None:
    chart = report.page.locator("#transfer")
    with report.page.expect_download() as download:
        chart.get_by_role("button", name="SVG").click()
    assert download.value.suggested_filename == "transfer.svg"
    download.value.save_as(tmp_path / "transfer.svg")
    text = (tmp_path / "transfer.svg").read_text(encoding="utf-8")
    whole = layout(FIGURES["transfer"], titled=True)
    assert text.startswith("<svg")
    assert f'width="{whole["width"]}" height="{whole["height"]}"' in text
    assert "Does the best learning rate stay where it is?" in text
    with report.page.expect_download() as download:
        chart.get_by_role("link", name="CSV").click()
    download.value.save_as(tmp_path / "transfer.csv")
    assert (tmp_path / "transfer.csv").read_text(encoding="utf-8") == csv_of(FIGURES["transfer"])
    assert next(csv.reader(csv_of(FIGURES["transfer"]).splitlines()))[0] == "panel"


def test_commands_are_copied(report: Opened) -> None:
    report.context.grant_permissions(["clipboard-read", "clipboard-write"])
    report.page.get_by_role("button", name="Copy").click()
    report.page.get_by_role("button", name="Copied").wait_for()
    assert report.page.evaluate("navigator.clipboard.readText()") == "mssp report runs.sqlite --out report.html"


def test_without_scripts_words_tables_and_numbers_are_there(browser: Browser, addresses: dict[str, str]) -> None:
    context = browser.new_context(java_script_enabled=False)
    without = context.new_page()
    without.goto(addresses["report"])
    assert without.locator("noscript").first.is_visible()
    assert not without.get_by_role("button").count()
    with without.expect_download() as download:
        without.get_by_role("link", name="CSV of Does").click()
    assert download.value.suggested_filename == "transfer.csv"
    context.close()


# -- screens -----------------------------------------------------------------------------------------------------------

# Of what is drawn: texts that are not whole, with where they are; texts that a legend covers; the smallest size.
CHECK = """(id) => {
  const plot = document.getElementById(id).querySelector(".plot");
  const frame = plot.querySelector(".main-svg").getBoundingClientRect();
  const texts = [...plot.querySelectorAll(".main-svg text")].filter((text) => text.getBBox().width > 0);
  const seen = texts.map((text) => [text, text.getBoundingClientRect()]);
  const outside = seen.filter(([, r]) =>
    r.left < frame.left - 1 || r.right > frame.right + 1 || r.top < frame.top - 1 || r.bottom > frame.bottom + 1);
  const isLegend = ".infolayer > [class^=legend]"; // they are numbered
  const legends = [...plot.querySelectorAll(isLegend)].map((each) => each.getBoundingClientRect());
  const others = seen.filter(([text]) => !text.closest(isLegend));
  const beside = (a, b, by) => a.left >= b.right - by || b.left >= a.right - by;
  const hit = (a, b, by) => !beside(a, b, by) && a.top < b.bottom - by && b.top < a.bottom - by;
  const covered = others.filter(([, r]) => legends.some((legend) => hit(r, legend, 3)));
  const words = others.filter(([text]) => text.closest(".annotation"));
  const labels = others.filter(([text]) => text.closest(".xtick, .g-xtitle"));
  const crossed = words.filter(([, a]) => labels.some(([, b]) => hit(a, b, 3)));
  const entries = seen.filter(([text]) => text.closest(isLegend));
  const crowded = entries.filter(([, a]) => entries.some(([, b]) => a !== b && hit(a, b, 3)));
  const say = (list) => list.map(([text]) => text.textContent);
  const sizes = texts.map((text) => parseFloat(getComputedStyle(text).fontSize));
  return { outside: say(outside), covered: say(covered), crossed: say(crossed), crowded: say(crowded),
           smallest: Math.min(...sizes), scale: frame.width / plot.querySelector(".main-svg").clientWidth };
}"""


@pytest.mark.slow
@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_all_that_is_written_in_figures_can_be_read(browser: Browser, addresses: dict[str, str], width: int) -> None:
    opened = Opened(browser, addresses["all"], width)
    for name in NAMES.values():
        opened.scroll_to(name)
        found = opened.page.evaluate(CHECK, name)
        smallest = found.pop("smallest")
        assert (name, found) == (name, {"outside": [], "covered": [], "crossed": [], "crowded": [], "scale": 1})
        assert smallest >= 8.4  # of exponents, 0.7 of 12: nothing is scaled
    assert opened.said == []
    opened.context.close()


@pytest.mark.slow
@pytest.mark.parametrize("width", [320, 390, 1023, 1024])
def test_the_page_itself_never_scrolls_sideways(browser: Browser, addresses: dict[str, str], width: int) -> None:
    opened = Opened(browser, addresses["report"], width, has_touch=True, is_mobile=width < 1000)
    for name in ("transfer", "exponents", "heatmaps", "scaling"):
        opened.scroll_to(name)
    assert opened.page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    opened.context.close()


@pytest.mark.slow
def test_on_a_phone_panels_stand_in_one_column_and_wide_figures_scroll(
    browser: Browser, addresses: dict[str, str]
) -> None:
    opened = Opened(browser, addresses["report"], 390, has_touch=True, is_mobile=True)
    opened.scroll_to("transfer")
    domains = "Object.keys(gd._fullLayout).filter((k) => k.startsWith('xaxis')).map((k) => gd._fullLayout[k].domain)"
    assert opened.plot("transfer", domains) == [[0, 1]] * 6
    assert opened.plot("transfer", "gd._fullLayout.width") == 390
    opened.scroll_to("heatmaps")
    hint = opened.page.locator("#heatmaps .hint")
    assert hint.is_visible()
    assert not opened.page.locator("#transfer .hint").is_visible()
    box = opened.page.locator("#heatmaps .box")
    assert box.evaluate("(box) => box.scrollWidth > box.clientWidth && getComputedStyle(box).overflowX") == "auto"
    contents = opened.page.locator("nav details")
    assert contents.get_attribute("open") is None
    contents.locator("summary").tap()
    opened.page.get_by_role("link", name="Again").tap()
    assert contents.get_attribute("open") is None
    opened.context.close()


def test_figures_follow_the_windows_width(report: Opened) -> None:
    report.scroll_to("transfer")
    before = report.plot("transfer", "gd._fullLayout.width")
    report.page.set_viewport_size({"width": 560, "height": 800})
    report.page.wait_for_function("() => document.querySelector('#transfer .plot')._fullLayout.width < 600")
    assert before > 900
    room = report.page.locator("#transfer .box").evaluate("(box) => box.clientWidth")
    assert report.plot("transfer", "gd._fullLayout.width") == room


def test_the_dark_ground_is_followed_live(report: Opened) -> None:
    report.scroll_to("transfer")
    number, line = next((n, t) for n, t in enumerate(traces(FIGURES["transfer"])) if t["mode"] == "lines+markers")
    colours = f"[gd._fullLayout.paper_bgcolor, gd._fullLayout.xaxis.tickfont.color, gd.data[{number}].line.color]"
    light = report.plot("transfer", colours)
    assert light == [painted(colour, LIGHT, "color") for colour in (GROUND, INK, line["line"]["color"])]
    report.page.emulate_media(color_scheme="dark")
    report.page.wait_for_function(
        "() => document.querySelector('#transfer .plot')._fullLayout.paper_bgcolor !== '#ffffff'"
    )
    dark = [painted(colour, DARK, "color") for colour in (GROUND, INK, line["line"]["color"])]
    assert report.plot("transfer", colours) == dark
    assert report.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(21, 23, 28)"
    report.page.emulate_media(color_scheme="light")
    report.page.wait_for_function(
        "() => document.querySelector('#transfer .plot')._fullLayout.paper_bgcolor === '#ffffff'"
    )
    assert report.plot("transfer", colours) == light


# -- paper -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_all_figures_are_printed_in_light_colours_and_fit_a_page(browser: Browser, addresses: dict[str, str]) -> None:
    opened = Opened(browser, addresses["report"], color_scheme="dark")
    opened.page.evaluate("""addEventListener("beforeprint", () => {
      window.printed = [...document.querySelectorAll(".chart")].filter((each) => each.checkVisibility()).map((each) => {
        const plot = each.querySelector(".plot");
        const { width, height, paper_bgcolor } = plot._fullLayout;
        return [each.id, paper_bgcolor, width * plot.style.zoom <= 703, height * plot.style.zoom <= 950];
      });
    })""")
    pdf = opened.page.pdf(prefer_css_page_size=True)
    assert pdf.startswith(b"%PDF-")
    names = ["transfer", "exponents", "heatmaps", "scaling"]
    assert opened.page.evaluate("window.printed") == [[name, "#ffffff", True, True] for name in names]
    assert re.search(rb"/MediaBox \[0 0 59\d(\.\d+)? 84\d", pdf)  # A4 upright
    assert len(re.findall(rb"/Type /Page\b", pdf)) >= 4
    # As it was on the screen.
    assert opened.plot("transfer", "[gd._fullLayout.paper_bgcolor, gd.style.zoom]") == [ON_DARK, "1"]
    assert opened.said == []
    opened.context.close()


def test_what_prints_a_page_as_soon_as_it_is_loaded_has_its_figures(
    browser: Browser, addresses: dict[str, str]
) -> None:
    context = browser.new_context()
    printed = context.new_page()
    printed.goto(addresses["report"])
    printed.pdf()
    assert printed.locator(".main-svg").count() >= 4
    context.close()


def test_a_browser_that_cannot_unpack_figures_says_so(browser: Browser, addresses: dict[str, str]) -> None:
    context = browser.new_context()
    context.add_init_script("delete window.DecompressionStream")
    old = context.new_page()
    old.goto(addresses["report"])  # which ends: the page does not wait for figures that will never be there
    old.evaluate("window.reportReady")
    plots = old.locator(".plot").all_inner_texts()
    assert len(plots) == 5
    assert all("this browser cannot unpack them" in text and "2023 or later" in text for text in plots if text)
    assert any(plots)
    old.locator("input[value=II]").uncheck()  # filters work without figures
    assert old.locator("#transfer").is_hidden()
    context.close()


def test_on_paper_there_is_nothing_to_press(report: Opened) -> None:
    report.page.emulate_media(media="print")
    assert not report.page.locator("button:visible, nav:visible, form:visible, .csv:visible, .skip:visible").count()
    assert report.page.locator("h1").is_visible()
    assert report.page.locator("thead").evaluate("(head) => getComputedStyle(head).display") == "table-header-group"
    assert report.page.locator("#transfer").evaluate("(chart) => getComputedStyle(chart).breakInside") == "avoid"
    report.page.emulate_media(media="screen")


def test_a_page_of_one_figure_works_the_same(browser: Browser, addresses: dict[str, str]) -> None:
    opened = Opened(browser, addresses["one"], 390, color_scheme="dark")
    assert opened.drawn() == ["figure"]
    assert opened.plot("figure", "[gd._fullLayout.width, gd._fullLayout.paper_bgcolor]") == [390, ON_DARK]
    assert opened.page.locator("[id='figure.words']").is_visible()
    assert opened.page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    assert (opened.said, opened.asked) == ([], [addresses["one"]])
    opened.context.close()


@pytest.mark.slow
def test_a_report_of_a_store_and_a_check(browser: Browser, tmp_path: Path) -> None:
    """What ``mssp report`` writes: every chart is drawn with its traces, and a filter leaves out what it should."""
    sources = [filled(tmp_path / "runs.sqlite", trials()), check_file(tmp_path / "check.json")]
    made = sections.report(contents.read(sources), "Mine")
    (tmp_path / "report.html").write_text(made, encoding="utf-8")
    opened = Opened(browser, (tmp_path / "report.html").as_uri())
    names = ["transfer-1-regime-ii-sgd", "scaling-1-regime-ii-sgd", "agreement-1", "exponents-1", "aggregation-1"]
    for name in names:
        opened.scroll_to(name)
    widths = [f"N = {width}" for width in (64, 128, 256)]
    lines = opened.plot(names[0], "gd.data.filter((t) => t.mode == 'lines+markers').map((t) => t.name)")
    assert lines == [*widths, *widths]  # of μP and of MSSP
    stars = opened.plot(names[0], "gd.data.filter((t) => t.marker?.symbol == 'star' && t.x[0] !== null).length")
    assert stars == 6
    overview = opened.page.locator("#overview tbody tr").all_inner_texts()
    assert [row.split("\t")[0] for row in overview] == [
        "μP · Regime II · SGD · spectra · N = 64 to 256",
        "MSSP · Regime II · SGD · spectra · N = 64 to 256",
    ]
    assert opened.page.locator(".filters").count() == 0  # there is one of each
    assert opened.said == []
    opened.context.close()
