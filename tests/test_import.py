"""``import``: the published results folder in our schema, worked out again; whatever is wrong with it is one sentence and nothing is written."""
import csv
import json
import math
import os
import random
import statistics as plain

import pytest

import published_results as made
import synthetic
from book_tools import REPOSITORY
from specdecode_nb import cli, imported, paths
from specdecode_nb import statistics as st
from specdecode_nb.book import acts, check, needs, published
from specdecode_nb.book import page as pages
from specdecode_nb.errors import BadInput
from specdecode_nb.imported import act4s, compare, folder, stream
from specdecode_nb.records import load_rows, save_rows

NO_AGGREGATES = {
    "u6_verify_cost",
    "u6_draft_cost",
    "u6_fits",
    "u6_fixed_share",
    "u6_compare_cost",
    "u6_extra_draft",
    "u6_overhead",
    "u6_perfect",
    "u6_prefix4",
    "u6_aligned",
    "u6_slot_agree",
    "u6_decoder_slot_id",
}


def call(capsys, *words):
    status = cli.main(list(map(str, words)))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An invented folder with every file that holds rows, its documents, and what was read from it."""
    results = made.write(tmp_path_factory.mktemp("results"))
    sources = folder.read(results)
    return results, made.documents(), sources, compare.compare(sources)


def found(lines, table):
    return {(x.row, x.column): x.found for x in lines if x.table == table}


# --- the numbers ---

def test_every_cell_of_the_tables_that_rows_give_is_worked_out_from_rows(whole):
    lacking = {(x.table, x.row) for x in whole[3] if x.agrees is None and x.table not in NO_AGGREGATES}
    assert {table for table, _ in lacking} == {"s_baseline_stability", "s_loops", "u6_sessions"}  # other Acts' sessions, prompts 2 and 3, aggregates
    ways = {x.table: x.how for x in whole[3] if x.agrees is not None}
    assert {t for t, how in ways.items() if how == "read"} == {"s_loops", "s_tie_rate"} - {t for t, how in ways.items() if how != "read"}


def test_medians_ratios_and_survival_are_those_of_a_plain_calculation(whole):
    _, documents, _, lines = whole
    rows = documents["speculative/main_ksweep.json"]["rows"]
    for table, keep in (("s_ksweep", lambda r: True), ("s_ksweep_clean", lambda r: r["ar_looped_fraction"] < 0.05)):
        cells = found(lines, table)
        rates = {arm: [r["tokens_per_second"] for r in rows if r["arm"] == arm and keep(r)] for arm in ("ar", "uno_k4")}
        four = [r for r in rows if r["arm"] == "uno_k4" and keep(r)]
        decode = plain.median(r["tokens"] / (r["wall_seconds"] - r["prefill_seconds"]) for r in four)
        expected = {
            "rows": len(four),
            "throughput median": plain.median(rates["uno_k4"]),
            "throughput mean": plain.fmean(rates["uno_k4"]),
            "sd": plain.stdev(rates["uno_k4"]),
            "xAR end-to-end": plain.median(rates["uno_k4"]) / plain.median(rates["ar"]),
            "decode-only median": decode,
            "TPF": plain.median(r["tokens_per_forward"] for r in four),
            "slot acceptance": plain.median(r["acceptance_rate"] for r in four),
            "cycles": sum(r["cycles"] for r in four),
            "mean accepted prefix": sum(sum(r["accepted_per_cycle"]) for r in four) / sum(r["cycles"] for r in four),
        }
        for column, value in expected.items():
            assert cells["uno_k4", column] == pytest.approx(value, rel=1e-12), column
    accepted = [a for r in rows if r["arm"] == "uno_k8" for a in r["accepted_per_cycle"]]
    assert [found(lines, "s_survival")["8", f"j={j}"] for j in range(1, 8)] == [sum(a >= j for a in accepted) / len(accepted) for j in range(1, 8)]
    code = {arm: plain.median(r["tokens_per_second"] for r in rows if (r["arm"], r["category"]) == (arm, "code")) for arm in ("ar", "uno_k16")}
    assert found(lines, "s_cat_xar")["code", "K=16 xAR"] == code["uno_k16"] / code["ar"]
    adaptive = [c["k"] for r in documents["speculative/main_adaptive.json"]["rows"] if r["arm"] == "adapt_ev" for c in r["trace"]]
    assert found(lines, "s_adaptive_choices")["adapt_ev", "K=2"] == adaptive.count(2) / len(adaptive)


def test_paired_differences_are_those_of_the_published_bootstrap(whole):
    _, documents, _, lines = whole
    rows = documents["act4u6/decisive.json"]["rows"]
    rate = {(r["arm"], r["prompt"], r["repeat"]): r["tokens_per_second"] for r in rows}
    control = {key[1:]: v for key, v in rate.items() if key[0] == "uno_k4"}
    apart = [rate["staged_d8v2", *key] - v for key, v in control.items()]
    draw, n = random.Random(20260905), len(apart)
    means = sorted(sum(apart[draw.randrange(n)] for _ in range(n)) / n for _ in range(10_000))
    base = plain.fmean(control.values()) / 100
    cells = found(lines, "u6_decisive")
    for column, value in (("percent", plain.fmean(apart)), ("CI low", means[250]), ("CI high", means[9750])):
        assert cells["S(8,2)", column] == pytest.approx(round(value, 6) / base, rel=1e-9), column
    trace = [c for r in rows if r["arm"] == "staged_d8v2" for c in r["trace"]]
    stages = found(lines, "u6_stages")
    assert stages["S(8,2)", "cycles"] == len(trace) and stages["S(8,2)", "2 stages"] == sum(len(c["stages"]) == 2 for c in trace)
    assert stages["S(8,2)", "cycle sd"] == pytest.approx(plain.stdev(c["cycle_ms"] for c in trace)) and stages[
        "S(8,2)", "verify tokens per committed"
    ] == pytest.approx(sum(s["verify_tokens"] for c in trace for s in c["stages"]) / sum(c["committed"] for c in trace))


def published_sweep(place, change=lambda lines: None):
    """The K sweep's CSV files as data/published has their numbers: what the published folder holds of them."""
    facts = published.load("act4s")
    names = {v: k for k, v in act4s.WHOLE.items()} | {"arm": "arm"}
    stage = {r["arm"]: r for r in facts.frame("s_ksweep_stage").to_dict("records")}
    lines = [
        [
            str(row[names[c]]) if c in names else str(stage.get(row["arm"], {}).get({"proposal_ms": "draft"}.get(c, c.removesuffix("_ms")), 0.0))
            for c in folder.SUMMARY
        ]
        for row in facts.frame("s_ksweep").to_dict("records")
    ]
    shares = [
        [f"uno_k{r['block size']}", j, r[f"P({j})"]]
        for r in facts.frame("s_histogram").to_dict("records")
        if r["block size"] < 16
        for j in range(r["block size"])
    ]
    change(lines)
    place.mkdir(parents=True, exist_ok=True)
    for name, head, body in (("main_ksweep_summary.csv", folder.SUMMARY, lines), ("main_ksweep_histogram.csv", ("arm", "accepted", "probability"), shares)):
        with open(place / name, "w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([head, *body])
    return place


def test_the_published_sweep_agrees_to_the_printed_digit_and_a_changed_cell_is_listed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    status, out, err = call(capsys, "import", published_sweep(tmp_path / "r"))
    assert status == 0 and err == "" and "Differences: none" in out
    lines = list(csv.DictReader((tmp_path / "out" / "imported" / "agreement.csv").read_text().splitlines()))
    sweep = [x for x in lines if x["published table"] == "s_ksweep"]
    assert len(sweep) == 96 and {x["agrees"] for x in sweep} == {"yes"} and {x["from"] for x in sweep} == {"read", "derived", "counts"}
    four = [x for x in lines if x["published table"] == "s_survival" and x["row"] == "4"]
    assert [x["agrees"] for x in four] == ["yes"] * 3 and {x["from"] for x in four} == {"counts"}
    assert {x["agrees"] for x in lines if x["published table"] == "s_controls"} == {"not all rows here"}

    def slower(lines):
        lines[3][folder.SUMMARY.index("tok_s_median")] = "60.32"  # printed 60.323

    status, out, _ = call(capsys, "import", published_sweep(tmp_path / "changed", slower))
    assert status == 0 and "s_ksweep | uno_k4 | throughput median | published 60.323 | recomputed 60.32 | read | differs" in out
    assert "Differences: 2" in out and "s_ksweep | uno_k4 | xAR end-to-end | published 1.2449 | recomputed 1.24484068 | derived | differs" in out


@pytest.mark.parametrize(
    "value, recomputed, places, same",
    [
        (1.245, 1.24488, 3, True),
        (1.245, 1.2444, 3, False),
        (81, 81, 0, True),
        (81, 81.4, 0, True),
        (81, 82, 0, False),
        (0.5, 0.54999, 1, True),
        (True, True, 0, True),
        (True, False, 0, False),
        ("5+4", "5+4", 0, True),
    ],
)
def test_a_cell_agrees_if_it_rounds_to_the_printed_digits(value, recomputed, places, same):
    assert compare.agrees(value, recomputed, places) is same
    assert (compare.digits(60.323), compare.digits(1.0), compare.digits(81)) == (3, 0, 0)


# --- the rows ---

def test_rows_come_with_their_origin_their_gaps_and_nothing_that_is_private(whole, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    before = {p: p.read_bytes() for p in whole[0].rglob("*") if p.is_file()}
    assert call(capsys, "import", whole[0], "--out", "o")[0] == 0
    assert before == {p: p.read_bytes() for p in whole[0].rglob("*") if p.is_file()} and {p.name for p in tmp_path.iterdir()} == {"o"}
    files = sorted((tmp_path / "o" / "qwen3.5-4b-base").iterdir())
    assert (
        not list((tmp_path / "o").glob(".import*"))
        and "act4s-main_ksweep.json" in [f.name for f in files]
        and "act4u6-decisive.json" in [f.name for f in files]
    )
    for path in files:
        text, file = path.read_text(), load_rows(path)
        assert file.published and file.provenance["project"] == "qwen-block-diffusion-lab" and file.target == "qwen3.5-4b-base"
        assert file.provenance["date"] in ("2026-09-13", "2026-09-14") and file.provenance["machine"]["class"].startswith("Apple M4 Max")
        assert {f["name"].count("/") for f in file.provenance["files"]} == {0} and text.count("/") == text.count("unsloth/Qwen3.5-4B-Base")
        assert not any(word in text for word in ("safetensors", "0x10", "begins with", "held-out"))
    sweep = load_rows(tmp_path / "o" / "qwen3.5-4b-base" / "act4s-main_ksweep.json")
    assert sweep.provenance["commit"] == "4063e4a0" * 5 and sweep.provenance["target"]["digest"] == made.DIGEST and "config" not in sweep.provenance
    parted = [r for r in sweep.of("decode") if r["identical_to_ar"] is False]
    assert parted and {r["divergence_gap_ulps"] for r in parted} == {1.0} and all(r["cycles"] == 0 for r in sweep.rows if r["arm"] == "ar")
    assert {
        r["divergence_gap_ulps"] for r in load_rows(files[[f.name for f in files].index("act4u6-decisive.json")]).rows if r["identical_to_ar"] is False
    } == {0.0}
    assert imported.recheck(r for s in whole[2] for r in s.rows if r["kind"] == "decode")[False] == 0


def test_a_published_rate_is_kept_and_must_follow_from_the_seconds(whole, tmp_path):
    row = next(r for s in whole[2] if s.stem == "main_ksweep" for r in s.rows if r["arm"] == "uno_k4")
    assert st.tokens_per_second(row) == row["tokens_per_second"] != row["tokens"] / row["wall_seconds"]
    with pytest.raises(BadInput, match="tokens_per_second"):
        save_rows(tmp_path / "x.json", "act4s", "t", {}, {}, [row | {"tokens_per_second": 1.1 * row["tokens_per_second"]}])
    with pytest.raises(BadInput, match="tokens_per_second"):
        imported.convert.decode_row(made.session(0, made.SWEEP)[0] | {"tokens_per_second": 7.0}, "s", "f.json", 0)


def one(tmp_path, change, name="speculative/main_ksweep.json", to=None):
    """A folder with one document, changed."""
    document = made.documents(name)
    text = change(document)
    target = tmp_path / "r" / (to or name)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text if isinstance(text, str) else json.dumps(document), encoding="utf-8")
    return tmp_path / "r"


def test_a_cut_sample_is_imported_and_its_tables_are_not_judged(tmp_path, monkeypatch, capsys):
    def cut(document):
        document["rows"] = document["rows"][:7]
        document["rows"][4]["accepted_per_cycle"] = document["rows"][4]["accepted_per_cycle"][:1]
        document["_sample_note"] = "cut"

    monkeypatch.chdir(tmp_path)
    results = one(tmp_path, cut, to="samples/main_ksweep.sample.json")
    status, out, _ = call(capsys, "import", results)
    assert status == 0 and "1 whole row left out (lists cut short)" in out and "Differences: none" in out
    assert {x.agrees for x in compare.compare(folder.read(results))} == {None}
    assert load_rows("out/imported/qwen3.5-4b-base/act4s-main_ksweep.json").config["cut_sample"]
    made.write(results, ("speculative/main_ksweep.json",))
    assert [s.sample for s in folder.read(results)] == [False]  # the whole file is taken in the place of its sample


def test_a_file_that_says_it_has_more_rows_is_not_whole(tmp_path):
    sources = folder.read(one(tmp_path, lambda d: d["rows"].pop()))
    assert not sources[0].whole and {x.agrees for x in compare.compare(sources)} == {None}


def test_numbers_that_are_not_finite_become_null_and_are_counted(tmp_path, monkeypatch, capsys):
    def odd(document):
        document["rows"][3]["unattributed_seconds"] = math.nan  # read, but not needed
        document["rows"][5]["wall_seconds"] = math.inf
        document["rows"][5]["commit_seconds"] = -math.inf

    monkeypatch.chdir(tmp_path)
    status, out, _ = call(capsys, "import", one(tmp_path, odd))
    assert status == 0 and "main_ksweep.json: 3 numbers were not finite and became null" in out and "1 whole row left out (a number that is not finite)" in out
    assert len(load_rows("out/imported/qwen3.5-4b-base/act4s-main_ksweep.json").rows) == 107
    (tmp_path / "c").mkdir()
    text = (published_sweep(tmp_path / "c") / "main_ksweep_summary.csv").read_text().replace("60.323", "nan")
    (tmp_path / "c" / "main_ksweep_summary.csv").write_text(text)
    assert folder.read(tmp_path / "c")[1].left == {folder.NOT_FINITE: 1}


# --- what is wrong with a folder ---

def text_of(change):
    return lambda document: change(json.dumps(document))


def row(**fields):
    return lambda document: document["rows"][2].update(fields)


BAD = [
    (text_of(lambda t: t[: t.index('"arm": "uno_k4", "kind"')]), "ends too early, after 3 whole rows"),
    (text_of(lambda t: t[:-1]), "ends too early, after 108 whole rows"),
    (lambda d: "", "ends too early, after 0 whole rows"),
    (text_of(lambda t: t + "x"), "more text after the end"),
    (lambda d: "[1]", "'{' belongs"),
    (text_of(lambda t: t.replace('"repeat": 0', '"repeat": 0, "repeat": 1', 1)), "key 'repeat' twice"),
    (text_of(lambda t: t[:-1] + ', "rows": []}'), "key 'rows' twice"),
    (text_of(lambda t: t.replace('"transaction": null', f'"transaction": {"[" * 200_000}', 1)), "nested too deeply"),
    (text_of(lambda t: t.replace('"repeat": 0', f'"repeat": {"9" * 5000}', 1)), "beyond 64 bits"),
    (text_of(lambda t: t.replace('"repeat": 0', '"repeat": tru', 1)), "not JSON"),
    (row(wall_seconds="2.4"), "rows[2].wall_seconds"),
    (row(wall_seconds=None), "rows[2].wall_seconds"),
    (row(cycles=-1), "rows[2].cycles"),
    (row(arm="../../x"), "rows[2].arm"),
    (row(arm="uno\nk4"), "rows[2].arm"),
    (row(category="/etc"), "rows[2].category"),
    (row(accepted_per_cycle=[1]), "accepted_per_cycle"),
    (row(identical_to_ar="yes"), "rows[2].identical_to_ar"),
    (lambda d: d["rows"].__setitem__(2, 7), "no object at rows[2]"),
    (lambda d: d.update(rows={}), "no list at rows"),
    (lambda d: d.update(rows=[]), "holds no rows"),
    (lambda d: d.update(config=3), "no object at config"),
    (lambda d: d.update(provenance=[]), "no object at provenance"),
    (lambda d: d["provenance"].update(model="../../x"), "model"),
    (lambda d: d["provenance"].update(model="x"), "owner/name"),
    (lambda d: d["provenance"].update(commit=5), "provenance.commit"),
    (lambda d: d["rows"].append(d["rows"][0]), "two rows of ar"),
    (row(tokens_per_second=1.0), "tokens_per_second"),
]


@pytest.mark.parametrize("change, says", BAD)
def test_a_damaged_file_is_one_sentence_status_2_and_nothing_written(tmp_path, monkeypatch, capsys, change, says):
    results = one(tmp_path, change)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    status, out, err = call(capsys, "import", results)
    assert status == 2 and out == "" and says in err and "main_ksweep.json" in err and err.count("\n") == 1 and len(err) < 400
    assert not list((tmp_path / "here").iterdir())


def test_links_and_odd_places_are_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    good = made.write(tmp_path / "good", ("act4u6/pilot.json",))
    for name in ("file", "deep", "pipe", "twice", "empty"):
        (tmp_path / name).mkdir()
    (tmp_path / "file" / "pilot.json").symlink_to(good / "act4u6" / "pilot.json")
    (tmp_path / "deep" / "act4u6").symlink_to(good / "act4u6")
    os.mkfifo(tmp_path / "pipe" / "pilot.json")
    made.write(tmp_path / "twice" / "a", ("act4u6/pilot.json",))
    made.write(tmp_path / "twice" / "b", ("act4u6/pilot.json",))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "qwen3.5-4b-base").symlink_to(tmp_path / "empty")
    before = sorted(tmp_path.rglob("*"))
    for words, says in (
        (["file"], "is a link"),
        (["deep"], "is a link"),
        (["pipe"], "no plain file"),
        (["twice"], "the same file"),
        (["empty"], "holds no file of the published"),
        (["nowhere"], "is no folder"),
        (["good/act4u6/pilot.json"], "is no folder"),
        (["good", "--out", "good/x"], "only read"),
        (["good", "--out", "out"], "leads elsewhere"),
        (["good", "--out", str(paths.data() / "x")], "committed data/"),
        (["good", "--out", str(REPOSITORY)], "is the repository"),
        ([], "DIR"),
    ):
        status, out, err = call(capsys, "import", *words)
        assert status == 2 and out == "" and says in err and err.count("\n") == 1, words
    assert sorted(tmp_path.rglob("*")) == before
    monkeypatch.setattr(folder, "MOST", 2)
    assert "more than 2 files" in call(capsys, "import", "twice")[2]


def test_a_write_that_fails_leaves_nothing(tmp_path, monkeypatch, capsys):
    made.write(tmp_path / "r", ("act4u6/pilot.json", "act4u6/calibrate.json"))
    monkeypatch.chdir(tmp_path)
    writes = []

    def full(path, *rest):
        writes.append(path)
        if len(writes) == 2:
            raise OSError(28, "No space left on device")
        return save_rows(path, *rest)

    monkeypatch.setattr(imported, "save_rows", full)
    status, _, err = call(capsys, "import", "r", "--out", "o/p")
    assert status == 1 and "No space left" in err and [p.name for p in tmp_path.iterdir()] == ["r"]


def test_bytes_changed_at_random_are_read_or_refused_in_a_sentence(tmp_path):
    rng = random.Random(20260905)
    good = json.dumps(made.documents("act4u6/pilot.json")).encode()[:30_000]
    (tmp_path / "act4u6").mkdir()
    says = set()
    for _ in range(60):
        data = bytearray(good)
        for _ in range(rng.randrange(3)):
            data[rng.randrange(len(data))] = rng.choice(b'\x00\xff"{}[],:9eN')
        (tmp_path / "act4u6" / "pilot.json").write_bytes(data[: rng.choice((len(data), rng.randrange(len(data))))])
        with pytest.raises(BadInput) as error:  # the document was cut, so none is whole
            compare.compare(folder.read(tmp_path))
        assert str(error.value).count(".\n") == 0 and str(error.value).endswith(".")
        says.add(str(error.value).split(" ")[1])
    assert len(says) > 2


def test_a_file_is_read_piece_by_piece_and_no_value_grows_without_end(tmp_path, monkeypatch):
    path = made.write(tmp_path, ("speculative/main_degeneration.json",)) / "speculative" / "main_degeneration.json"
    read = lambda: [r for s in folder.read(tmp_path) for r in s.rows]  # noqa: E731
    rows = read()
    monkeypatch.setattr(stream, "CHUNK", 7)
    assert read() == rows and len(rows) == 18
    monkeypatch.setattr(stream, "LARGEST", 100)
    with pytest.raises(BadInput, match="holds a value of more than"):
        read()
    with open(path, "rb") as file:
        reader = stream.Reader(file, "x")
        monkeypatch.setattr(stream, "LARGEST", 1000)
        for _ in reader.items():
            assert len(reader._text) < 2000  # letters that are held, of a file of several thousand


# --- drawn ---

@pytest.fixture
def shown(monkeypatch):
    seen = []
    monkeypatch.setattr(pages, "display", lambda bundle, metadata, raw: seen.append(bundle))
    return seen


def test_imported_rows_are_drawn_as_published_beside_the_verdict_and_never_as_measured(whole, tmp_path, monkeypatch, shown, capsys):
    monkeypatch.chdir(tmp_path)
    assert call(capsys, "import", whole[0], "--out", "o")[0] == 0
    for name, act in (("act4s-main_ksweep", "act4s"), ("act4s-main_baseline", "act4s"), ("act4s-summaries", "act4s"), ("act4u6-decisive", "act4u6")):
        path = tmp_path / "o" / "qwen3.5-4b-base" / f"{name}.json"
        needs.check(load_rows(path))
        shown.clear()
        page = pages.Page(act, acts.get(act).defaults | {"rows": str(path)})
        page.verdict()
        texts = [b["text/markdown"] for b in shown if "text/markdown" in b]
        captions = [t for t in texts if t.startswith(("**Table", "**Figure"))]
        assert len(captions) > 1 and "None of their numbers was measured here" in texts[1]
        assert all("(published: unsloth/Qwen3.5-4B-Base, bfloat16; Apple M4 Max" in t and "measured here" not in t and "2026-09-1" in t for t in captions)
        assert page.imported.act == act and page.rows is not None and not page.rows.published and page.measured_label.startswith("measured here: tiny-hybrid")
        page.provenance()
        assert "published rows: project" in shown[-1]["text/plain"]
    table = next(b for b in shown if "staged" in b.get("text/plain", "") and "wins" in b["text/plain"])
    assert "plain decoding" not in table["text/plain"]
    with pytest.raises(BadInput, match="rows of 'act4u6'"):
        pages.Page("act4s", acts.get("act4s").defaults | {"rows": str(path)})


def test_published_rows_have_no_place_among_the_measured_ones(whole, tmp_path, monkeypatch, capsys):
    out = tmp_path / "data" / "measured"
    monkeypatch.setattr(paths, "root", lambda: tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "published").symlink_to(REPOSITORY / "data" / "published")
    target, name, *rest = next(imported.row_files("act4u6", [s for s in whole[2] if s.stem == "pilot"]))
    path = save_rows(out / target / "act4u6.json", *rest[:1], target, *rest[1:])
    assert any("holds published rows" in line for line in check.rows(path))


def test_rows_of_ones_own_need_a_loop_fraction(tmp_path):
    good = load_rows(synthetic.write(tmp_path / "good.json", widths=(1, 4), repeats=1))
    rows = [r | ({"ar_looped_fraction": None} if r["kind"] == "decode" else {}) for r in good.rows]
    file = load_rows(save_rows(tmp_path / "x.json", good.act, good.target, good.provenance, good.config, rows))
    assert st.loop_free(file.of("decode")) == []
    with pytest.raises(BadInput, match="ar_looped_fraction in decode rows"):
        needs.check(file)
