"""The monograph as plain HTML pages that need no network, no script and no server: one page an Act, figures beside it.

Formulas become MathML, figures stay files with their alt text, tables get a box of their own to scroll in. Everything a
notebook says is escaped; of its HTML only bare tables come through.
"""
from __future__ import annotations

import html
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit
from xml.etree import ElementTree

import nbformat
from jinja2 import Environment
from markdown_it import MarkdownIt
from markupsafe import Markup

from .. import paths
from ..errors import BadInput
from ..records import parse, read_text, sha256, write_atomic
from . import notebooks, published

LARGEST = 1_000_000  # bytes of one page
LONG = 40  # letters of a cell that gets more width
TABLE_TAGS = ("table", "thead", "tbody", "tr", "th", "td")
MATH_ATTRIBUTES = {"display", "displaystyle", "scriptlevel", "stretchy", "fence", "form", "minsize", "maxsize", "accent", "mathvariant", "movablelimits",
                   "lspace", "rspace", "width", "linethickness", "columnalign", "columnspacing", "rowspacing", "separator", "symmetric"}
TEMPLATE = Path(__file__).with_name("site.html")


def formula(latex: str, display: bool) -> str:
    """LaTeX as MathML with neither links nor styles. Raises BadInput for a formula that cannot be read."""
    from latex2mathml.converter import convert_to_element

    try:
        root = convert_to_element(latex.strip(), display="block" if display else "inline")
    except Exception as error:  # the library raises many classes
        raise BadInput(f"The formula {latex.strip()!r} cannot be written as MathML ({type(error).__name__}); write it with plainer commands.") from None
    for element in root.iter():
        if not re.fullmatch(r"m[a-z]+", str(element.tag)):
            raise BadInput(f"The formula {latex.strip()!r} makes <{element.tag}>, which is no MathML; write it with plainer commands.")
        element.text = html.unescape(element.text) if element.text else None
        element.attrib = {k: v for k, v in sorted(element.attrib.items()) if k in MATH_ATTRIBUTES}
    return ElementTree.tostring(root, encoding="unicode")


class BareTable(HTMLParser):
    """Tables of a notebook without anything but cells, text and alignment; any other tag is shown as text."""

    def __init__(self, source: str):
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag, attributes):
        if tag not in TABLE_TAGS:
            return self.handle_data(self.get_starttag_text())
        align = dict(attributes).get("align")
        kept = (' scope="col"' if tag == "th" else "") + (f' class="{align}"' if align in ("left", "right") else "")
        self.parts.append(f"<{tag}{kept}>")

    def handle_endtag(self, tag):
        self.parts.append(f"</{tag}>" if tag in TABLE_TAGS else html.escape(f"</{tag}>"))

    def handle_data(self, data):
        if len(data) > LONG and self.parts and self.parts[-1].startswith("<td"):  # a phone would make a pillar of it
            self.parts[-1] = self.parts[-1].replace('class="left"', 'class="left long"')
        self.parts.append(html.escape(data, quote=False))


def table(source: str, label: str) -> str:
    """A table in a box that scrolls sideways, also by keyboard."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{html.escape(label)}">{"".join(BareTable(source).parts)}</div>'


class Prose:
    """Markdown of one page as HTML; headings get ids, in order, and are kept for the list of contents."""

    def __init__(self, pages: dict[str, str]):
        from mdit_py_plugins.dollarmath import dollarmath_plugin

        self.pages, self.headings, self.links = pages, [], set()
        # no raw HTML, and no pictures: those of a page come from figures/ alone
        self.markdown = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image").use(
            dollarmath_plugin, allow_labels=False, allow_space=False, allow_digits=False, double_inline=True,
            renderer=lambda latex, options: formula(latex, options["display_mode"]))
        self.markdown.add_render_rule("link_open", lambda renderer, *rest: self.link(renderer, *rest))
        for rule, mark in (("table_open", '<div class="scroll" tabindex="0" role="region" aria-label="table"><table>'), ("table_close", "</table></div>")):
            self.markdown.add_render_rule(rule, lambda *_, mark=mark: mark)

    def link(self, renderer, tokens, index, options, env):
        token = tokens[index]
        target = urlsplit(str(token.attrGet("href")))
        if not target.scheme and not target.netloc and target.path.endswith(".ipynb"):
            if target.path not in self.pages:
                raise BadInput(f"A page links to {target.path}, which is no notebook of the monograph; correct the link.")
            token.attrSet("href", self.pages[target.path] + (f"#{target.fragment}" if target.fragment else ""))
        elif target.scheme not in ("http", "https") and not (token.attrGet("href") or "").startswith("#"):
            raise BadInput(f"A page links to {token.attrGet('href')!r}, which is not part of the site; link to a notebook or a web address.")
        return renderer.renderToken(tokens, index, options, env)

    def html(self, text: str) -> str:
        tokens = self.markdown.parse(text)
        for token, inline in zip(tokens, tokens[1:]):
            if token.type == "heading_open":
                words = "".join(t.content for t in inline.children if t.type in ("text", "code_inline", "math_inline"))
                slug = re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-") or "part"
                taken = sum(h[1] == slug or h[1].startswith(f"{slug}--") for h in self.headings)
                slug += f"--{taken + 1}" if taken else ""  # two hyphens are in no other slug
                token.attrSet("id", slug)
                self.headings.append((token.tag, slug, words))
        return self.markdown.renderer.render(tokens, self.markdown.options, {})


def picture(figure: str, alt: str, about: dict) -> tuple[str, Path]:
    """An ``img`` of the figure's SVG and that file, which must be the one that the notebook made."""
    sidecar = paths.figures() / f"{figure}.json"
    if not sidecar.exists() or sha256(sidecar.read_bytes()) != about["sha256"]:
        raise BadInput(f"Figure {figure} is not the one of its notebook; run `specdecode-nb build {figure.split('-')[0]}`.")
    file, digests = paths.figures() / f"{figure}.svg", parse(read_text(sidecar, "record"), sidecar.name)["sha256"]
    if not file.exists() or sha256(file.read_bytes()) != digests["svg"]:
        raise BadInput(f"figures/{file.name} is not the one of its notebook; run `specdecode-nb build {figure.split('-')[0]}`.")
    return f'<img src="figures/{file.name}" alt="{html.escape(alt)}">', file


def outputs(cell, prose: Prose, files: list[Path]) -> Iterator[str]:
    """The outputs of a code cell as HTML; ``files`` gets what they need."""
    waiting, caption = "", ""
    for output in cell.get("outputs", []):
        data, about = output.get("data", {}), output.get("metadata", {}).get("specdecode", {})
        if waiting:  # what follows a figure is its caption
            yield f"<figure>{waiting}<figcaption>{prose.html(data.get('text/markdown', ''))}</figcaption></figure>"
            waiting = ""
            if "text/markdown" in data:
                continue
        if "figure" in about:
            waiting, file = picture(about["figure"], output.metadata["image/png"]["alt"], about)
            files.append(file)
        elif "text/html" in data:
            yield table(data["text/html"], re.sub(r"[*`]", "", caption)[:120] or "table")
        elif "text/markdown" in data:
            caption = data["text/markdown"]
            yield prose.html(caption)
        else:
            yield f"<pre>{html.escape(output.get('text') or data.get('text/plain', ''), quote=False)}</pre>"
    if waiting:
        yield f"<figure>{waiting}</figure>"


def page(act: str, pages: dict[str, str], titles: dict[str, str]) -> tuple[str, list[Path]]:
    """One notebook as a page, and the figure files that it shows."""
    path = paths.notebooks() / f"{act}.ipynb"
    if not path.exists():
        raise BadInput(f"notebooks/{act}.ipynb has not been built; run `specdecode-nb build {act}`.")
    book = nbformat.reads(read_text(path, "executed notebook"), as_version=4)
    prose, files, body = Prose(pages), [], []
    for cell in book.cells:
        if cell.cell_type == "markdown":
            body.append(prose.html(cell.source))
        elif cell.cell_type == "code":
            body.append(f"<details><summary>code</summary><pre><code>{html.escape(cell.source, quote=False)}</code></pre></details>")
            body += outputs(cell, prose, files)
    order = list(titles)
    near = [order[i] if 0 <= i < len(order) else None for i in (order.index(act) - 1, order.index(act) + 1)]
    text = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        title=next((words for tag, _, words in prose.headings if tag == "h1"), titles[act]), body=Markup("\n".join(body)), act=act,
        titles=titles, pages=pages, parts=[h for h in prose.headings if h[0] == "h2"], before=near[0], after=near[1])
    if len(text.encode()) > LARGEST:
        raise BadInput(f"The page of {act} is {len(text.encode()):,} bytes, above {LARGEST:,}; show less on it.")
    return text, files


def write(folder: Path) -> list[Path]:
    """Every notebook that has a source as a page in ``folder``, the overview as index.html; returns the files written.

    Nothing is written if one page cannot be made. Raises BadInput for a notebook that is missing, stale figures, a
    formula that has no MathML, a link that leads nowhere and a page over a megabyte.
    """
    acts = notebooks.sources()
    pages = {f"{act}.ipynb": "index.html" if act == "overview" else f"{act}.html" for act in acts}
    titles = {act: "Overview" if act == "overview" else published.title(act) for act in acts}
    made = {act: page(act, pages, titles) for act in acts}
    contents = {pages[f"{act}.ipynb"]: text.encode() for act, (text, _) in made.items()}
    contents |= {f"figures/{file.name}": file.read_bytes() for _, files in made.values() for file in files}
    with notebooks.locked(folder):
        for name, data in contents.items():
            write_atomic(folder / name, data)
    return [folder / name for name in contents]
