"""Act IV-U2 measured: rows in protocol order, resume, schemas, and criteria that can fail."""
import json
import math

import numpy as np
import pytest
import synthetic
from specdecode_nb import criteria
from specdecode_nb.book import acts, published, undo
from specdecode_nb.criteria import FAILS, HOLDS, NO_ROWS, SPANS
from specdecode_nb.errors import BadInput
from specdecode_nb.protocols import act4u2
from specdecode_nb.records import RowFile, check_row, load_rows
from specdecode_nb.transaction import SCHEMES
from test_records import row

PARAMS = acts.get("act4u2").resolve({"quick": True, "prompts": 2, "tokens": 7, "block_sizes": [2, 4], "widths": [2, 5], "commits": 2})
ARMS = ["ar", "ar_mlx_lm", *(f"{s}_k{k}" for k in (2, 4) for s in SCHEMES)]


short_prompts = synthetic.short_prompts(act4u2)


@pytest.fixture(scope="module")
def measured(short_prompts, tmp_path_factory):
    """A tiny measurement that is killed twice on its way."""
    journal = tmp_path_factory.mktemp("u2") / "act4u2.journal"

    # within the four commits of one width and count, and within the arms of one prompt
    for at, resume in ((6, False), (35, True)):
        with pytest.raises(KeyboardInterrupt):
            act4u2.measure(PARAMS, journal, synthetic.stopping(at), resume=resume)
    before = journal.read_text().splitlines()[1:]
    with pytest.raises(BadInput, match="another configuration"):
        act4u2.measure(PARAMS | {"tokens": 11}, journal, resume=True)
    file = load_rows(act4u2.measure(PARAMS, journal, resume=True))
    assert [row for row in map(json.loads, before) if "kind" in row] == file.rows[:35]  # the others are readings of the machine
    return file


def test_every_row_is_there_once(measured):
    assert [r["arm"] for r in measured.of("decode")] == ARMS * 2
    assert [(r["width"], r["kept"], r["scheme"]) for r in measured.of("commit")] == [(w, n, s) for w in (2, 5) for n in range(1, w + 1) for s in SCHEMES]
    assert len(measured.of("gates")) == 2 * 3 and len(measured.of("rewind")) == 2 * 2 * len(act4u2.GUARDS)
    assert measured.config["reduced"] is True and measured.config["criteria"] == criteria.load("act4u2").rules


def test_schemes_differ_in_what_they_should(measured):
    rows = measured.of("decode")
    for r in rows:
        name = undo.scheme(r["arm"])
        if name in SCHEMES:
            assert r["forwards"] == 1 + 2 * r["cycles"] + r["replay_forwards"]
            assert (r["replay_forwards"] > 0) <= (name == "replay") and (r["recorded_bytes"] > 0) == (name != "replay")
            assert len(r["rewind_steps_per_cycle"]) == (r["cycles"] if name == "rewind" else 0)
    assert any(r.get("replay_forwards") for r in rows) and any(sum(r.get("rewind_steps_per_cycle", [])) for r in rows)
    by = {(r["scheme"], r["width"], r["kept"]): r for r in measured.of("commit")}
    for (name, width, kept), r in by.items():
        exact = name in ("per_token_states", "tape") or kept == width
        assert all(e == 0 if exact else e < 1e-4 for e in r["state_error"])
        assert (r["rewind_steps"] > 0) == (name == "rewind" and kept < width)
    assert max(by["rewind", 5, 1]["state_error"]) > 0
    assert by["tape", 5, 1]["recorded_bytes"] * 1024 == by["per_token_states", 5, 1]["recorded_bytes"] * 65


def test_gates_come_back_as_they_were(measured):
    row = measured.of("gates")[0]
    values = undo.gate_values([row])
    assert len(values["beta"]) == row["positions"] * row["heads"] and row["heads"] == 4
    assert np.allclose(values["beta"] + values["1-beta"], 1) and (values["decay g"] <= 1).all() and (values["amplification"] >= 1).all()


@pytest.mark.parametrize("change, word", [({"target": "tiny-hybird"}, "tiny-hybrid"), ({"drafter": "uon"}, "uno"), ({"drafter": "none"}, "drafter"),
                                          ({"tokens": 40_000}, "context")])
def test_bad_input_is_refused_before_anything_is_measured(tmp_path, change, word):
    with pytest.raises(BadInput, match=word):
        act4u2.measure(PARAMS | change, tmp_path / "act4u2.journal")
    assert not list(tmp_path.iterdir())


# --- criteria ---

def replaced(rows, change, **where):
    """The same rows, with ``change`` made to those that match."""
    hit = lambda r: all(r.get(k) == v for k, v in where.items())  # noqa: E731
    assert any(map(hit, rows.rows))
    return RowFile(rows.act, rows.target, rows.provenance, rows.config, [r | change(r) if hit(r) else r for r in rows.rows], rows.name, rows.digest)


def words(rows):
    return {o.criterion.id: o.word for o in undo.outcomes(criteria.load("act4u2"), rows)}


def test_every_rule_is_judged_and_published_numbers_are_the_published_ones(measured):
    found = words(measured)
    assert NO_ROWS not in found.values() and found["U2-2"] == HOLDS and found["tape-state"] == HOLDS and found["tape-memory"] == HOLDS
    rules, facts = criteria.load("act4u2"), published.load("act4u2")
    value = lambda k, mode, column: facts.value("u2_headline", column, **{"block size": k, "mode": mode})  # noqa: E731
    for k in (2, 4):
        assert float(rules[f"U2-3-k{k}"].published.number) == value(k, "snapshot", "TPF")
        assert float(rules[f"U2-6-plain-k{k}"].published.number) == value(k, "snapshot", "xAR")
        assert rules[f"U2-6-replay-k{k}"].published.number == f"{value(k, 'snapshot', 'throughput') / value(k, 'replay', 'throughput'):.3f}"
        assert rules[f"rewind-speed-k{k}"].published.number == f"{value(k, 'rewind', 'throughput') / value(k, 'snapshot', 'throughput'):.3f}"
        assert rules[f"U2-5-k{k}"].published.number == f"{facts.value('u2_fallback', 'fallback rate', **{'block size': k})} %"


@pytest.mark.parametrize("id, where, change", [
    ("U2-0", dict(arm="replay_k4"), lambda r: {"identical_to_ar": False, "divergence_gap_ulps": 9.0, "first_divergence": 1}),
    ("U2-1", dict(arm="tape_k2"), lambda r: {"token_digest": "other"}),
    ("U2-1", dict(arm="per_token_states_k2"), lambda r: {"accepted_per_cycle": [9] * r["cycles"]}),
    ("U2-2", dict(arm="rewind_k4"), lambda r: {"forwards": r["forwards"] + 1}),
    ("U2-3-k4", dict(arm="per_token_states_k4"), lambda r: {"forwards": 2 * r["tokens"]}),
    ("U2-4", dict(arm="rewind_k2"), lambda r: {"identical_to_ar": False, "divergence_gap_ulps": 9.0, "first_divergence": 1}),
    ("U2-5-k2", dict(arm="rewind_k2"), lambda r: {"rewind_fallbacks_per_cycle": r["rewind_steps_per_cycle"]}),
    ("U2-6-replay-k2", dict(arm="per_token_states_k2"), lambda r: {"wall_seconds": 1e3}),
    ("U2-6-plain-k4", dict(arm="per_token_states_k4"), lambda r: {"wall_seconds": 1e3}),
    ("rewind-speed-k4", dict(arm="rewind_k4"), lambda r: {"wall_seconds": 1e-3}),
    ("rewind-commit", dict(scheme="rewind", width=5), lambda r: {"commit_ms": [1e-6, 1e-6]}),
    ("rewind-memory", dict(scheme="rewind", width=5), lambda r: {"recorded_bytes": 1}),
    ("rewind-worst", dict(kind="gates"), lambda r: {"write_logit": [0.0] * len(r["fade"]), "fade": [0.1] * len(r["fade"])}),
    ("rewind-limit-100", dict(kind="rewind", limit=100.0, guard="both"), lambda r: {"relative_error": None}),
    ("rewind-limit-1000", dict(kind="rewind", limit=1000.0), lambda r: {"relative_error": 1e-5}),
    ("rewind-guard-beta", dict(kind="rewind", guard="beta"), lambda r: {"relative_error": 1e-5}),
    ("tape-state", dict(scheme="tape", width=5, kept=2), lambda r: {"state_error": [0.0, 1e-7]}),
    ("tape-memory", dict(scheme="tape", width=5), lambda r: {"recorded_bytes": 10**9}),
    ("tape-commit", dict(scheme="tape", width=5), lambda r: {"commit_ms": [1e6, 1e6]}),
    ("tape-speed-k4", dict(arm="tape_k4"), lambda r: {"wall_seconds": 1e3}),
])
def test_every_criterion_can_fail(measured, id, where, change, monkeypatch):
    monkeypatch.setattr(criteria, "FEWEST", 2)  # the tiny measurement has two prompts
    assert words(replaced(measured, change, **where))[id] == FAILS


def test_a_band_and_a_width_that_was_not_run(measured, monkeypatch):
    monkeypatch.setattr(criteria, "FEWEST", 2)
    rules = criteria.load("act4u2")
    inside = replaced(measured, lambda r: {"tokens": 125, "forwards": 100}, arm="per_token_states_k4")
    assert undo.outcome(rules["U2-3-band-k4"], inside).word == HOLDS and undo.outcome(rules["U2-3-band-k4"], inside).value == 1.25
    without = RowFile(*(getattr(measured, f) for f in ("act", "target", "provenance", "config")), [r for r in measured.rows if not r.get("arm", "").endswith("k4") and r.get("width") != 5],
                      measured.name, measured.digest)
    found = words(without)
    assert {found[i] for i in ("U2-3-k4", "U2-5-k4", "U2-6-plain-k4", "rewind-commit", "tape-memory")} == {NO_ROWS} and found["U2-3-k2"] != NO_ROWS
    with pytest.raises(ValueError, match="no metric"):
        undo.metric("luck", measured)


def test_verdicts_in_words(measured):
    rules = criteria.load("act4u2")
    judged = lambda word: [criteria.Outcome(c, 1.0, None, None, None, word) for c in rules]  # noqa: E731
    assert undo.established(judged(HOLDS), undo.PUBLISHED_VERDICT) and undo.established(judged(HOLDS), undo.DOMINATION)
    slow = [criteria.Outcome(o.criterion, 1.0, None, None, None, FAILS if o.criterion.id in ("U2-6-plain-k4", "rewind-speed-k2") else HOLDS) for o in judged(HOLDS)]
    assert not undo.established(slow, undo.PUBLISHED_VERDICT) and not undo.established(slow, undo.DOMINATION)
    assert undo.told(slow, undo.PUBLISHED_VERDICT).endswith("faster than replay: at K=2 holds, at K=4 holds; faster than plain decoding: at K=2 holds, at K=4 does NOT hold")
    assert undo.told(judged(SPANS), undo.DOMINATION).endswith("a slower commit: not decidable; no less recorded: not decidable")


# --- metrics by hand ---

def test_ratios_by_hand():
    rows = [{"prompt_id": p, "tokens": t, "forwards": f} for p, t, f in (("a", 10, 5), ("a", 10, 5), ("b", 30, 10))]
    value, low, high, n = undo.ratio_of_sums(rows, lambda r: r["tokens"], lambda r: r["forwards"])
    assert (value, low, high, n) == (2.5, 2.0, 3.0, 2)
    timed = [{"scheme": s, "width": 3, "kept": kept, "commit_ms": ms} for s, kept, ms in (("a", 1, [2, 4]), ("a", 2, [2, 4]), ("a", 3, [99, 99]), ("b", 1, [1, 1]), ("b", 2, [1, 1]), ("b", 3, [0, 0]))]
    assert undo.commit_ratio(timed, "a", "b", 3) == (3.0, 2.0, 4.0, 2)


def test_gates_by_hand():
    row = {"layer": 0, "heads": 2, "write_logit": [0.0, math.log(99.0)], "fade": [math.log(2), 0.0]}
    values = undo.gate_values([row])
    assert np.allclose(values["beta"], [0.5, 0.99]) and np.allclose(values["amplification"], [4, 100]) and np.allclose(values["decay g"], [0.5, 1])
    shares = undo.gate_shares([row | {"write_logit": [0.0, math.log(999.0)]}], [1]).set_index("head-steps with")
    assert shares.loc["amplification > 100", "share"] == 50 and shares.loc["amplification > 100", "blocks of K=1"] == 100 * (1 - 0.5**4)


# --- schemas ---

COMMIT = {"kind": "commit", "scheme": "tape", "width": 3, "kept": 1, "prompt_ids": ["a"], "commit_ms": [1.0], "verify_ms": [1.0], "state_error": [0.0], "rewind_fallbacks": [0],
          "rewind_steps": 0, "recorded_bytes": 5}
GATES = {"kind": "gates", "prompt_id": "a", "layer": 0, "positions": 1, "heads": 2, "write_logit": [0.0, 1.0], "fade": [0.0, 1.0], "beta_is_one": 0, "decay_is_zero": 0}
REWIND = {"kind": "rewind", "prompt_id": "a", "width": 3, "kept": 1, "guard": "both", "limit": None, "steps": 24, "fallbacks": 0, "relative_error": None}


@pytest.mark.parametrize("row, change", [
    (COMMIT, {"commit_ms": [1.0, 2.0]}), (COMMIT, {"kept": 4}), (COMMIT, {"kept": 0}), (COMMIT, {"recorded_bytes": -1}), (COMMIT, {"verify_ms": ["1"]}),
    (COMMIT, dict.fromkeys(("prompt_ids", "commit_ms", "verify_ms", "state_error", "rewind_fallbacks"), [])), (GATES, {"heads": 3}), (GATES, {"fade": [0.0, -1.0]}),
    (GATES, {"write_logit": [0.0]}), (REWIND, {"guard": "g"}), (REWIND, {"limit": 0.0}), (REWIND, {"relative_error": -1.0}), (REWIND, {"steps": 1.5}),
])
def test_rows_that_do_not_fit_are_refused(row, change):
    assert check_row(row, "here") is row
    with pytest.raises(BadInput, match="does not fit the schema"):
        check_row(row | change, "here")


def test_counts_of_a_decode_row_are_one_a_cycle():
    good = row(arm="rewind_k2", rewind_steps_per_cycle=[12, 0], rewind_fallbacks_per_cycle=[1, 0])
    check_row(good, "here")
    with pytest.raises(BadInput, match="rewind_steps_per_cycle has 1 entries for 2 cycles"):
        check_row(good | {"rewind_steps_per_cycle": [12]}, "here")


def test_quick_stands_for_smaller_values_unless_they_are_given():
    act = acts.get("act4u2")
    assert act.resolve({"quick": True})["tokens"] == 24 < act.defaults["tokens"] and act.resolve({"quick": True, "tokens": 40})["tokens"] == 40
    assert act.resolve({})["tokens"] == act.defaults["tokens"]
