"""Facts, tables, figures, numbers, parameters and pages, without a kernel."""
import ast
import dataclasses
import functools
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from book_tools import REPOSITORY
from specdecode_nb import criteria, paths
from specdecode_nb.book import acts, denoising, draw, export, figures, needs, notebooks, numbers, overview, palette, published, sweep, tables, trained
from specdecode_nb.book import page as pages
from specdecode_nb.errors import BadInput
from specdecode_nb.records import RowFile, load_rows
import synthetic

SOURCES = [("data/x.json", "0" * 64)]


# --- published facts ---

def test_nothing_published_is_lost():
    facts = [published.load(act).facts for act in paths.ACTS]
    assert [sum(len(getattr(f, field)) for f in facts) for field in ("tables", "criteria", "negative_results", "figures_of_merit")] == [198, 99, 81, 71]
    shared = REPOSITORY.parent / "shared" / "published"
    if shared.exists():
        assert all((shared / p.name).read_bytes() == p.read_bytes() for p in (paths.data() / "published").iterdir())


def test_columns_split_at_a_bar_are_whole_again():
    names = [c.name for act in ("act4u5", "act4u6") for t in published.load(act).facts.tables for c in t.columns if "|" in c.name + c.unit]
    assert names == ["|C1-C2|", "max |dlogit| slot 1"]


def test_types_units_and_single_cells():
    act = published.load("act4s")
    frame = act.frame("s_ksweep")
    assert frame["rows"].dtype == "int64" and frame["TPF"].dtype == "float64" and frame.attrs["units"]["sd"] == "tok/s"
    assert act.value("s_ksweep", "TPF", arm="uno_k4") == 1.5059 and type(act.value("s_ksweep", "rows", arm="ar")) is int
    assert act.label.startswith("published: unsloth/Qwen3.5-4B-Base") and "M4 Max" in act.label and act.label.endswith("2026-09-13")
    assert published.load("dflash").label.endswith("undated")


@pytest.mark.parametrize("ask, word", [
    (lambda a: a.table("s_kswep"), "s_ksweep"), (lambda a: a.value("s_ksweep", "TPFF", arm="ar"), "'TPF'"), (lambda a: a.value("s_ksweep", "TPF"), "6 rows"),
    (lambda a: a.negative("Wide"), "") , (lambda a: a.negative("Nothing"), "0 negative results"), (lambda a: published.load("act9"), "no published Act")])
def test_what_is_not_there_is_named(ask, word):
    if word:
        with pytest.raises(BadInput, match=word):
            ask(published.load("act4s"))
    else:
        assert ask(published.load("act4s")).hypothesis.startswith("Wider")


@pytest.mark.parametrize("damage, words", [
    (lambda d: d["tables"][0]["rows"][0].pop(), "cells for"), (lambda d: d.pop("verdict"), "verdict: field required"), (lambda d: d.update(extra=1), "extra"),
    (lambda d: d["criteria"][0].update(passed="yes"), r"criteria\[0\].passed"), (lambda d: d["tables"][0]["rows"][0].__setitem__(1, float("nan")), "not finite"),
    (lambda d: d.update(act="act2"), "facts of 'act2'"), (lambda d: d["figures_of_merit"][0].update(value="1"), "value")])
def test_damaged_facts_are_refused(tmp_path, monkeypatch, damage, words):
    value = json.loads((REPOSITORY / "data" / "published" / "act1.json").read_text())
    damage(value)
    (tmp_path / "data" / "published").mkdir(parents=True)
    (tmp_path / "data" / "published" / "act1.json").write_text(json.dumps(value))
    monkeypatch.setenv("SPECDECODE_ROOT", str(tmp_path))
    with pytest.raises(BadInput, match=words) as refused:
        published.load("act1")
    assert "act1.json" in str(refused.value)


def test_list_and_ledger_cover_every_act():
    assert [line.split()[0] for line in overview.lines()] == list(acts.reading())
    assert len(overview.ledger()) == 99 + 81


def test_an_act_of_our_own_has_a_question_and_nothing_published(monkeypatch):
    monkeypatch.setitem(acts.ACTS, "act99", acts.Act("act99", acts.ROWS_ONLY, title="Act XCIX: a test", question="Does it work?"))
    assert acts.reading()[:13] == paths.ACTS and acts.reading()[-1] == "act99" and published.title("act99") == "Act XCIX" and published.title("act1") == "Act I"
    assert overview.lines()[-1] == "act99   Does it work? | published: nothing, this Act is our own | here: not measured"
    shown = []
    monkeypatch.setattr(pages, "display", lambda bundle, **about: shown.append(bundle["text/plain"]))
    page = pages.Page("act99", {"target": "tiny-hybrid", "rows": ""})
    with pytest.raises(AssertionError, match="leaves out 1 items that it must show: opening"):
        page.finish()
    page.opening()
    page.finish()
    assert "Does it work?" in shown[0] and "nothing of it was published" in shown[0]


# --- look ---

def simulated(color: str, kind: str) -> np.ndarray:
    """``color`` as seen with a color blindness (Machado and others, 2009, full severity), in CIE Lab."""
    matrix = {"normal": np.eye(3), "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
              "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
              "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]]}[kind]
    rgb = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.clip(np.array(matrix) @ np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4), 0, 1)
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ linear / [0.9505, 1, 1.089]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("kind", ("normal", "protan", "deutan", "tritan"))
def test_colors_stay_apart_in_every_eye(kind):
    colors = [simulated(c, kind) for c in {s.color for s in palette.METHODS.values()}]
    assert min(np.linalg.norm(a - b) for i, a in enumerate(colors) for b in colors[:i]) > 9


def test_no_two_methods_look_alike_and_none_is_told_by_color_alone():
    looks = [(s.color, s.marker, s.dash) for s in palette.METHODS.values()]
    assert len(set(looks)) == len(looks)
    for group in (("uno_k1", "uno_k2", "uno_k4", "uno_k6", "uno_k8", "uno_k16", "ar", "ar_mlx_lm"), ("A_k4", "B_k6", "C_k8", "D_curr"), ("S(6,3)", "S(6,4)", "S(8,2)", "S(8,4)", "B_dec"),
                  ("replay", "snapshot", "rewind", "innovation tape"), ("uno_k4", "ngram2", "ngram3", "refine2", "refine4"),
                  ("ar", "ar_mlx_lm", "mtp3", "uno_k4", "dflash_b4", "dflash_b5", "dflash_b8", "dflash_b16", "adapt_value", "adapt_mlx_vlm", "adapt_dflash_mlx", "ngram2")):
        assert len({palette.METHODS[m].marker for m in group}) == len(group)
    assert set(palette.ALIASES.values()) <= set(palette.METHODS)
    assert palette.style("K=4") is palette.METHODS["uno_k4"] and palette.style("novel", 3).label == "novel"


def test_seaborn_draws_and_never_estimates():
    for path in (REPOSITORY / "specdecode_nb").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name) and node.func.value.id == "sns":
                assert node.func.attr in ("axes_style", "plotting_context", "scatterplot") or any(
                    k.arg == "errorbar" and isinstance(k.value, ast.Constant) and k.value.value is None for k in node.keywords), f"{path.name}:{node.lineno}"


def everything_drawn():
    entries = [{"label": "S(6,4)", "value": -1.6, "low": -2.9, "high": -0.4, "n": 81}, {"label": "other", "value": 1.0, "low": None, "high": None}]
    yield "lines", draw.lines({"uno_k4": ([1, 2, 4], [1.0, None, 3.0]), "x": ([1, 2, 4], [1, 2, 3], [0, 1, 2], [2, 3, 4])}, "x", "y", log_x=True, reference=1)
    yield "survival", draw.survival({"K=4": [0.6, 0.3, 0.1]})
    yield "forest", draw.forest(entries, "difference (%)")
    yield "bars", draw.bars(["uno_k2", "uno_k4"], {"speed": [1.1, -0.2]}, "y", low=[1.0, -0.3], high=[1.2, -0.1], fmt=".2f", reference=1)
    yield "grouped", draw.bars(["a", "b"], {"one": [1, None], "two": [2, 3]}, "y", fmt=".1f")
    yield "stacked", draw.stacked(["K=1"], {"draft": [1.0], "verify": [2.0]}, "ms", title="t")
    yield "dots", draw.dots(["a", "b"], {"K=2": [1, 2], "K=4": [2, 3]}, "x", reference=1)
    yield "scatter", draw.scatter({"a": ([0, 1], [0, 1]), "b": ([1], [0])}, "x", "y", names={"b": ["here"]}, diagonal=True, fit=(0, 1))


def test_a_figure_has_the_same_bytes_whenever_it_is_drawn():
    for (name, one), (_, two) in zip(everything_drawn(), everything_drawn()):
        first, second = (figures.render(f, name, "A caption", SOURCES) for f in (one, two))
        assert first == second, name
        assert first["png"].startswith(b"\x89PNG") and first["pdf"].startswith(b"%PDF") and b"<svg" in first["svg"]
        for stamp in (b"CreationDate", b"dc:date", b"<dc:date>"):
            assert stamp not in first["svg"] + first["pdf"]


def test_another_process_draws_the_same_bytes():
    code = ("from test_book import everything_drawn, SOURCES; from specdecode_nb.book import figures; import hashlib\n"
            "name, figure = next(everything_drawn()); m = figures.render(figure, name, 'A caption', SOURCES)\n"
            "print({k: hashlib.sha256(v).hexdigest() for k, v in m.items()})")
    name, figure = next(everything_drawn())
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "tests")]), "PYTHONHASHSEED": "77"}
    out = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
    assert ast.literal_eval(out) == {k: figures.sha256(v) for k, v in figures.render(figure, name, "A caption", SOURCES).items()}


def test_pictures_are_opaque_of_page_width_and_say_what_they_are():
    from PIL import Image
    import io

    made = figures.render(draw.survival({"K=4": [0.6, 0.3]}), "act4s-x", "A caption", SOURCES)["png"]
    with Image.open(io.BytesIO(made)) as picture:
        assert picture.width == 704 and picture.convert("RGBA").getextrema()[3] == (255, 255)
        assert picture.info["Title"] == "act4s-x" and picture.info["Description"] == "A caption" and "data/x.json" in picture.info["Source"]


def test_the_interval_drawn_is_the_interval_given():
    figure = draw.forest([{"label": "x", "value": 1.0, "low": 0.25, "high": 2.5}], "d")
    assert [0.25, 2.5] in [list(line.get_xdata()) for line in figure.axes[0].lines]


# --- tables ---

FRAME = pd.DataFrame({"arm": ["a|b", "c_d <5 %>"], "n": [3, 12000], "x": [0.5, None], "ok": [True, False], "mixed": pd.Series([1, 2.5], dtype=object)})


def test_a_table_reads_without_style_and_twice_the_same():
    html = tables.as_html(FRAME)
    assert html == tables.as_html(FRAME.copy()) and "style" not in html and "class" not in html and "id=" not in html
    assert all(cell in html for cell in ('<td align="left">a|b</td>', "c_d &lt;5 %&gt;", ">12,000<", ">–<", ">yes<", ">2.5<", ">1<"))
    assert "12,000" in tables.as_text(FRAME) and r"a\|b" in tables.as_markdown(FRAME)


def test_units_formats_and_full_precision():
    frame = pd.DataFrame({"t": [1.23456789, 2.0]})
    frame.attrs["units"] = {"t": "ms"}
    assert tables.as_csv(frame) == "t (ms)\n1.23456789\n2.0\n"
    assert list(tables.texts(frame, {"t": ".1f"}).iloc[:, 0]) == ["1.2", "2.0"] and "t (ms)" in tables.as_html(frame)
    assert list(tables.texts(frame).iloc[:, 0]) == ["1.2346", "2.0000"]
    with pytest.raises(KeyError, match="'u'"):
        tables.texts(frame, {"u": ".1f"})
    with pytest.raises(ValueError, match="not finite"):
        tables.prepare("x", pd.DataFrame({"a": [1.0, math.inf]}), "c", {})


def test_latex_escapes_headers_cells_and_captions():
    special = r"_ % & # $ { } ~ ^ \ < > |"
    text = tables.as_latex(pd.DataFrame({special: [special]}), special, "t-1")
    for raw in (" _ ", " % ", " & #", " $ ", " ^ ", " | ", " < "):
        assert raw not in text.replace(" & ", " ", 0) or raw == " & #"
    body = text.replace(r"\_", "").replace(r"\%", "").replace(r"\&", "").replace(r"\#", "").replace(r"\$", "")
    assert not any(ch in body for ch in "_%#$^~|<>&")
    assert tables.latex("10 ≥ 5 – γ") == r"10 $\ge$ 5 -- $\gamma$"
    with pytest.raises(ValueError, match="no LaTeX form"):
        tables.latex("☃")
    for act in paths.ACTS:
        for table in published.load(act).facts.tables:
            tables.as_latex(table.frame(), table.title, table.id)


# --- numbers ---

def test_numbers_are_kept_raw_and_formatted_where_used(tmp_path):
    n = numbers.Numbers("act4s")
    assert n.record("k4_speedup", np.float64(1.2449), ".2f", "x") == "1.24" == n.record("k4_speedup", 1.2449, ".2f", "x")
    n.record("rows", 12000, ",d")
    assert n.fill("It is [[k4_speedup]] over [[ rows ]] rows, $x_{[1]}$.") == "It is 1.24 over 12,000 rows, $x_{[1]}$."
    assert n.items["act4s.k4_speedup"]["value"] == 1.2449
    with pytest.raises(BadInput, match="k4_speedup"):
        n.fill("[[k4_sped]]")
    for bad in (float("nan"), [1], True, None):
        with pytest.raises(ValueError, match="finite number"):
            n.record("other", bad)
    with pytest.raises(ValueError, match="twice"):
        n.record("rows", 1, ",d")
    with pytest.raises(ValueError, match="no name"):
        n.record("Rows", 1)
    numbers.write(tmp_path, "act4s", n.items)
    numbers.write(tmp_path, "act1", {"act1.a": {"value": 1, "text": "50 %", "unit": "", "source": ""}})
    numbers.write(tmp_path, "act4s", n.items)
    assert set(numbers.load(tmp_path / "numbers.json")) == {"act1.a", "act4s.k4_speedup", "act4s.rows"}
    assert r"\newcommand{\ActFourSKFourSpeedup}{1.24} % act4s.k4_speedup in x" in (tmp_path / "numbers.tex").read_text()
    assert r"\newcommand{\ActOneA}{50 \%}" in (tmp_path / "numbers.tex").read_text()


def test_macros_are_letters_and_do_not_collide():
    assert numbers.macro("act4u2.p_25") == r"\ActFourUTwoPTwoFive"
    item = {"value": 1, "text": "1", "unit": "", "source": ""}
    with pytest.raises(ValueError, match="same LaTeX name"):
        numbers.as_latex({"a.b_c": item, "a.bc": item} if numbers.macro("a.b_c") == numbers.macro("a.bc") else {"a.b_c": item, "a.b__c": item})


# --- parameters ---

EVERY = acts.Act("x", (acts.Param("whole", int, 5, "h", low=1, high=9000), acts.Param("real", float, 0.5, "h"), acts.Param("flag", bool, False, "h"),
                       acts.Param("word", str, "a", "h"), acts.Param("many", list, [1, 2], "h", low=1, high=99), acts.Param("pick", str, "a", "h", choices=("a", "b"))))


@pytest.mark.parametrize("text, value", [
    ("whole=7", 7), ("whole= 5", 5), ("whole=+3", 3), ("whole=1_000", None), ("whole=007", None), ("whole=1e3", None), ("whole=0x10", None), ("whole=0", None),
    ("whole=9001", None), ("whole=true", None), ("whole=", None), ("whole=1.0", None), ("real=1e3", 1000.0), ("real=1.10", 1.1), ("real=nan", None), ("real=inf", None),
    ("real=x", None), ("flag=true", True), ("flag=FALSE", False), ("flag=yes", None), ("flag=1", None), ("word=007", "007"), ("word=true", "true"), ("word=a=b", "a=b"),
    ("many=1,2,3", [1, 2, 3]), ("many=[4, 5]", [4, 5]), ("many=1,x", None), ("many=", None), ("many=[1.0]", None), ("many=1,1", None), ("many=0", None), ("many=[]", None),
    ("pick=b", "b"), ("pick=c", None), ("whle=1", None), ("whole", None)])
def test_values_are_read_by_the_declared_type_never_by_their_look(text, value):
    if value is None:
        with pytest.raises(BadInput):
            EVERY.resolve(EVERY.parse([text]))
    else:
        found = EVERY.resolve(EVERY.parse([text]))[text.split("=")[0]]
        assert found == value and type(found) is type(value)


@pytest.mark.parametrize("value", [np.int64(5), np.bool_(True), (1, 2), {1}, Path("x"), "5", True, 5.0, float("nan"), None])
def test_only_plain_values_pass_as_whole_numbers(value):
    with pytest.raises(BadInput, match="whole is"):
        EVERY.resolve({"whole": value})


def test_unknown_names_get_the_nearest():
    with pytest.raises(BadInput, match="did you mean 'whole'"):
        EVERY.parse(["whol=1"])
    with pytest.raises(BadInput, match="twice"):
        EVERY.parse(["whole=1", "whole=2"])
    with pytest.raises(BadInput, match="did you mean 'act4s'"):
        acts.get("act4ss")
    for assignment, word in (("target=tiny-hybird", "tiny-hybrid"), ("drafter=uon", "uno"), ("dtype=float23", "float32")):
        with pytest.raises(BadInput, match=word):
            acts.get("act4s").resolve(acts.get("act4s").parse([assignment]))


def test_quick_stands_for_smaller_values_unless_they_are_given():
    act = acts.get("act4s")
    assert act.resolve({"quick": True})["tokens"] == act.reduced["tokens"] < act.defaults["tokens"]
    assert act.resolve({"quick": True, "tokens": 100})["tokens"] == 100 and act.resolve({})["tokens"] == 128


# --- pages ---

@pytest.fixture
def shown(monkeypatch):
    seen = []
    monkeypatch.setattr(pages, "display", lambda bundle, metadata, raw: seen.append((bundle, metadata)))
    return seen


def act4s(**changes):
    return pages.Page("act4s", acts.get("act4s").defaults | changes)


def test_a_page_labels_counts_and_keeps_what_it_shows(shown, tmp_path, monkeypatch):
    monkeypatch.setenv(pages.OUT, str(tmp_path))
    page = act4s()
    page.opening()
    page.table("s_ksweep", columns=["arm", "TPF"], rows=lambda r: r["arm"] != "ar", fmt={"TPF": ".2f"})
    page.figure(draw.survival({"K=4": [0.6, 0.3]}), "curve", "Survival", "A falling curve from 0.6 to 0.3 over two slots.")
    text = "\n".join(bundle.get("text/markdown", "") for bundle, _ in shown)
    assert "**Table 2** (`act4s-s-ksweep`)" in text and "5 of 6 rows and 2 of 17 columns" in text and "**Figure 1** (`act4s-curve`)" in text
    assert text.count("M4 Max 128 GB") >= 3 and "2026-09-13" in text
    picture = next((b, m) for b, m in shown if "image/png" in b)
    assert picture[1]["image/png"]["alt"].startswith("A falling curve") and picture[1]["filename"] == "act4s-curve.png"
    import base64

    assert base64.b64decode(picture[0]["image/png"]) == (tmp_path / "figures" / "act4s-curve.png").read_bytes()
    assert (tmp_path / "figures" / "tables" / "act4s-s-ksweep.csv").read_text().count("\n") == 7
    record = json.loads((tmp_path / "figures" / "act4s-curve.json").read_text())
    assert record["sources"] == [{"file": "data/published/act4s.json", "sha256": page.published.digest}] and record["command"] and "image/svg+xml" not in picture[0]


def test_a_page_refuses_twice_the_same_id_poor_alt_text_and_odd_ids(shown):
    page = act4s()
    figure = draw.survival({"K=4": [0.6]})
    page.figure(figure, "curve", "Survival", "A falling curve from 0.6 to 0.3 over two slots.")
    with pytest.raises(ValueError, match="used twice"):
        page.figure(figure, "curve", "Survival", "A falling curve from 0.6 to 0.3 over two slots.")
    for alt in ("short", ""):
        with pytest.raises(ValueError, match="alt text"):
            page.figure(figure, "other", "Survival", alt)
    with pytest.raises(ValueError, match="no id"):
        page.figure(figure, "Other One", "Survival", "A falling curve from 0.6 to 0.3 over two slots.")
    with pytest.raises(ValueError, match="sources"):
        page.show(pd.DataFrame({"a": [1]}), "t", "c", sources=[])
    with pytest.raises(BadInput, match="xAR"):
        page.table("s_ksweep", columns=["xAR end-to-endd"])


def test_a_claim_that_does_not_hold_stops_the_page(shown):
    page = act4s()
    page.check("one is one", True)
    with pytest.raises(AssertionError, match="one is two"):
        page.check("one is two", np.bool_(False))


def test_a_page_that_leaves_something_out_cannot_be_closed(shown):
    page = act4s()
    page.opening()
    page.verdict()
    with pytest.raises(AssertionError) as refused:
        page.finish()
    assert all(word in str(refused.value) for word in ("table s_ksweep", "criterion Gate 0", "negative Wider", "merit", "note Headline"))


def test_negatives_notes_and_verdict_are_word_for_word(shown):
    page = act4s()
    page.negative("Wider", "k16_xAR", "speed at K=16", {"k8_xAR": "K=8"})
    page.note("Addendum")
    page.verdict()
    text = "\n".join(bundle["text/markdown"] for bundle, _ in shown)
    fact = page.published.negative("Wider")
    assert fact.hypothesis in text and fact.observed in text and "**0.5281**" in text and "K=8 1.1284" in text and fact.source in text
    assert page.published.facts.verdict in text
    with pytest.raises(BadInput, match="k16_xAR"):
        page.negative("Wider", "k16_xR")


def test_parameters_changed_by_hand_are_checked_too():
    with pytest.raises(BadInput, match="tokens is"):
        act4s(tokens="128")
    with pytest.raises(BadInput, match="has no parameter 'tokens'"):
        pages.Page("act4s", {k: v for k, v in acts.get("act4s").defaults.items() if k != "tokens"})


def test_rows_are_labelled_as_measured_and_a_reduced_run_says_so(shown, tmp_path):
    page = act4s(rows=str(synthetic.write(tmp_path / "act4s.json", reduced=True)))
    assert page.measured() and page.measured_label == "measured here: invented, float32; invented machine; MLX 0, BLAS invented; 2026-01-01; a reduced run"
    page.show(sweep.speed(page.rows.of("decode")), "speed", "Speed", sources=[page.rows])
    assert "a reduced run" in shown[-2][0]["text/markdown"]
    with pytest.raises(BadInput, match="rows of 'act4s'"):
        pages.Page("act1", acts.get("act1").defaults | {"rows": str(tmp_path / "act4s.json")})


def test_without_rows_the_page_says_which_command_makes_them(shown, tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "published").symlink_to(REPOSITORY / "data" / "published")
    monkeypatch.setenv("SPECDECODE_ROOT", str(tmp_path))
    assert not act4s().measured()
    assert "specdecode-nb run act4s -p measure=true" in shown[-1][0]["text/markdown"]


def test_a_table_and_a_figure_of_measured_rows_show_one_interval(tmp_path):
    rows = load_rows(synthetic.write(tmp_path / "act4s.json")).of("decode")
    table = sweep.speed(rows).set_index("arm")
    figure = draw.bars(["uno_k4"], {"speed": [table.loc["K=4", "x plain"]]}, "y", low=[table.loc["K=4", "low"]], high=[table.loc["K=4", "high"]])
    whisker = figure.axes[0].containers[1].lines[2][0].get_segments()[0]
    assert whisker[:, 1].tolist() == pytest.approx([table.loc["K=4", "low"], table.loc["K=4", "high"]])
    assert sweep.speed(rows).equals(sweep.speed(rows))


# --- a write-up ---

def test_captions_follow_the_records(tmp_path):
    made = figures.render(draw.survival({"K=4": [0.6, 0.3]}), "act4s-curve", "A caption of 50 %", SOURCES)
    figures.write(tmp_path, "act4s-curve", made, figures.record("act4s-curve", made, {"caption": "A caption of 50 %", "alt": "a" * 40}))
    tables.write(tmp_path / "tables", tables.prepare("act4s-t", FRAME, "A table", {"caption": "A table"}))
    export.write_captions(tmp_path)
    text = (tmp_path / "captions.tex").read_text()
    assert r"\newcommand{\CaptionActFourSCurve}{A caption of 50 \%}" in text and r"\CaptionTableActFourST" in text


def test_an_export_removes_what_it_made_before_and_nothing_else(tmp_path):
    def made(name: str, *ids: str) -> Path:
        folder = tmp_path / name / "figures"
        for item in ids:
            drawn = {"png": item.encode(), "svg": b"s", "pdf": b"p"}
            figures.write(folder, item, drawn, figures.record(item, drawn, {"caption": item, "alt": "a" * 40}))
            tables.write(folder / "tables", tables.prepare(item, FRAME, item, {"caption": item}))
        return tmp_path / name

    paper = tmp_path / "paper"
    notebooks.install("act1", made("first", "act1-old", "act1-kept"), paper)
    own = {"act1-notes.tex": "x", "act1-notes.json": "[]", "act1-old.tex": "mine", "act1-draft.json": "{", "tables/act1-own.csv": "x"}
    for name, text in own.items():
        (paper / name).write_text(text)
    (paper / "act1-folder").mkdir()
    notebooks.install("act1", made("second", "act1-kept"), paper)
    export.write_captions(paper)
    found = {p.relative_to(paper).as_posix() for p in paper.rglob("*-*")}
    kept = {f"act1-kept.{kind}" for kind in ("png", "svg", "pdf", "json")} | {f"tables/act1-kept.{kind}" for kind in ("csv", "tex", "md", "json")}
    assert found == kept | set(own) | {"act1-folder"} and all((paper / n).read_text() == text for n, text in own.items())
    assert json.loads((paper / "captions.json").read_text()) == {"act1-kept": "act1-kept"}


# --- what a page needs ---

MEASURED = REPOSITORY / "data" / "measured" / "tiny-hybrid"


@functools.cache
def committed(act):
    """The committed rows, without the time that their validation takes."""
    path = MEASURED / f"{act}.json"
    return RowFile(**{k: v for k, v in json.loads(path.read_text()).items() if k != "schema"}, name=path.name, digest="")


@pytest.mark.parametrize("act", list(needs.NEEDS))
def test_committed_rows_have_what_their_page_needs(act):
    file = committed(act)
    assert needs.check(file) is file


@pytest.mark.parametrize("row, launch, seed, steps, loss, digest", [
    ({"kind": "overfit", "run": "004", "seed": 7, "steps": 3, "losses": [9.0, 2.0, 4.0], "digest": "a" * 32}, "run 004", 7, 3, 3.0, "a" * 16),
    ({"kind": "masked_launch", "arm": "x20", "seed": 7, "steps": 2, "ar": [1.0, 2.0], "diff": [3.0, 5.0], "digest": "b" * 32}, "x20", 7, 2, 5.5, "b" * 16),
    ({"kind": "reverse_launch", "arm": "E", "seed": 7, "steps": 1, "losses": [2.5], "digest": "c" * 32}, "E", 7, 1, 2.5, "c" * 16),
    ({"kind": "state_launch", "stage": 2, "condition": "D", "arm": "causal", "seed": 7, "steps": 9, "losses": [], "digest": "d" * 32}, "stage 2, D causal", 7, 9, None, "d" * 16),
    ({"kind": "launch", "arm": "curve", "launch": 2, "step": 8, "recipe": {"seed": 5}, "loss": [[7, 4.0, 0.1], [8, 2.0, 0.1]], "adapter_digest": "e" * 64, "state_digest": "f" * 64},
     "curve-2", 5, 8, 3.0, "e" * 16)])
def test_the_list_of_trained_adapters(row, launch, seed, steps, loss, digest):
    file = RowFile("act", "toy", {}, {}, [{"trained": 12, "seconds": 1.0} | row, {"kind": "decode"}], "rows.json", "")
    [line] = trained.manifest(file, last=2).to_dict("records")
    assert line == {"launch": launch, "seed": seed, "steps": steps, "trained": 12, "last losses": loss, "seconds": 1.0, "sha256" if "adapter_digest" in row else "blake2b": digest}


def test_a_first_run_stands_beside_the_one_that_followed(monkeypatch):
    """The committed rows of Act III, and a page whose rows are of another target or of a reduced run."""
    page = pages.Page("act3", acts.get("act3").defaults)
    shown, said = {}, []
    monkeypatch.setattr(page, "show", lambda table, id, *a, **k: shown.update({id: table}))
    monkeypatch.setattr(page, "say", said.append)
    page.first_run(denoising.masked)
    both = shown["first-run"]
    assert both["id"].tolist() == [c.id for c in criteria.load("act3")] and "steps" in shown["first-settings"]["setting"].tolist()
    assert int(page.numbers.items["act3.first_moved"]["text"]) == (both["verdict then"] != both["verdict now"]).sum() > 0
    for rows, words in ((dataclasses.replace(page.rows, target="other"), "no such pair"), (dataclasses.replace(page.rows, config=page.rows.config | {"reduced": True}), "reduced run"), (None, "no such pair")):
        shown.clear()
        page.rows = rows
        page.first_run(denoising.masked)
        assert words in said[-1] and not shown


AR_AND_K4 = ("decode", lambda r: r["arm"] in ("ar", "uno_k4"))


@pytest.mark.parametrize("act, kind, keep, says", [
    ("act4s_rest", "decode", lambda r: r["section"] != "policies", ["decode rows with section and arm policies ar, policies ar_mlx_lm, policies uno_k2, policies uno_k4 and 5 more"]),
    ("act4s_rest", "decode", lambda r: r["arm"] != "conf_k4", ["controls conf_k4;"]), ("act4s_rest", "cycle_cost", lambda r: r["width"], ["cycle_cost rows with width 0;"]),
    ("act4u2", "decode", lambda r: r["arm"] != "tape_k4", ["decode rows with arm tape_k4;"]), ("act4u2", "decode", lambda r: r["arm"].startswith("ar"), ["replay_k2", "8 more"]),
    ("act4u2", "decode", lambda r: r["arm"] != "ar", ["with arm ar;"]), ("act4u2", "decode", lambda r: False, ["rows of kind decode;"]),
    ("act4u2", "commit", lambda r: (r["scheme"], r["width"], r["kept"]) != ("tape", 5, 3), ["commit rows with scheme and width and kept tape 5 3;"]),
    ("act4u2", None, lambda r: r["kind"] == "decode", ["rows of kind commit, gates, rewind;"]), ("act4u2", None, lambda r: False, ["rows of kind decode, commit, gates, rewind;"]),
    ("act4u6", "decode", lambda r: r["arm"].startswith("ar"), ["uno_k4, uno_k4_b2, dec_d4v4, staged_d6v4 and 5 more"]), ("act4u6", *AR_AND_K4, ["uno_k4_b2"]),
    ("act4u6", None, lambda r: r["kind"] == "decode", ["rows of kind wide_draft, cost;"]), ("act4u6", None, lambda r: r["kind"] == "wide_draft", ["rows of kind decode, cost;"]),
    ("act4u6", "cost", lambda r: (r["prompt_id"], r["width"]) != ("code-1", 17), ["cost rows of verify 17 for the same prompts"]),
    ("act4u6", "wide_draft", lambda r: r["condition"] != "redraw", ["wide_draft rows with condition and draft_width redraw 4;"])])
def test_a_sentence_names_what_the_rows_lack(act, kind, keep, says):
    file = committed(act)
    with pytest.raises(BadInput) as refused:
        needs.check(dataclasses.replace(file, rows=[r for r in file.rows if kind not in (None, r["kind"]) or keep(r)]))
    assert all(word in str(refused.value) for word in [*says, f"{act}.json cannot be drawn as {act}"])


@pytest.mark.parametrize("act, change, says", [
    ("act4u2", {"config": {}}, ["config.prompts", "config.widths", "config.criteria of the rules in data/criteria/act4u2.json"]), ("act4u2", {"provenance": {}}, ["provenance.machine.class"]),
    ("act4u6", {"config": {"criteria": "0"}}, ["was not measured under the rules of data/criteria/act4u6.json"]), ("act4u6", {"config": {"drafts": ["4"]}}, ["lacks config.drafts;"]),
    ("act4s_rest", {"config": {"criteria": "0"}}, ["was not measured under the rules"])])
def test_a_sentence_names_the_settings_and_rules_that_are_lacking(act, change, says):
    file = committed(act)
    changed = {k: v and getattr(file, k) | v for k, v in change.items()}
    with pytest.raises(BadInput) as refused:
        needs.check(dataclasses.replace(file, **changed))
    assert all(word in str(refused.value) for word in says)


PREAMBLE = "\\documentclass{article}\\usepackage{booktabs,graphicx,textcomp,amssymb}\\usepackage[T1]{fontenc}\\input{numbers}\n"
needs_tex = pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex on this machine")


def typeset(folder, body):
    """One LaTeX document of ``body``; the test fails if it does not compile."""
    (folder / "paper.tex").write_text(f"{PREAMBLE}\\begin{{document}}\n{body}\n\\end{{document}}\n")
    done = subprocess.run(["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"], cwd=folder, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, "\n".join(line for line in done.stdout.splitlines() if line.startswith(("!", "l.")))


@needs_tex
def test_figure_table_and_numbers_compile_in_a_document(tmp_path):
    made = figures.render(draw.survival({"K=4": [0.6, 0.3]}), "act4s-curve", "A caption", SOURCES)
    figures.write(tmp_path, "act4s-curve", made, figures.record("act4s-curve", made, {"caption": "Survival ≥ 50 %", "alt": "a" * 40}))
    wide = pd.DataFrame({"short": ["a"], "a long text": ["word_1 & more % " * 12], "another": ["some words " * 6], "n": [1]})
    for name, frame in (("act4s-t", FRAME), ("act4s-wide", wide)):
        tables.write(tmp_path / "tables", tables.prepare(name, frame, "A table & more", {"caption": "A table & more"}))
    n = numbers.Numbers("act4s")
    for name, value, fmt in (("speed", 1.245, ".2f"), ("rows", 12000, ",d"), ("share", 0.5, ".0%"), ("word", "a_b", "")):
        n.record(name, value, fmt)
    numbers.write(tmp_path, "act4s", n.items)
    export.write_captions(tmp_path)
    typeset(tmp_path, "\\input{captions}\\begin{figure}\\includegraphics{act4s-curve.pdf}\\caption{\\CaptionActFourSCurve}\\end{figure}\n"
                      "\\input{tables/act4s-t}\\input{tables/act4s-wide}\\ActFourSSpeed, \\ActFourSRows, \\ActFourSShare, \\ActFourSWord")


@needs_tex
def test_every_committed_table_and_number_compiles(tmp_path):
    shutil.copytree(paths.figures() / "tables", tmp_path / "tables")
    shutil.copyfile(paths.figures() / "numbers.tex", tmp_path / "numbers.tex")
    every = sorted(p.stem for p in (tmp_path / "tables").glob("*.tex"))
    macros = [line.split("{")[1].rstrip("}") for line in (tmp_path / "numbers.tex").read_text().splitlines() if line.startswith("\\newcommand")]
    assert every and macros
    typeset(tmp_path, "\n".join(f"\\input{{tables/{name}}}\\clearpage" for name in every) + "\n\n" + ", ".join(f"{m}{{}}" for m in macros))


def test_the_book_needs_no_mlx():
    code = ("import sys\nfor name in ('mlx', 'mlx.core', 'mlx_lm'): sys.modules[name] = None\nimport specdecode_nb\nassert 'pandas' not in sys.modules\n"
            "import specdecode_nb.cli, specdecode_nb.book.page, specdecode_nb.book.check, specdecode_nb.book.export, specdecode_nb.book.overview, specdecode_nb.book.sweep\n"
            "assert specdecode_nb.cli.main(['list']) == 0")
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, env=os.environ | {"PYTHONPATH": str(REPOSITORY)})
