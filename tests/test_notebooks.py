"""The one-way build: what is refused, what a run must be to count, and what `check` finds."""
import json
import os
import re
import shutil
import signal

import nbformat
import pytest

from book_tools import HEADER, PARAMETERS, REPOSITORY, SMALL, tree
from specdecode_nb import paths
from specdecode_nb.book import acts, check, digests, notebooks
from specdecode_nb.errors import BadInput, RunFailed
from specdecode_nb.records import save_rows

BODY = "# %%\nx = 1\n"


def source(tmp_path, text):
    path = tmp_path / "act1.py"
    path.write_text(text)
    return path


# --- sources ---

@pytest.mark.parametrize("text, words", [
    (HEADER + BODY, "0 cells tagged parameters"), (HEADER + PARAMETERS + PARAMETERS + BODY, "2 cells tagged"), (PARAMETERS + BODY, "jupytext header"),
    (HEADER + PARAMETERS.replace('rows = ""', 'rows = "" + "a"') + BODY, "literals only; move line 2"), (HEADER + PARAMETERS.replace('"tiny-hybrid"', '"other"'), "'target' .* is 'other'"),
    (HEADER + PARAMETERS.replace('rows = ""', "rows = 0"), "'rows'"), (HEADER + PARAMETERS.replace('rows = ""', 'rwos = ""'), "'rows'"),
    (HEADER + PARAMETERS.replace('rows = ""', 'rows = ""\nextra = 1'), "'extra'"), (HEADER + PARAMETERS.replace('rows = ""', "import os"), "literals only"),
    (HEADER + PARAMETERS.replace("target = ", "target, y = "), "literals only"), (HEADER + PARAMETERS.replace('rows = ""', "rows = ("), "not Python")])
def test_a_source_that_would_run_with_wrong_parameters_is_refused(tmp_path, text, words):
    with pytest.raises(BadInput, match=words):
        notebooks.read_source("act1", source(tmp_path, text))


def test_ids_are_stable_unique_and_allowed(tmp_path):
    path = source(tmp_path, HEADER + PARAMETERS + BODY * 3)
    ids = [c.id for c in notebooks.read_source("act1", path).cells]
    assert ids == [c.id for c in notebooks.read_source("act1", path).cells] == ["act1-000", "act1-001", "act1-002", "act1-003"]


def test_every_committed_source_is_in_order():
    for act in notebooks.sources():
        book = notebooks.read_source(act)
        assert "page.finish()" in book.cells[-1].source, act


# --- runs ---

def run(tmp_path, cells, **options):
    staging = tmp_path / "staging {a}"
    staging.mkdir()
    return notebooks.execute("act1", options.pop("params", {}), staging, tmp_path, "a command", source(tmp_path, HEADER + PARAMETERS + cells), **options)


@pytest.mark.parametrize("cells, words", [
    ("# %%\n1 / 0\n\n# %%\nx = 1\n", r"in cell 1 \(1 / 0\): ZeroDivisionError"), ("# %%\nimport sys\nsys.exit(0)\n\n# %%\nx = 1\n", "act1 stopped in cell 1"),
    ("# %%\nimport os\nos.kill(os.getpid(), 9)\n", r"cell 1 .*Dead"), ("# %%\nimport warnings\nwarnings.warn('odd')\n", "stderr"), (BODY, "page was not closed")])
def test_a_run_counts_only_if_all_of_it_ran_well(tmp_path, cells, words):
    with pytest.raises(RunFailed, match=words):
        run(tmp_path, cells)


def test_a_cell_that_takes_too_long_is_a_failure(tmp_path):
    with pytest.raises(RunFailed, match="in cell 1 .*(Timeout|time)"):
        run(tmp_path, "# %%\nimport time\ntime.sleep(60)\n\n# %%\nx = 1\n", timeout=2)


def test_the_kernel_is_this_interpreter_whatever_the_machine_offers(tmp_path, monkeypatch):
    poisoned = tmp_path / "jupyter" / "kernels" / "python3"
    poisoned.mkdir(parents=True)
    (poisoned / "kernel.json").write_text(json.dumps({"argv": ["/bin/false"], "display_name": "poison", "language": "python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    code = ("# %%\nimport os, sys\nassert rows == 'act1.json' and os.path.samefile(os.getcwd(), WHERE)\nraise RuntimeError(sys.executable)\n").replace("WHERE", repr(str(tmp_path)))
    import sys

    with pytest.raises(RunFailed, match=re.escape(f"RuntimeError: {sys.executable}")):
        run(tmp_path, code, params={"rows": "act1.json"})
    failed = nbformat.read(tmp_path / "staging {a}" / "failed.ipynb", as_version=4)
    assert "injected-parameters" in [t for c in failed.cells for t in c.metadata.get("tags", [])]


# --- a built monograph ---

@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """One built tree, in a folder whose name papermill would take for a template, and a second build of it elsewhere."""
    folder, other = tmp_path_factory.mktemp("a{b}"), tmp_path_factory.mktemp("other")
    before = os.environ.get("SPECDECODE_ROOT"), os.getcwd()
    try:
        for root, cwd in ((tree(folder / "book"), "/"), (tree(other / "book"), other)):
            os.environ["SPECDECODE_ROOT"] = str(root)
            os.chdir(cwd)
            notebooks.build("overview")
    finally:
        os.chdir(before[1])
        os.environ.pop("SPECDECODE_ROOT") if before[0] is None else os.environ.update(SPECDECODE_ROOT=before[0])
    return folder / "book", other / "book"


@pytest.fixture
def book(built, tmp_path, monkeypatch):
    """A copy of the built tree, to break."""
    root = shutil.copytree(built[0], tmp_path / "book")
    monkeypatch.setenv("SPECDECODE_ROOT", str(root))
    monkeypatch.setattr(check, "BOOK", ("overview",))
    return root


def derived(root):
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_two_builds_are_the_same_bytes_from_any_folder(built):
    one, two = map(derived, built)
    assert one == two and {"notebooks/overview.ipynb", "figures/overview-curve.svg", "figures/tables/overview-small.tex", "figures/numbers.tex"} <= set(one)


def test_a_built_notebook_is_clean(built):
    text = (built[0] / "notebooks" / "overview.ipynb").read_text()
    nb = nbformat.reads(text, as_version=4)
    json.loads(text, parse_constant=lambda name: pytest.fail(name))
    assert (nb.nbformat, nb.nbformat_minor) == (4, 5) and set(nb.metadata) == {"kernelspec", "language_info"}
    assert all(set(c.metadata) <= {"tags", "specdecode"} and re.fullmatch(r"overview-\d{3}", c.id) for c in nb.cells)
    assert not list(check.leaks("x", text)) and "papermill" not in text
    kinds = {k for c in nb.cells for o in c.get("outputs", []) for k in o.get("data", {})}
    assert kinds == {"image/png", "text/plain", "text/html", "text/markdown"}


def test_a_fresh_book_has_no_problems(book):
    assert check.problems() == []


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize("name, old, new, words", [
    ("notebooks/source/overview.py", "0.5, \".2f\"", "0.6, \".2f\"", "stale at cell 3"), ("notebooks/source/overview.py", "# # A small page", "# # A page", "stale at cell 0"),
    ("notebooks/source/overview.py", "python3\n# ---", "other\n# ---", "jupytext header"), ("notebooks/overview.ipynb", "# A small page", "# A page", "stale at cell 0"),
    ("notebooks/overview.ipynb", "A number: 0.50", "A number: /home" "/someone/0.50", "holds '/home" "/s'"), ("notebooks/overview.ipynb", '"nbformat_minor": 5', '"nbformat_minor": 4', "overview"),
    ("notebooks/overview.ipynb", '"execution_count": 2', '"execution_count": 7', "did not run in its place"), ("notebooks/overview.ipynb", '"id": "overview-001"', '"id": "overview-000"', "overview"),
    ("figures/overview-curve.json", "Survival", "Survivals", "figure overview-curve"), ("figures/overview-curve.svg", "<svg", "<svg ", "overview-curve.svg is not the one"),
    ("figures/tables/overview-small.csv", "1.5", "1.6", "cell 3: figures/tables/overview-small.csv"), ("figures/tables/overview-small.tex", "1.5", "1.6", "overview-small.tex"),
    ("figures/numbers.json", "0.50", "0.51", "number half"), ("figures/numbers.tex", "0.50", "0.51", "numbers.tex does not follow"),
    ("data/published/act4n.json", "paused before", "stopped before", "act4n.json has changed since"), ("data/published/act1.json", '"act": "act1"', '"act": NaN', "not finite")])
def test_whatever_is_changed_by_hand_is_found(book, name, old, new, words):
    edit(book / name, old, new)
    found = check.problems()
    assert any(words in line for line in found), found


def showing(root, change):
    """Edit the committed notebook as a reader's editor would: ``change(book)``, saved without a word of what was run."""
    path = root / "notebooks" / "overview.ipynb"
    nb = nbformat.read(path, as_version=4)
    change(nb)
    path.write_bytes(notebooks.written(nb))


def output(nb, kind, part=""):
    """(cell, output) of the first output of a MIME type that holds ``part``."""
    return next((c, o) for c in nb.cells for o in c.get("outputs", []) if kind in o.get("data", {}) and part in o.data[kind])


def put(kind, old, new):
    def change(nb):
        data = output(nb, kind, old)[1].data
        data[kind] = data[kind].replace(old, new)
    return change


def retell_picture(nb):
    output(nb, "image/png")[1].data["text/plain"] = "Another text."


def drop_picture(nb):
    cell, shown = output(nb, "image/png")
    cell.outputs.remove(shown)


def double_picture(nb):
    cell, shown = output(nb, "image/png")
    cell.outputs.append(shown)


@pytest.mark.parametrize("change, words", [
    (put("text/html", "1.5", "1.7"), "other outputs than its run gave at cell 3 (page.number("), (put("text/markdown", "A number: 0.50", "A number: 0.50, which is much"), "cell 3"),
    (retell_picture, "cell 4 (page.figure("), (drop_picture, "cell 4 (page.figure("), (double_picture, "cell 4 (page.figure("),
    (lambda nb: nb.cells[2].outputs.append(nbformat.v4.new_output("stream", name="stdout", text="42\n")), "cell 2 (import pandas"),
    (lambda nb: nb.metadata.update(authors=["x"]), "other notebook metadata"), (lambda nb: nb.cells[0].metadata.update(collapsed=True), "does not write at cell 0"),
    (lambda nb: nb.cells[0].update(id="a-b"), "does not write at cell 0"), (lambda nb: nb.cells[2].metadata.specdecode.pop("outputs"), "other outputs than its run gave at cell 2"),
    (lambda nb: nb.cells[2].metadata.update(tags=["hide"]), "stale at cell 2")])
def test_an_executed_notebook_that_was_edited_is_found(book, change, words):
    showing(book, change)
    found = check.problems()
    assert any(line.startswith("overview ") and words in line for line in found), found


def test_digests_of_outputs_take_little_room(built):
    text = (built[0] / "notebooks" / "overview.ipynb").read_text()
    lines = [line for line in text.splitlines() if re.match(r' *"outputs": "[0-9a-f]{16}",?$', line)]
    assert len(lines) == 5 and sum(map(len, lines)) < 200


def test_every_act_has_to_be_there(book, monkeypatch):
    monkeypatch.setattr(check, "BOOK", ("overview", "act3"))
    found = check.problems()
    assert len(found) == 2 and "no notebook source for act3" in found[0] and "notebooks/act3.ipynb has not been built" in found[1]
    monkeypatch.undo()
    assert check.BOOK == ("overview", *acts.reading())


@pytest.mark.parametrize("name, data, words", [
    ("figures/numbers.tex", None, "figures/numbers.tex is missing"), ("figures/numbers.json", None, "figures/numbers.json is missing"),
    ("figures/numbers.json", b"[]", "numbers.json is no record of numbers at the top"), ("figures/numbers.json", b"{", "numbers.json is not JSON"),
    ("figures/numbers.json", b'{"overview.half": 1}', "numbers.json is no record of numbers at overview.half"), ("figures/tables/overview-small.csv", b"\xff", "figures/tables/overview-small.csv cannot be read (Unicode"),
    ("figures/overview-curve.json", b"\xff", "figures/overview-curve.json cannot be read"), ("notebooks/source/overview.py", b"\xff", "Notebook source"),
    ("notebooks/source/overview.py", b"\x00", "jupytext header"), ("data/digests.json", b"[]", "data/digests.json is no record"), ("data/digests.json", None, "data/digests.json is missing"),
    ("data/published/act1.json", b"\xff", "act1.json cannot be read")])
def test_one_damaged_file_does_not_hide_the_others(book, name, data, words):
    edit(book / "figures" / "tables" / "overview-small.tex", "1.5", "1.6")
    (book / name).unlink() if data is None else (book / name).write_bytes(data)
    found = check.problems()
    assert sum(words in line for line in found) >= 1 and any("overview-small.tex is not the one" in line for line in found), found
    assert len(found) < 7 and not any("half" in line and "None" in line for line in found)


def test_files_that_nothing_makes_or_reads_are_found(book):
    stray = ["figures/foo.png", "figures/overview-nope.png", "figures/tables/overview-nope.csv", "figures/tables/overview-small.txt", "notebooks/notes.md", "notebooks/source/act9.py",
             "data/published/act9.json", "data/notes.txt", "figures/overview-curve-old.svg"]
    for name in [*stray, "figures/.hidden", "notebooks/.ipynb_checkpoints/x.ipynb"]:
        (book / name).parent.mkdir(exist_ok=True)
        (book / name).write_text("{}")
    found = [line for line in check.problems() if line.endswith("remove it.")]
    assert sorted(line.split()[0] for line in found) == sorted(stray)
    edit(book / "figures" / "numbers.json", '"overview.half"', '"act9.half"')
    assert any("numbers of 'act9'" in line for line in check.problems())


def rows_file(path, act="act4s", target="tiny", provenance=None, **config):
    path.parent.mkdir(parents=True, exist_ok=True)
    return save_rows(path, act, target, provenance or {}, config, [])


def test_rows_are_where_their_act_and_target_say(book):
    folder = book / "data" / "measured"
    for place in ("tiny/act4s.json", "foo/act4s.json", "tiny/act4u2.json"):
        rows_file(folder / place)
    found = "\n".join(check.problems())
    assert "data/measured/foo/act4s.json holds rows of 'act4s' on 'tiny', not of 'act4s' on 'foo'" in found and "data/measured/tiny/act4u2.json holds rows of 'act4s'" in found
    assert "data/measured/tiny/act4s.json holds" not in found and "data/measured/tiny/act4s.json is drawn by no notebook" in found


# --- what rows were measured with ---

@pytest.fixture
def models(tmp_path, monkeypatch):
    """A target with an adapter and a control, prompts, and rows of each; recorded as a build does."""
    monkeypatch.setenv("SPECDECODE_ROOT", str(tmp_path))
    folder = tmp_path / "data" / "models" / "tiny"
    folder.mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "uno.json", "uno.safetensors", "control.json", "control.safetensors", "training.json", ".hidden"):
        (folder / name).write_text(name)
    (tmp_path / "data" / "prompts").mkdir()
    (tmp_path / "data" / "prompts" / "suite.json").write_text("{}")
    rows_file(tmp_path / "data" / "measured" / "tiny" / "act4s.json", provenance={"drafter": {"name": "uno"}}, prompts=["a"])
    control = digests.current()["data/models/tiny/control.safetensors"]
    rows_file(tmp_path / "data" / "measured" / "tiny" / "act4s_rest.json", "act4s_rest", prompts=["a"], adapter=control)
    rows_file(tmp_path / "data" / "measured" / "tiny" / "uno_recipes.json", "uno_recipes")
    digests.write()
    return tmp_path


@pytest.mark.parametrize("name, used", [
    ("models/tiny/model.safetensors", ["act4s", "act4s_rest", "uno_recipes"]), ("models/tiny/config.json", ["act4s", "act4s_rest", "uno_recipes"]), ("models/tiny/uno.safetensors", ["act4s"]),
    ("models/tiny/uno.json", ["act4s"]), ("models/tiny/control.safetensors", ["act4s_rest"]), ("models/tiny/training.json", []), ("prompts/suite.json", ["act4s", "act4s_rest"])])
def test_a_changed_or_deleted_model_or_prompt_is_found_with_its_rows(models, name, used):
    assert list(digests.problems()) == [] and ".hidden" not in (models / "data" / "digests.json").read_text()
    path = models / "data" / name
    path.write_bytes(path.read_bytes() + b" ")
    (changed,) = digests.problems()
    path.unlink()
    (gone,) = digests.problems()
    assert f"data/{name} has changed since" in changed and f"data/{name} is in data/digests.json but missing" in gone
    assert re.findall(r"measured/tiny/(\w+)\.json", changed) == re.findall(r"measured/tiny/(\w+)\.json", gone) == used


def test_a_new_model_file_is_found_until_the_next_build(models):
    (models / "data" / "models" / "tiny" / "new.safetensors").write_bytes(b"x")
    assert ["data/models/tiny/new.safetensors is not in" in line for line in digests.problems()] == [True]
    digests.write()
    assert list(digests.problems()) == []


def test_pictures_stray_and_missing_files_are_found(book):
    (book / "figures" / "overview-curve.png").write_bytes(b"x")
    (book / "figures" / "act9-x.png").write_bytes(b"x")
    (book / "notebooks" / "act2.ipynb").write_text("{}")
    found = "\n".join(check.problems())
    assert all(words in found for words in ("overview-curve.png is not the one", "figures/act9-x.png belongs to no Act", "notebooks/act2.ipynb belongs to no Act"))
    (book / "notebooks" / "overview.ipynb").unlink()
    assert any("overview" in line and "build" in line for line in check.problems())


def test_both_sides_edited_stops_and_leaves_both(book):
    edit(book / "notebooks" / "source" / "overview.py", "# # A small page", "# # A text page")
    edit(book / "notebooks" / "overview.ipynb", "# A small page", "# A notebook page")
    before = derived(book)
    assert any("stale at cell 0" in line for line in check.problems())
    assert derived(book) == before


def test_a_failing_build_leaves_the_last_good_notebook(book):
    before = derived(book)
    (book / "notebooks" / "source" / "overview.py").write_text(SMALL.replace("0.5 < 1", "0.5 > 1"))
    with pytest.raises(RunFailed, match="cell 3 .*AssertionError: This does not hold: half is less than one.*out/failed/overview.ipynb"):
        notebooks.build("overview")
    after = derived(book)
    assert all(after[name] == data for name, data in before.items() if name != "notebooks/source/overview.py")
    assert set(after) - set(before) == {"out/failed/overview.ipynb"}


def test_what_an_act_no_longer_makes_is_removed(book, tmp_path):
    made = tmp_path / "staging" / "figures"
    made.mkdir(parents=True)
    (made / "overview-new.png").write_bytes(b"x")
    notebooks.install("overview", tmp_path / "staging", paths.figures())
    assert sorted(p.name for p in paths.figures().rglob("*-*")) == ["overview-new.png"]
    assert json.loads((paths.figures() / "numbers.json").read_text()) == {}


def test_rebuilding_in_check_compares_every_byte(book):
    assert check.problems(rebuild=True) == []


# --- the committed monograph ---

def test_every_published_item_appears_in_its_notebook():
    from specdecode_nb.book import published

    for act in (a for a in paths.ACTS if (paths.notebooks() / f"{a}.ipynb").exists()):
        nb = nbformat.read(paths.notebooks() / f"{act}.ipynb", as_version=4)
        about = [o.get("metadata", {}).get("specdecode", {}) for c in nb.cells for o in c.get("outputs", [])]
        text = "\n".join(check.readable(c) for c in nb.cells)
        facts, tables = published.load(act).facts, {a["table"] for a in about if "table" in a}
        for table in facts.tables:
            assert f"{act}-{table.id.removeprefix(act + '_').replace('_', '-').lower()}" in tables, (act, table.id)
        negatives = [a["negative"] for a in about if "negative" in a]
        assert sorted(negatives) == sorted(n.hypothesis for n in facts.negative_results), act
        csv = "\n".join((REPOSITORY / "figures" / "tables" / f"{t}.csv").read_text() for t in tables)
        assert all(c.id in csv and c.statement.replace('"', '""') in csv for c in facts.criteria), act
        assert facts.verdict in text and facts.question in text and all(note in text for note in facts.notes), act


# --- hostile files in the tree ---

@pytest.fixture
def bounded():
    """Reading a pipe would never end; it ends here."""
    def late(*_):
        raise TimeoutError("It waits for a pipe.")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(300)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("name, data, words", [
    ("notebooks/overview.ipynb", os.mkfifo, "it is no regular file"), ("figures/overview-curve.csv", os.mkfifo, "figures/overview-curve.csv is no regular file"),
    ("figures/overview-curve.json", os.mkfifo, "overview-curve.json is no regular file"), ("notebooks/source/overview.py", os.mkfifo, "no notebook source"),
    ("data/measured/t/act4s.json", os.mkfifo, "it is no regular file"), ("data/published/act1.json", os.mkfifo, "it is no regular file"), ("figures/numbers.json", os.mkfifo, "numbers.json is missing"),
    ("notebooks/overview.ipynb", b"[" * 100_000, "nested too deeply"), ("notebooks/overview.ipynb", b'{"a":' * 500 + b"1" + b"}" * 500, "nested too deeply"),
    ("notebooks/overview.ipynb", b'{"nbformat": 4, "nbformat": 4}', "'nbformat' twice"), ("notebooks/overview.ipynb", b'{"nbformat": ' + b"9" * 5000 + b"}", "too many digits"),
    ("notebooks/overview.ipynb", b'\xef\xbb\xbf{}', "is not JSON"), ("notebooks/overview.ipynb", b'{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}', "stale at its end")])
def test_pipes_and_hostile_json_in_the_tree_are_findings(book, bounded, name, data, words):
    path = book / name
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    data(path) if callable(data) else path.write_bytes(data)
    found = check.problems()
    assert any(words in line for line in found) and all("\n" not in line and len(line) < 900 for line in found), found


def test_a_header_that_expands_without_end_is_refused(tmp_path, bounded):
    lists = "".join(f"#   {name}: &{name} [{', '.join([f'*{before}' if before else 'x'] * 9)}]\n" for before, name in zip(["", *"abcdefgh"], "abcdefghi"))
    text = HEADER.replace("# ---\n\n", f"{lists}# ---\n\n")
    with pytest.raises(BadInput, match="an anchor or an alias"):
        notebooks.read_source("act1", source(tmp_path, text + PARAMETERS + BODY))


def test_what_a_page_writes_by_a_relative_name_lies_in_the_named_folder(book, tmp_path, monkeypatch):
    """A page is code of this repository and may do anything; by accident it writes where its results go, and a build leaves nothing of it."""
    (book / "notebooks" / "source" / "overview.py").write_text(SMALL.replace("page.provenance()", "__import__('pathlib').Path('stray.txt').write_text('x');\npage.provenance()"))
    monkeypatch.chdir(tmp_path)
    before = derived(tmp_path)
    (tmp_path / "results").mkdir()
    notebooks.run("overview", {}, tmp_path / "results", "a command")
    new = set(derived(tmp_path)) - set(before)
    assert "results/stray.txt" in new and all(name.startswith("results/") for name in new)
    notebooks.build("overview")
    assert {name for name in set(derived(tmp_path)) - set(before) if not name.startswith("results/")} == set()


def test_a_failed_page_is_never_kept_through_a_link(book, tmp_path):
    (book / "notebooks" / "source" / "overview.py").write_text(SMALL.replace("0.5 < 1", "0.5 > 1"))
    precious, before = tmp_path / "precious", derived(book)
    precious.write_text("mine")
    (tmp_path / "results" / "failed").mkdir(parents=True)
    (tmp_path / "results" / "failed" / "overview.ipynb").symlink_to(precious)
    with pytest.raises(RunFailed, match="failed/overview.ipynb"):
        notebooks.run("overview", {}, tmp_path / "results", "a command")
    assert precious.read_text() == "mine" and not (tmp_path / "results" / "failed" / "overview.ipynb").is_symlink() and derived(book) == before


def test_a_name_of_a_row_file_is_data_and_never_code(book, tmp_path, monkeypatch):
    """The path goes into an injected cell."""
    name = "x\"; open('canary', 'w').write('x') #\n\\\" {a} '''.json"
    staging = tmp_path / "staging"
    staging.mkdir()
    text = HEADER + PARAMETERS + "# %%\nraise RuntimeError(ascii(rows))\n"
    with pytest.raises(RunFailed) as failed:
        notebooks.execute("act1", {"rows": name}, staging, tmp_path, "a command", source(tmp_path, text))
    assert ascii(name) in str(failed.value) and not list(tmp_path.rglob("canary"))
