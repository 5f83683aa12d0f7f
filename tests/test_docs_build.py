"""The site that ``./dev docs`` builds: complete, consistent, self-contained; and what it says of pages that are not."""

from __future__ import annotations

import doctest
import importlib.util
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import get_args, get_type_hints
from urllib.parse import unquote

import pytest
from tyro.conf import Positional

import mssp
from mssp.cli.commands import COMMANDS

ROOT = Path(__file__).parent.parent


def load(name: str) -> ModuleType:
    """A module beside the pages, which is no part of the package."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


builder, reference = load("build"), load("reference")


class Html(HTMLParser):
    """The parts of a page that the tests ask about."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def all(self, attribute: str, tag: str = "") -> list[str]:
        return [attrs[attribute] for name, attrs in self.tags if attribute in attrs and tag in ("", name)]


@pytest.fixture(scope="module")
def generated() -> dict[str, str]:
    return {"docs/cli.md": reference.commands(), "docs/api.md": reference.api()}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, generated: Mapping[str, str]) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "site"
    builder.build(folder, generated=generated)
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Html]:
    return {path: Html(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}


def test_every_page_is_there(site: Path) -> None:
    for source in [*ROOT.glob("docs/*.md"), *ROOT.glob("records/*.md")]:
        name = "index" if source.stem == "README" else source.stem
        assert (site / source.parent.name / f"{name}.html").is_file()
    assert "<h1" in (site / "index.html").read_text(encoding="utf-8")
    assert (site / "docs" / "cli.html").is_file()
    assert (site / "docs" / "api.html").is_file()
    assert (site / "records" / "2026-11-16-transfer-tinyimagenet.svg").is_file()


def test_links_and_anchors_lead_somewhere(pages: dict[Path, Html]) -> None:
    """Looked up in what was written, not in what the builder believes."""
    ids = {path: set(page.all("id")) for path, page in pages.items()}
    count = 0
    for path, page in pages.items():
        for target in [*page.all("href"), *page.all("src")]:
            file, _, anchor = target.partition("#")
            there = (path.parent / unquote(file)).resolve() if file else path
            assert there.is_file(), f"{path}: {target}"
            assert not anchor or unquote(anchor) in ids[there], f"{path}: {target}"
            count += 1
    assert count > 2000


def test_nothing_is_loaded_from_elsewhere(site: Path, pages: dict[Path, Html]) -> None:
    for page in pages.values():
        tags = {tag for tag, _ in page.tags}
        assert not tags & {"script", "iframe", "object", "embed", "form", "base"}
        for _, attrs in page.tags:
            assert not any("//" in attrs.get(name, "") for name in ("href", "src", "srcset", "style", "data", "action"))
            assert "http-equiv" not in attrs
    style = (site / "style.css").read_text(encoding="utf-8")
    assert not re.search(r"url\(|@import|//", style)


def test_pages_can_be_read_by_anyone(pages: dict[Path, Html]) -> None:
    for path, page in pages.items():
        assert ("html", {"lang": "en"}) in page.tags
        assert page.all("content", "meta")[0].startswith("width=device-width")
        assert [tag for tag, _ in page.tags].count("h1") == 1, path
        links = page.all("href", "a")
        assert links[0] == "#content"  # the skip link comes first
        assert page.all("id", "main") == ["content"]
        assert all(attrs.get("aria-label") for tag, attrs in page.tags if tag == "nav")
        assert all(attrs.get("alt") for tag, attrs in page.tags if tag == "img")
        assert all(attrs.get("tabindex") == "0" for tag, attrs in page.tags if tag == "pre")  # scrolls by keyboard
        assert len(page.all("id")) == len(set(page.all("id"))), path


def test_text_and_code_have_contrast() -> None:
    """At least 4.5 to 1 on both backgrounds, light and dark: what the accessibility guidelines ask of small text."""
    style = (ROOT / "docs" / "site.css").read_text(encoding="utf-8")
    light, dark = (dict(re.findall(r"--(\w+): (#\w{6})", part)) for part in style.split("prefers-color-scheme: dark"))

    def luminance(color: str) -> float:
        parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    for colors in (light, dark):
        assert len(colors) == 11
        for name in colors.keys() - {"paper", "shade", "line"}:
            for ground in ("paper", "shade"):
                low, high = sorted((luminance(colors[name]), luminance(colors[ground])))
                assert (high + 0.05) / (low + 0.05) >= 4.5, (name, ground)


def test_the_page_of_commands_has_every_flag(site: Path) -> None:
    text = (site / "docs" / "cli.html").read_text(encoding="utf-8")
    parts = dict(zip(COMMANDS, re.split(r'<h2 id="mssp-\w+">', text)[1:], strict=True))
    for name, (command, _) in COMMANDS.items():
        assert f"usage: mssp {name}" in parts[name]
        types = get_type_hints(command, include_extras=True)
        for field in fields(command):
            flag = field.name.replace("_", "-")
            positional = Positional in get_args(types[field.name]) and "positional arguments" in parts[name]
            assert positional or re.search(rf"<code>[^<]*--{flag}[ ,.<]", parts[name]), flag


def test_the_page_of_the_api_has_every_name(pages: dict[Path, Html], site: Path) -> None:
    ids = set(pages[site / "docs" / "api.html"].all("id"))
    assert {f"mssp.{name}" for name in mssp.__all__} - {"mssp.hf"} <= ids
    for package in ("hf", "nn", "data", "replicas", "dmft"):
        module = importlib.import_module(f"mssp.{package}")
        assert {f"mssp.{package}.{name}" for name in module.__all__} <= ids
    assert {"mssp.store.Store", "mssp.store.frame", "mssp.sweep.Transfer"} <= ids
    text = (site / "docs" / "api.html").read_text(encoding="utf-8")
    assert " at 0x" not in text
    assert '<span class="n">carried</span>' in text  # in the example of mssp.plan
    assert 'href="../src/mssp/planning/plans.py.html#L-' in text


def test_the_same_pages_make_the_same_site(tmp_path: Path, site: Path, generated: Mapping[str, str]) -> None:
    builder.build(tmp_path / "again", generated=generated)
    assert generated == {"docs/cli.md": reference.commands(), "docs/api.md": reference.api()}

    def contents(folder: Path) -> dict[str, bytes]:
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    assert contents(site) == contents(tmp_path / "again")


def test_the_examples_of_the_builder() -> None:
    assert doctest.testmod(builder).failed == 0


@pytest.fixture
def small(tmp_path: Path) -> Callable[..., Path]:
    """A repository of two pages, with some of its files changed."""

    def make(**changed: str) -> Path:
        files = {
            "README.md": "# Start\n\n[all](docs/README.md)\n",
            "docs/README.md": "# Index\n\n## Part\n\n- [One](one.md): a page\n",
            "docs/one.md": "# One\n\n## Part two\n\n[here](#part-two), [there](../README.md), ![a](../records/a.svg)\n",
            "docs/site.css": "body {}\n",
            "records/a.svg": "<svg/>",
        }
        for name, text in {**files, **changed}.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path

    return make


def test_a_small_site(small: Callable[..., Path]) -> None:
    root = small()
    assert builder.build(root / "out", root) == ["index.html", "docs/index.html", "docs/one.html"]
    page = (root / "out" / "docs" / "one.html").read_text(encoding="utf-8")
    assert '<h2 id="part-two">Part two <a class="here" href="#part-two"' in page
    assert '<a href="../index.html">there</a>' in page
    assert '<img src="../records/a.svg" alt="a" />' in page
    assert 'href="index.html">Previous: Index</a>' in page
    assert "Next: " not in page
    builder.build(root / "out", root)  # over itself


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("docs/one.md", "# One\n[x](two.md)\n", "docs/one.md: the link to two.md leads nowhere"),
        ("docs/one.md", "# One\n![x](x.svg)\n", "docs/one.md: the link to x.svg leads nowhere"),
        ("docs/one.md", "# One\n[x](#two)\n", "docs/one.md: there is no anchor #two in docs/one.md"),
        ("docs/one.md", "# One\n[x](../README.md#two)\n", "docs/one.md: there is no anchor #two in README.md"),
        ("docs/one.md", "# One\n```klingon\nx\n```\n", "docs/one.md: no such language in a block of code: klingon"),
        ("docs/one.md", "text\n", "docs/one.md: a page begins with a heading of the first level"),
        ("docs/two.md", "# Two\n", "docs/README.md: docs/two.md is not in it"),
        ("docs/README.md", "# Index\n", "docs/README.md: no sections with lists of pages"),
    ],
)
def test_what_is_wrong_is_said(small: Callable[..., Path], name: str, text: str, complaint: str) -> None:
    root = small(**{name: text})
    with pytest.raises(ValueError, match=f"^{re.escape(complaint)}$"):
        builder.build(root / "out", root)
    assert not (root / "out").exists()


def test_folders_of_others_are_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.txt").write_text("mine", encoding="utf-8")
    assert builder.main([str(tmp_path)]) == 2
    complaint = capsys.readouterr().err
    assert complaint == f"docs: error: {tmp_path} is there already, and was not made by this command\n"
    assert (tmp_path / "mine.txt").read_text(encoding="utf-8") == "mine"
    assert builder.main(["a", "b"]) == 2
    assert capsys.readouterr().err == "docs: error: usage: python docs/build.py [FOLDER]\n"


def test_one_command_builds_it() -> None:
    script = (ROOT / "dev").read_text(encoding="utf-8")
    assert "./dev docs " in script
    assert 'docs) ensure_venv; exec "$venv/bin/python" docs/build.py "$@" ;;' in script
    assert "build/" in (ROOT / ".gitignore").read_text(encoding="utf-8").split()
