"""The sweep of Act DFlash on a toy target with toy drafters, and its metrics on rows whose numbers are known beforehand."""
import json
from dataclasses import replace

import pytest
import synthetic
from specdecode_nb import criteria, paths
from specdecode_nb.book import acts, block, published
from specdecode_nb.decoder import Session
from specdecode_nb.dflash_files import write_dflash
from specdecode_nb.errors import BadInput
from specdecode_nb.lora import save_adapter
from specdecode_nb.mtp import MTPModel, write_mtp
from specdecode_nb.protocols import dflash
from specdecode_nb.records import RowFile, load_rows, sha256
from synthetic import SHORT
from tapping import drawn, make, weights
from toy import ScriptedDrafter, adapter, bits, equal, hybrid, plain, uno

TOKENS, BLOCKS, REPEATS = 12, [4, 8], 2
PARAMS = acts.get("dflash").resolve({"quick": True}) | {"prompts": 2, "tokens": TOKENS, "blocks": BLOCKS}
ARMS = ["ar", "ar_mlx_lm", "mtp3", "uno_k4", "dflash_b4", "dflash_b8", "adapt_value", "adapt_mlx_vlm", "adapt_dflash_mlx", "ngram2_k4"]
FORWARDS = {("verify", w) for w in (1, 2, 3, 4, 5, 8, 16)} | {("draft", w) for w in (2, 3, 4, 5, 8)}
TOY, LOAD = hybrid(), dflash.load_drafters

short_prompts = synthetic.short_prompts(dflash)


def knowing(kind):
    """Reads and drafts as its kind does, then offers the plain continuation with a mistake, so that every accepted count occurs."""
    drafter, prompts = make(kind, TOY), [TOY.encode(p["text"]) for p in SHORT]
    own = drafter.draft

    def draft(cache, history, k, cycle):
        prompt = next(p for p in prompts if history[: len(p)] == p)
        script = ScriptedDrafter(TOY, plain(TOY, tuple(prompt), 40), len(prompt), (1, 0, 10**6, 2), "lookup")
        return replace(own(cache, history, k, cycle), tokens=script.draft(cache, history, k, cycle).tokens)

    drafter.draft = draft
    return drafter


@pytest.fixture(scope="module", autouse=True)
def toys(short_prompts):
    """The Act measures a toy target with toy drafters, each single forward twice."""
    found = {"dflash": knowing("dflash"), "mtp": knowing("mtp"), "uno": uno(TOY)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dflash, "load_target", lambda name, dtype: TOY)
        patch.setattr(dflash, "load_drafters", lambda target, **_: (found, dict.fromkeys(found, "0" * 64)))
        patch.setattr(dflash, "COST_REPEATS", REPEATS)
        yield


@pytest.fixture(scope="module")
def measured(toys, tmp_path_factory):
    return load_rows(dflash.measure(PARAMS, tmp_path_factory.mktemp("measured") / "dflash.journal"))


def test_every_row_of_the_three_kinds_is_there(measured):
    assert measured.act == "dflash" and [r["arm"] for r in block.sweep_rows(measured)] == ARMS * 2
    assert {(r["width"], r["prompt_id"]) for r in measured.of("cycle_cost")} == {(w, p["id"]) for w in (0, 2, 4, 5, 8) for p in SHORT}
    timed = [(r["prompt_id"], r["repeat"], r["forward"], r["width"]) for r in measured.of("cost")]
    assert len(timed) == len(set(timed)) and set(timed) == {(p["id"], n, *f) for p in SHORT for n in range(REPEATS) for f in FORWARDS}
    assert all((r["commit_seconds"] > 0) == (r["forward"] == "verify") for r in measured.of("cost"))
    assert measured.config["criteria"] == criteria.load("dflash").rules and set(measured.config["drafters"]) == {"dflash", "mtp", "uno"}
    assert measured.config["reduced"] is True and measured.config["arms"] == ARMS


def test_every_row_is_plain_decoding(measured):
    rows = measured.of("decode")
    assert all(r["identical_to_ar"] and r["tokens"] == TOKENS for r in rows) and len({(r["prompt_id"], r["token_digest"]) for r in rows}) == 2


def test_accepted_over_emitted_is_what_tokens_per_cycle_say(measured):
    rows = [r for r in measured.of("decode") if r["cycles"]]
    guessing = [r for r in rows if r["arm"] != "uno_k4"]
    assert len({a for r in guessing for a in r["accepted_per_cycle"]}) > 2
    assert all(a + 1 == c for r in guessing for a, c in zip(r["accepted_per_cycle"], r["committed_per_cycle"])) and block.broken(rows) == 0
    exact_first = next(r for r in rows if r["arm"] == "uno_k4")
    assert block.broken([exact_first | {"arm": "other"}]) == 1


def test_arms_are_what_they_are_called(measured):
    rows = [r for r in block.sweep_rows(measured) if r["prompt_id"] == "a-1"]
    by = {r["arm"]: r for r in rows}
    drafted = lambda arm: sum(o > 0 for o in by[arm]["offered_per_cycle"])  # noqa: E731
    assert by["dflash_b4"]["forwards"] == 1 + by["dflash_b4"]["cycles"] + drafted("dflash_b4") and block.slots(rows, "dflash_b8") == 7
    assert by["mtp3"]["forwards"] == 1 + by["mtp3"]["cycles"] + sum(by["mtp3"]["offered_per_cycle"])
    assert all(bool(r.get("width_per_cycle")) == r["arm"].startswith("adapt_") for r in rows)
    assert by["adapt_mlx_vlm"]["width_per_cycle"][0] == by["adapt_dflash_mlx"]["width_per_cycle"][0] == 8


def test_the_rules_take_the_measured_costs():
    """Where a cycle costs a hundred plain steps, the rule of expected value ends at plain steps; where all cost one, at drafting."""
    ids, found = TOY.encode(SHORT[0]["text"]), {"dflash": knowing("dflash"), "mtp": make("mtp", TOY), "uno": uno(TOY)}
    widths = lambda cost: dflash.arms_of(TOY, found, BLOCKS, {0: 1.0, 4: cost, 8: cost})["adapt_value"](ids, TOKENS)[1]["width_per_cycle"]  # noqa: E731
    assert widths(100.0).count(0) > 0 and 0 not in widths(1.0)


def test_a_timed_forward_changes_nothing_and_a_timed_draft_reads_fresh_rows():
    drafter, ids = make("dflash", TOY), TOY.encode(SHORT[0]["text"])
    session, following = Session(TOY), plain(TOY, tuple(ids), 40)
    session.feed(ids, drafter.verifier)
    before, read, propose = bits(session.cache), [], drafter._propose
    drafter._propose = lambda past, taps, anchor, k, choose: (read.append((past, taps.shape[1], anchor, k)), propose(past, taps, anchor, k, choose))[1]
    for forward, width in (("draft", 8), ("verify", 5), ("draft", 8), ("verify", 1), ("draft", 2)):
        spent = dflash.timed_forward(drafter, session, following, forward, width)
        assert spent["seconds"] > 0 and session.tokens == ids and equal(bits(session.cache), before)
    known = ids[-1:] + following[: dflash.FRESH - 1]
    assert read == [(known, dflash.FRESH, following[dflash.FRESH - 1], k) for k in (8, 8, 2)]
    drafter._propose = propose
    assert drafter.draft(session.cache, ids, 6, 1).tokens == make("dflash", TOY).draft(session.cache, ids, 6, 1).tokens


def test_a_killed_run_goes_on_from_its_finished_rows(tmp_path, measured):
    """Killed among the costs of cycles, between arms of a prompt, and among the single forwards."""
    journal, few = tmp_path / "dflash.journal", PARAMS | {"prompts": 1, "tokens": 6}
    whole = 5 + len(ARMS) + REPEATS * len(FORWARDS)
    for n, at in enumerate((3, 8, 20)):
        with pytest.raises(KeyboardInterrupt):
            dflash.measure(few, journal, synthetic.stopping(at, whole), resume=n > 0)
    first = [row for row in map(json.loads, journal.read_text().splitlines()[1:]) if "kind" in row]  # the others are readings of the machine
    file = load_rows(dflash.measure(few, journal, resume=True))
    assert len(first) == at and file.rows[:at] == first and len(file.rows) == whole
    key = lambda r: (r["kind"], r["prompt_id"], r.get("arm"), r.get("repeat"), r.get("forward"), r.get("width"))  # noqa: E731
    assert {key(r) for r in file.rows} == {key(r) for r in measured.rows if r["prompt_id"] == "a-1"}


@pytest.mark.parametrize("change, word", [({"blocks": [4, 17]}, "at most 16"), ({"tokens": 4096}, "context")])
def test_bad_input_is_refused_before_anything_is_measured(tmp_path, change, word):
    with pytest.raises(BadInput, match=word):
        dflash.measure(PARAMS | change, tmp_path / "dflash.journal")
    assert not list(tmp_path.iterdir())


def test_the_drafter_must_be_there_and_the_others_may_be_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "models", lambda: tmp_path)
    monkeypatch.setattr(dflash, "load_drafters", LOAD)
    folder = tmp_path / "toy0"

    def refused():
        with pytest.raises(BadInput) as caught:
            dflash.measure(PARAMS, tmp_path / "out" / "dflash.journal")
        assert not (tmp_path / "out").exists()
        return str(caught.value)

    assert "no dflash drafter for target 'toy0'" in refused()
    write_dflash(folder / "dflash", weights(), {})
    with pytest.raises(BadInput, match="no mtp drafter"):
        LOAD(TOY)
    some = LOAD(TOY, optional=("mtp", "uno"))
    assert set(some[0]) == set(some[1]) == {"dflash"}
    arms = dflash.arms_of(TOY, some[0], PARAMS["blocks"], dict.fromkeys(range(17), 1.0))
    assert not {"mtp3", "uno_k4"} & set(arms) and f"dflash_b{PARAMS['blocks'][0]}" in arms
    write_mtp(folder / "mtp.safetensors", drawn(MTPModel(TOY, 48)), {"depth": 2})
    with pytest.raises(BadInput, match="no uno drafter"):
        LOAD(TOY)
    save_adapter(folder / "uno.safetensors", adapter(TOY)[0], {"scale": 16.0})
    found, digests = LOAD(TOY)
    assert set(found) == set(digests) and digests["mtp"] == sha256((folder / "mtp.safetensors").read_bytes())
    assert "'mtp' was trained for blocks of at most 3" in refused()


# --- metrics on rows written by hand ---

def run(arm, prompt, seconds, accepted=(), offered=3, looped=0.0, own=1):
    """Twenty tokens without prefill; a cycle commits its accepted tokens and ``own`` of the target's."""
    committed = [a + own for a in accepted]
    assert sum(committed) in (0, 20)
    return {"kind": "decode", "section": "sweep", "arm": arm, "prompt_id": prompt, "category": "a", "repeat": 0, "prompt_tokens": 5, "tokens": 20, "wall_seconds": seconds,
            "prefill_seconds": 0.0, "draft_seconds": 0.0, "verify_seconds": 0.0, "commit_seconds": 0.0, "forwards": 20, "cycles": len(accepted),
            "accepted_per_cycle": list(accepted), "offered_per_cycle": [offered] * len(accepted), "committed_per_cycle": committed, "ar_looped_fraction": looped,
            "identical_to_ar": True, "first_divergence": None, "divergence_gap_ulps": None}


def rows():
    """Four prompts, two of them loop-free where block 5 takes 0.8 s instead of 0.4 s. A plain step takes 100 ms.

    Single forwards: verify 100 ms and 10 ms a row, draft 20 ms, commit 10 ms, so a cycle of 4, 5, 8, 16 rows takes 1.7, 1.8, 2.1, 2.9 steps.
    """
    out = []
    for i in range(6):
        p, free = f"p{i}", i < 3
        at = dict(prompt=p, looped=0.0 if free else 0.5)
        out += [run("ar", seconds=2.0, **at), run("ar_mlx_lm", seconds=2.5, **at), run("mtp3", seconds=1.6, accepted=[3] * 5, **at),
                run("uno_k4", seconds=1.0, accepted=[3] * 4, own=2, **at),
                run("dflash_b4", seconds=0.85, accepted=[3] * 5, **at), run("dflash_b5", seconds=0.8 if free else 0.4, accepted=[3] * 5, offered=4, **at),
                run("dflash_b8", seconds=0.84, accepted=[4] * 4, offered=7, **at), run("dflash_b16", seconds=0.58, accepted=[9] * 2, offered=15, **at),
                run("adapt_value", seconds=0.5, accepted=[4] * 4, offered=5, **at), run("adapt_mlx_vlm", seconds=1.0, accepted=[4] * 4, offered=8, **at),
                run("adapt_dflash_mlx", seconds=0.9, accepted=[4] * 4, offered=8, **at), run("ngram2_k4", seconds=2.0, accepted=[1] * 10, **at)]
    for p in ("p0", "p1", "p2"):
        for repeat in range(2):
            for w in dflash.ROWS:
                common = {"kind": "cost", "prompt_id": p, "category": "a", "context_tokens": 5, "repeat": repeat, "width": w}
                out.append(common | {"forward": "verify", "seconds": 0.1 + 0.01 * w, "commit_seconds": 0.01})
                out += [common | {"forward": "draft", "seconds": 0.02, "commit_seconds": 0.0}] if w > 1 else []
    return out


def file_of(found, **config):
    return RowFile("dflash", "toy", {}, {"criteria": criteria.load("dflash").rules} | config, found, "rows.json", "0" * 64)


def test_every_metric_by_hand():
    found = block.numbers(file_of(rows()))
    # block 16 at 20 / 0.58 = 34.48 tok/s; block 5 at the mean of 25 and 50 = 37.5, plain at 10
    assert found["best_over_plain"] == pytest.approx((3.75, 2.5, 5.0, 6)) and found["best_over_plain_clean"] == pytest.approx((2.5, 2.5, 2.5, 3))
    assert found["best_over_head"] == pytest.approx((3.0, 2.0, 4.0, 6)) and found["best_over_adapter"][0] == pytest.approx(1.875)
    assert found["head_over_plain"] == pytest.approx((1.25, 1.25, 1.25, 6)) and found["lookup_over_best"] == pytest.approx((1 / 3.75, 0.2, 0.4, 6))
    assert [found[f"{name}_over_fixed"][0] for name in block.RULES] == pytest.approx([40 / 37.5, 20 / 37.5, (20 / 0.9) / 37.5])
    assert found["rows_not_plain"] == (0, None, None, 66) and found["broken_identity"] == (0, None, None, 54)
    # accepted / drafted 1, 3/4, 4/7, 9/15 for blocks 4, 5, 8, 16
    assert found["acceptance_fall"] == pytest.approx((4 / 7 - 0.6, 4 / 7 - 0.6, 4 / 7 - 0.6, 6))
    assert found["emitted_share_16"] == pytest.approx((0.9, 0.9, 0.9, 6)) and found["price_16"] == pytest.approx((2.9, 2.9, 2.9, 3))
    value, low, high, n = found["narrow_over_wide"]
    assert (value, low, high, n) == pytest.approx((37.5 / (20 / 0.58), 25 / (20 / 0.58), 50 / (20 / 0.58), 6))
    # measured: 42.5, 30, 42, 29 ms a token; predicted 42.5, 45, 42, 29
    assert found["model_error"] == (pytest.approx(100 * (1 - 30 / 45)), None, None, 4)


def test_verdicts_follow_the_rows():
    words = {}
    for o in block.outcomes(file_of(rows())):
        words.setdefault(o.word, set()).add(o.criterion.id)
    assert words == {criteria.HOLDS: {"speed", "speed-loop-free", "identity", "accounting", "head", "over-head", "over-adapter", "lookup", "carry-over", "price"},
                     criteria.FAILS: {"rule-mlx-vlm", "rule-dflash-mlx", "acceptance-falls", "cost-model"}, criteria.SPANS: {"rule-value", "narrow"}}


@pytest.mark.parametrize("arm, change, metric, value", [
    ("mtp3", {"identical_to_ar": False, "divergence_gap_ulps": 1.0}, "rows_not_plain", 6), ("dflash_b4", {"accepted_per_cycle": [4, 3, 3, 3, 3]}, "broken_identity", 6),
    ("ngram2_k4", {"accepted_per_cycle": [0] * 10}, "broken_identity", 6), ("uno_k4", {"accepted_per_cycle": [1] * 4}, "broken_identity", 0),
    ("dflash_b16", {"wall_seconds": 1.16}, "model_error", 100.0), ("dflash_b8", {"offered_per_cycle": [6] * 4}, "acceptance_fall", 2 / 3 - 0.6)])
def test_a_metric_sees_its_change(arm, change, metric, value):
    changed = [r | change if r.get("arm") == arm else r for r in rows()]
    assert block.numbers(file_of(changed))[metric][0] == pytest.approx(value)


def test_what_was_not_decoded_is_not_judged():
    few = [r for r in rows() if r.get("arm") not in ("dflash_b8", "dflash_b16") and not (r["kind"] == "cost" and r["forward"] == "draft" and r["width"] == 16)]
    found = block.numbers(file_of(few))
    assert found["price_16"] == (None,) and not {"narrow_over_wide", "emitted_share_16"} & set(found)
    assert {o.criterion.id for o in block.outcomes(file_of(few)) if o.word == criteria.NO_ROWS} == {"narrow", "carry-over", "price"}


def test_tables_by_hand():
    table, found = block.break_even(file_of(rows())).set_index("rows"), block.sweep_rows(file_of(rows()))
    assert table["plain steps"].tolist() == pytest.approx([1.2, 1.5, 1.6, 1.7, 1.8, 2.1, 2.9]) and table.loc[4, "must accept"] == pytest.approx(0.7 / 3)
    assert table.loc[5, ["tokens per cycle", "predicted", "measured", "error"]].tolist() == pytest.approx([4.0, 4 / 1.8, 10 / 3, -100 / 3])
    assert table.loc[16, "error"] == pytest.approx(0.0, abs=1e-9) and table.loc[[1, 2, 3], "error"].isna().all()
    told = block.acceptances(found).set_index("arm")
    assert told.loc["block 8"].tolist() == pytest.approx([24, 7, 4 / 7, 0.8, 0.8, 5]) and told.loc["K=4"].tolist() == pytest.approx([24, 3, 1.0, 0.6, 0.8, 5])
    shown = block.conditional(found).set_index("arm")
    assert shown.loc["block 8"].tolist()[:5] == [1, 1, 1, 1, 0] and shown.loc["block 8"].isna().sum() == 2 and list(shown)[-1] == "j=7"
    assert block.survival(found)["dflash_b5"] == [1, 1, 1, 0] and set(block.survival(found)) == {"mtp3", "uno_k4", "dflash_b4", "dflash_b5", "dflash_b8", "dflash_b16"}
    speed = block.speeds(found).set_index("arm").loc["block 5"]
    assert speed[["tok/s", "x plain", "low", "high"]].tolist() == pytest.approx([37.5, 3.75, 2.5, 5.0])
    assert speed[["x plain, loop-free", "low, loop-free", "high, loop-free", "loop-free prompts"]].tolist() == pytest.approx([2.5, 2.5, 2.5, 3])
    assert block.best(found) == "dflash_b5" and list(block.fixed(found)) == [4, 5, 8, 16]


def test_what_is_short_of_a_speed_by_hand():
    found = [r | {"prefill_seconds": 0.4} if r["arm"] == "dflash_b8" else r for r in block.sweep_rows(file_of(rows()))]
    # block 5 commits 4 of at most 5 tokens in 1.2 plain steps; end to end it is at 3.75
    five = block.goal(found, "dflash_b5", 4.0)
    shown = ("end to end", "tokens per cycle", "cycle", "speed", "tokens needed", "cycle affordable", "speed, all accepted")
    assert [five[k] for k in shown] == pytest.approx([3.75, 4, 1.2, 4 / 1.2, 4.8, 1.0, 5 / 1.2])
    asked = [("dflash_b5", 3.7, "nothing"), ("dflash_b5", 4.0, "acceptance"), ("dflash_b5", 4.5, "price"), ("dflash_b8", 3.0, "prefill")]
    assert block.goals([("all", found, arm, wanted) for arm, wanted, _ in asked])["short"].tolist() == [short for *_, short in asked]


def test_widths_of_the_rules_by_hand():
    found = [r | {"width_per_cycle": [0, 5, 8, 16]} if r["arm"] in block.RULES.values() else r for r in block.sweep_rows(file_of(rows()))]
    found = [r | {"width_per_cycle": [2] * 4} if r["arm"] == "adapt_mlx_vlm" else r for r in found]
    table = block.chosen(found)
    assert table["speed"].tolist() == pytest.approx([block.ratio(found, arm, "dflash_b5")[0] for arm in block.RULES.values()])
    table = table.drop(columns=["arm", "speed", "low", "high"]).values.tolist()
    assert table == [[24, 7.25, 0.25, 0.25, 0.25, 0.25], [24, 2.0, 0.0, 1.0, 0.0, 0.0], [24, 7.25, 0.25, 0.25, 0.25, 0.25]]


# --- criteria and registration ---

def test_every_criterion_has_its_metric_and_claims_what_was_published():
    rules, facts = criteria.load("dflash"), published.load("dflash").facts
    assert {c.rule.metric for c in rules} == set(block.numbers(file_of(rows())))
    known = {c.id for c in facts.criteria} | {n.hypothesis for n in facts.negative_results}
    named = {claim for c in rules for claim in c.claims}
    assert named and named <= known


def test_rows_of_other_rules_are_not_judged(measured):
    assert len(block.outcomes(measured)) == len(criteria.load("dflash"))
    with pytest.raises(BadInput, match="rules"):
        block.outcomes(file_of(rows(), criteria="0" * 64))


def test_the_part_decides_what_is_measured():
    act = acts.get("dflash")
    assert act.measuring(act.resolve({})) == ("dflash", "specdecode_nb.protocols.dflash:measure")
    assert act.measuring(act.resolve({"part": "rest"})) == ("dflash_rest", "specdecode_nb.protocols.dflash_rest:measure")
    assert act.resolve({"quick": True})["tokens"] < act.defaults["tokens"]
    with pytest.raises(BadInput, match="from 2 to 64"):
        act.resolve({"blocks": [1, 4]})
