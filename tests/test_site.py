"""The HTML site: no network, nothing unescaped, figures as files, every link leads somewhere, twice the same bytes."""
import re
import shutil
from html.parser import HTMLParser
from urllib.parse import unquote

import nbformat
import pytest

from book_tools import REPOSITORY
from specdecode_nb import cli, paths
from specdecode_nb.book import notebooks, site
from specdecode_nb.errors import BadInput

RESOURCES = {"script", "iframe", "object", "embed", "video", "audio", "source", "base", "form"}
VOID = {"meta", "link", "img", "br", "hr"}


class Reader(HTMLParser):
    """Tags with attributes, ids, links and text of a page; every tag must be closed in its place."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.words = [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    def of(self, tag, name):
        return [a[name] for t, a in self.tags if t == tag and name in a]

    @property
    def ids(self):
        return [a["id"] for _, a in self.tags if "id" in a]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The site of the committed notebooks, twice."""
    folders = [tmp_path_factory.mktemp(name) for name in ("one", "two")]
    for folder in folders:
        site.write(folder)
    return folders


def files(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_two_sites_are_equal_and_every_page_is_small(made):
    one, two = map(files, made)
    assert one == two and {"index.html"} | {f"{act}.html" for act in notebooks.sources() if act != "overview"} == {name for name in one if name.endswith(".html")}
    assert max(len(data) for name, data in one.items() if name.endswith(".html")) <= site.LARGEST


def test_pages_load_nothing_from_elsewhere_and_their_links_lead_somewhere(made):
    pages = {name: Reader(data.decode()) for name, data in files(made[0]).items() if name.endswith(".html")}
    for name, page in pages.items():
        assert not {tag for tag, _ in page.tags} & RESOURCES, name
        assert not [a for _, a in page.tags if any(key.startswith("on") or key in ("style", "srcset") for key in a)], name
        assert page.of("link", "href") == ["data:,"] and "url(" not in (made[0] / name).read_text() and "@import" not in (made[0] / name).read_text()
        assert len(set(page.ids)) == len(page.ids)
        for picture in page.of("img", "src"):
            assert (made[0] / picture).is_file() and picture.startswith("figures/"), (name, picture)
        for link in page.of("a", "href"):
            if not link.startswith(("http://", "https://")):
                file, _, part = link.partition("#")
                assert file == "" or file in pages, (name, link)
                assert not part or unquote(part) in pages[file or name].ids, (name, link)
        assert f"{name.removesuffix('.html')}.ipynb\"" not in (made[0] / name).read_text()


def test_every_figure_table_and_formula_of_a_notebook_is_on_its_page(made):
    for act in notebooks.sources():
        book = nbformat.read(paths.notebooks() / f"{act}.ipynb", as_version=4)
        page = Reader((made[0] / ("index.html" if act == "overview" else f"{act}.html")).read_text())
        shown = [o for c in book.cells for o in c.get("outputs", [])]
        figures = [o.metadata["specdecode"]["figure"] for o in shown if "figure" in o.get("metadata", {}).get("specdecode", {})]
        assert page.of("img", "alt") == [o.metadata["image/png"]["alt"] for o in shown if "image/png" in o.get("data", {})]
        assert page.of("img", "src") == [f"figures/{f}.svg" for f in figures]
        assert all((made[0] / "figures" / f"{f}.svg").read_bytes() == (paths.figures() / f"{f}.svg").read_bytes() for f in figures)
        assert sum(t == "table" for t, _ in page.tags) >= sum("text/html" in o.get("data", {}) for o in shown)
        prose = re.sub(r"(?s)<(code|pre)>.*?</\1>", "", (made[0] / ("index.html" if act == "overview" else f"{act}.html")).read_text())
        assert "$$" not in prose and not re.search(r"\\(frac|text|sum|mathrm|qquad)", prose), act


HOSTILE = "</title><script>alert(1)</script><img src=http://x/y onerror=z> **bold** ![p](http://x/y.png) [j](javascript:alert(1))"


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A tree with one notebook that is written by hand, the overview; returns a function that makes its page."""
    root = tmp_path / "book"
    shutil.copytree(REPOSITORY / "data" / "published", root / "data" / "published")
    (root / "notebooks" / "source").mkdir(parents=True)
    (root / "notebooks" / "source" / "overview.py").write_text("")
    (root / "pyproject.toml").write_text("")
    monkeypatch.setenv("SPECDECODE_ROOT", str(root))

    def make(*cells):
        nbformat.write(nbformat.v4.new_notebook(cells=list(cells)), root / "notebooks" / "overview.ipynb")
        site.write(tmp_path / "html")
        return (tmp_path / "html" / "index.html").read_text()

    return make


def shown(kind, text):
    return nbformat.v4.new_code_cell(f"print('{HOSTILE}')", outputs=[nbformat.v4.new_output("display_data", data={kind: text})])


def test_nothing_hostile_comes_through(small):
    table = f'<table onclick="x()"><tr><th align="right" style="x">a</th></tr><tr><td align="\"><b>">{HOSTILE}</td></tr></table><script src="http://x/y.js"></script>'
    text = small(nbformat.v4.new_markdown_cell(f"# T {HOSTILE}\n\n$\\text{{<script>alert(1)</script>}}$ <b>x</b>"), shown("text/markdown", HOSTILE), shown("text/html", table),
                 shown("text/plain", HOSTILE))
    page = Reader(text)
    assert not {tag for tag, _ in page.tags} & (RESOURCES | {"img"}) and text.count("<b ") == 1  # the name of the page in the list
    assert not [a for _, a in page.tags if any(key.startswith("on") or key == "style" for key in a)]
    assert all(not link.startswith("javascript") for link in page.of("a", "href"))
    assert text.count("&lt;script&gt;") >= 6 and '<th scope="col" class="right">a</th>' in text


def test_headings_with_one_name_get_ids_of_their_own(small):
    assert [i for i in Reader(small(nbformat.v4.new_markdown_cell("# A b\n\n## A b\n\n## A b 2\n\n### é"))).ids] == ["a-b", "a-b--2", "a-b-2", "part"]


def test_formulas_are_mathml(small):
    text = small(nbformat.v4.new_markdown_cell("# T\n\nThe sum $a_i < b$ costs 5$ and 6$.\n\n$$\\frac{1}{2} \\le \\sum_{j=1}^{K-1} P(a \\ge j)$$"))
    assert text.count("<math") == 2 and 'display="block"' in text and "<mfrac" in text and "&lt;" in text and "5$ and 6$" in text


@pytest.mark.parametrize("prose, words", [("$$\\left( x$$", "MathML"), ("[x](act77.ipynb)", "act77.ipynb"), ("[x](../../etc/passwd)", "not part of the site"), ("# T\n\n" + "word " * 250_000, "above 1,000,000")])
def test_what_cannot_be_shown_is_refused_and_nothing_is_written(small, tmp_path, prose, words):
    with pytest.raises(BadInput, match=words):
        small(nbformat.v4.new_markdown_cell(prose))
    assert not (tmp_path / "html").exists()


def test_stale_figures_and_missing_notebooks_are_refused(tmp_path, monkeypatch):
    root = tmp_path / "book"
    for part in ("data/published", "data/measured", "notebooks", "figures"):
        shutil.copytree(REPOSITORY / part, root / part)
    (root / "pyproject.toml").write_text("")
    monkeypatch.setenv("SPECDECODE_ROOT", str(root))
    figure = next((root / "figures").glob("act1-*.svg"))
    figure.write_bytes(figure.read_bytes() + b"\n")
    with pytest.raises(BadInput, match=f"{figure.name} is not the one.*build act1"):
        site.write(tmp_path / "html")
    (root / "notebooks" / "act2.ipynb").unlink()
    (root / "notebooks" / "act1.ipynb").unlink()
    with pytest.raises(BadInput, match="act1.ipynb has not been built"):
        site.write(tmp_path / "html")


def test_the_command_writes_outside_the_committed_tree_only(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["site", "--to", "html"]) == 0 and "html/index.html" in capsys.readouterr().out.split()
    assert cli.main(["site", "--to", str(paths.figures() / "x")]) == 2 and "committed figures/" in capsys.readouterr().err
