"""The documentation as a static site: ``./dev docs``, or ``python docs/build.py [FOLDER]`` (build/docs unless said).

Pages are the README (the start page), docs/*.md, records/*.md, and what ``reference.py`` writes: the flags of every
command and the Python API. Files that pages link to come along, sources as pages of their own. A link or an anchor that
leads nowhere is an error. The order of the pages is that of docs/README.md. Nothing is loaded from anywhere else.
"""

from __future__ import annotations

import html
import os
import posixpath
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pygments  # type: ignore[import-untyped]
from markdown_it import MarkdownIt
from markdown_it.token import Token
from pygments.formatters import HtmlFormatter  # type: ignore[import-untyped]
from pygments.lexers import get_lexer_by_name, get_lexer_for_filename  # type: ignore[import-untyped]
from pygments.util import ClassNotFound  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parent.parent
INDEX, START, STYLE, MADE = "docs/README.md", "README.md", "docs/site.css", ".made-by-docs-build"
GENERATED = {"docs/cli.md": "Commands", "docs/api.md": "Python API"}
IMAGES = {".svg", ".png", ".jpg"}
Headings = list[tuple[int, str, str]]  # level, anchor, text


@dataclass
class Page:
    """One page: ``source`` is its path in the repository; ``links`` are the sources and anchors that it points to."""

    source: str
    body: str = ""
    title: str = ""
    headings: Headings = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)
    links: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Section:
    """Pages that stand together in the navigation: source and title."""

    title: str
    pages: Sequence[tuple[str, str]]


def address(source: str) -> str:
    """Where a file of the repository is on the site.

    >>> address("docs/README.md"), address("docs/check.md"), address("src/mssp/planning/shape.py"), address("a/b.svg")
    ('docs/index.html', 'docs/check.html', 'src/mssp/planning/shape.py.html', 'a/b.svg')
    """
    stem, suffix = posixpath.splitext(source)
    if suffix == ".md":
        return (f"{stem.removesuffix('README')}index" if stem.endswith("README") else stem) + ".html"
    return source if suffix in IMAGES else f"{source}.html"


def slug(text: str) -> str:
    """A heading's anchor, as GitHub makes it.

    >>> slug("Is it implemented right?")
    'is-it-implemented-right'
    """
    return re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-")


def render(source: str, text: str, exists: Callable[[str], bool]) -> Page:
    """A page of Markdown; links that lead to no file are refused with the page's name."""
    page = Page(source)
    markdown = MarkdownIt("commonmark", {"html": False, "highlight": highlight}).enable("table")
    tokens = markdown.parse(text)
    for index, token in enumerate(tokens):
        if token.type == "heading_open":
            _name_heading(page, token, tokens[index + 1])
        for child in token.children or ():
            if child.type in ("link_open", "image"):
                attribute = "href" if child.type == "link_open" else "src"
                child.attrSet(attribute, _link(page, str(child.attrGet(attribute)), exists))
    if not page.title:
        raise ValueError(f"{source}: a page begins with a heading of the first level")
    wide = '<div class="wide" tabindex="0" role="region" aria-label="Table"><table>'
    try:
        body = markdown.renderer.render(tokens, markdown.options, {})
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None
    body = body.replace("<pre><code>", '<pre tabindex="0"><code>')  # indented blocks
    page.body = body.replace("<table>", wide).replace("</table>", "</table></div>")
    return page


def _name_heading(page: Page, opening: Token, inline: Token) -> None:
    """Give a heading an anchor: its own, ``{#like-this}`` at the end, or one made of its words."""
    children = inline.children or []
    last = children[-1] if children else Token("text", "", 0)
    own = re.search(r"\s*\{#([\w.-]+)\}$", last.content)
    if own:
        last.content = last.content[: own.start()]
    words = "".join(child.content for child in children)
    anchor = base = own[1] if own else slug(words)
    count = 0
    while anchor in page.anchors:
        count += 1
        anchor = f"{base}-{count}"
    level = int(opening.tag[1])
    page.title = page.title or words
    page.anchors.add(anchor)
    page.headings.append((level, anchor, words))
    opening.attrSet("id", anchor)
    if level > 1:
        name = html.escape(f"Link to: {words}", quote=True)
        link = Token("html_inline", "", 0, content=f' <a class="here" href="#{anchor}" aria-label="{name}">#</a>')
        children.append(link)


def _link(page: Page, target: str, exists: Callable[[str], bool]) -> str:
    if re.match(r"[a-z]+:", target):
        return target
    path, _, anchor = target.partition("#")
    source = posixpath.normpath(posixpath.join(posixpath.dirname(page.source), path)) if path else page.source
    if not exists(source):
        raise ValueError(f"{page.source}: the link to {target} leads nowhere")
    page.links.append((source, anchor))
    return relative(page.source, source) + (f"#{anchor}" if anchor else "")


def relative(here: str, there: str) -> str:
    return posixpath.relpath(address(there), posixpath.dirname(address(here)) or ".")


def highlight(code: str, language: str, _: str = "") -> str:
    try:
        lexer = get_lexer_by_name(language, stripnl=False) if language else None
    except ClassNotFound:
        raise ValueError(f"no such language in a block of code: {language}") from None
    colored = html.escape(code) if lexer is None else pygments.highlight(code, lexer, HtmlFormatter(nowrap=True))
    return f'<pre tabindex="0"><code>{colored}</code></pre>'


def source_page(source: str, text: str) -> Page:
    """A file of code, with an anchor for every line: L-1, L-2, ..."""
    try:
        lexer = get_lexer_for_filename(source, stripnl=False)
    except ClassNotFound:
        lexer = get_lexer_by_name("text", stripnl=False)
    lines = pygments.highlight(text, lexer, HtmlFormatter(nowrap=True)).rstrip("\n").split("\n")
    numbered = "\n".join(f'<span id="L-{number}">{line}</span>' for number, line in enumerate(lines, 1))
    body = f'<h1 id="source">{html.escape(source)}</h1>\n<pre tabindex="0"><code>{numbered}\n</code></pre>'
    anchors = {"source"} | {f"L-{number}" for number in range(1, len(lines) + 1)}
    return Page(source, body, source, [(1, "source", source)], anchors)


def navigation(index: Page, text: str) -> list[Section]:
    """The sections of docs/README.md: a heading of the second level, and the links of the list below it."""
    sections: list[Section] = []
    for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        found = re.findall(r"^- \[(.+?)\]\((\S+?)\)", part, flags=re.MULTILINE)
        pages = [(posixpath.normpath(f"docs/{path}"), title.replace("`", "")) for title, path in found]
        sections.append(Section(part.partition("\n")[0].strip(), pages))
    if not sections:
        raise ValueError(f"{index.source}: no sections with lists of pages")
    return sections


def build(output: Path, root: Path = ROOT, generated: Mapping[str, str] | None = None) -> list[str]:
    """Write the site, and return the addresses of its pages. ``generated`` are pages that no file holds."""
    texts = {path: _read(root, path) for path in _sources(root)}
    texts |= generated or {}

    def exists(source: str) -> bool:
        return source in texts or (root / source).is_file()

    pages = {source: render(source, text, exists) for source, text in texts.items()}
    sections = navigation(pages[INDEX], texts[INDEX])
    listed = [source for section in sections for source, _ in section.pages]
    for source in texts:
        if source.startswith("docs/") and source not in (*listed, INDEX, *(generated or ())):
            raise ValueError(f"{INDEX}: {source} is not in it")
    records = [(source, page.title) for source, page in pages.items() if source.startswith("records/")]
    reference = [(source, GENERATED.get(source, pages[source].title)) for source in generated or ()]
    sections += [Section("Reference", reference)] if reference else []
    sections += [Section("Records", records)] if records else []
    linked = sorted({source for page in pages.values() for source, _ in page.links} - set(pages))
    images = [source for source in linked if Path(source).suffix in IMAGES]
    for source in linked:
        if source not in images:
            pages[source] = source_page(source, _read(root, source))
    _check_anchors(pages)
    _empty(output)
    order = [START, INDEX, *listed, *(source for source, _ in reference)]
    for source, page in pages.items():
        near = {word: pages[order[order.index(source) + step]] for step, word in _steps(source, order)}
        _write(output, address(source), document(page, sections, near))
    for image in images:
        (output / image).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / image, output / image)
    _write(output, "style.css", _read(root, STYLE))
    return [address(source) for source in pages]


def _steps(source: str, order: Sequence[str]) -> Iterator[tuple[int, str]]:
    if source in order[1:]:
        yield -1, "Previous"
    if source in order[:-1]:
        yield 1, "Next"


def _sources(root: Path) -> Iterator[str]:
    for pattern in ("README.md", "CONTRIBUTING.md", "docs/*.md", "records/*.md"):
        yield from sorted(path.relative_to(root).as_posix() for path in root.glob(pattern))


def _read(root: Path, source: str) -> str:
    try:
        return (root / source).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{source}: {error}") from None


def _check_anchors(pages: Mapping[str, Page]) -> None:
    for page in pages.values():
        for source, anchor in page.links:
            if anchor and anchor not in (pages[source].anchors if source in pages else ()):
                raise ValueError(f"{page.source}: there is no anchor #{anchor} in {source}")


def _empty(output: Path) -> None:
    """Make the folder, or empty the one that an earlier build has made; nobody else's is touched."""
    if output.exists():
        if not output.is_dir() or (any(output.iterdir()) and not (output / MADE).is_file()):
            raise ValueError(f"{output} is there already, and was not made by this command")
        shutil.rmtree(output)
    _write(output, MADE, "")


def _write(output: Path, name: str, text: str) -> None:
    (output / name).parent.mkdir(parents=True, exist_ok=True)
    (output / name).write_text(text, encoding="utf-8")


def document(page: Page, sections: Sequence[Section], near: Mapping[str, Page]) -> str:
    def link(source: str, title: str) -> str:
        current = ' aria-current="page"' if source == page.source else ""
        return f'<a href="{relative(page.source, source)}"{current}>{html.escape(title)}</a>'

    def listed(section: Section) -> str:
        entries = "".join(f"<li>{link(source, title)}</li>" for source, title in section.pages)
        return f"<h2>{html.escape(section.title)}</h2><ul>{entries}</ul>"

    below = [(anchor, text) for level, anchor, text in page.headings if level == 2]
    contents = "".join(f'<li><a href="#{anchor}">{html.escape(text)}</a></li>' for anchor, text in below)
    contents = f"<details><summary>On this page</summary><ul>{contents}</ul></details>" if len(below) > 2 else ""
    body = page.body.replace("</h1>", f"</h1>\n{contents}", 1)
    steps = "".join(link(there.source, f"{word}: {there.title}") for word, there in near.items())
    style = posixpath.relpath("style.css", posixpath.dirname(address(page.source)) or ".")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{html.escape(page.title)}{"" if page.source == START else " · mssp"}</title>
<link rel="stylesheet" href="{style}">
</head>
<body>
<a class="skip" href="#content">Skip to the content</a>
<header>{link(START, "mssp")} {link(INDEX, "Documentation")} <a class="menu" href="#pages">All pages</a></header>
<main id="content" tabindex="-1">
{body}
<nav class="steps" aria-label="Reading order">{steps}</nav>
</main>
<nav id="pages" aria-label="All pages">{"".join(map(listed, sections))}</nav>
</body>
</html>
"""


def main(arguments: Sequence[str]) -> int:
    try:
        if len(arguments) > 1 or arguments[:1] in (["-h"], ["--help"]):
            raise ValueError("usage: python docs/build.py [FOLDER]")
        sys.path.insert(0, str(Path(__file__).parent))  # wherever it is called from
        from reference import api, commands

        output = Path(arguments[0]) if arguments else ROOT / "build" / "docs"
        made = build(output, generated=dict(zip(GENERATED, (commands(), api()), strict=True)))
    except (ValueError, OSError) as error:
        print(f"docs: error: {error}", file=sys.stderr)
        return 2
    print(f"{len(made)} pages in {os.path.relpath(output)}: open {os.path.relpath(output / 'index.html')}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
