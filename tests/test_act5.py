"""The protocol of Act V on the toy, in one process; its audit on logits written by hand; a fault in the decoder shows in its rows."""
import json
from contextlib import contextmanager

import numpy as np
import pytest
import synthetic
from specdecode_nb import criteria
from specdecode_nb.book import acts, identity as book
from specdecode_nb.errors import BadInput
from specdecode_nb.protocols import act5, identity, machine, museum
from specdecode_nb.records import RowFile, load_rows
from tapping import make
from toy import hybrid, uno

FAULTS, PARAMS = museum.FAULTS, acts.get("act5").resolve({"quick": True}) | {"tokens": 5, "prompts": 1, "identity_tokens": 1, "widths": [2, 4, 8]}
short_prompts = synthetic.short_prompts(act5)


class Inside:
    """Answers in this process what a child would."""

    def __init__(self, setup):
        self._answer = identity.prepare(setup)

    def answer(self):
        return iter(())

    def ask(self, request):
        return self._answer(json.loads(json.dumps(request)))


@contextmanager
def inside(setup, nice, module, **environ):
    yield Inside(setup)


@pytest.fixture(scope="module", autouse=True)
def toys(short_prompts):
    found = lambda t: {"uno": uno(t), "dflash": make("dflash", t), "mtp": make("mtp", t)}  # noqa: E731
    with pytest.MonkeyPatch.context() as patch:
        for module in (act5, identity):
            patch.setattr(module, "load_target", lambda name, dtype: hybrid(dtype=dtype))
            patch.setattr(module, "load_drafters", lambda target: (found(target), {"uno": "0" * 64}))
        patch.setattr(machine, "worker", inside)
        patch.setattr(museum, "FAULTS", museum.FAULTS[:1])
        patch.setattr(museum, "rows", lambda: ({"kind": "museum", "fault": fault, **dict.fromkeys(("report", "wrong", "where", "old", "new", "symptom"), ""), "caught_by": []}
                                               for fault in ("none", "A1")))
        patch.setattr(act5, "TOY_TOKENS", 12)
        patch.setattr(act5, "LENGTH", 9)
        yield


@pytest.fixture(scope="module")
def measured(toys, tmp_path_factory):
    told = []
    file = load_rows(act5.measure(PARAMS, tmp_path_factory.mktemp("measured") / "act5.journal", lambda *a: told.append(a)))
    assert [a[:2] for a in (told[0], told[-1])] == [(0, len(file.rows)), (len(file.rows), len(file.rows))]
    return file


def test_every_section_is_there_once(measured):
    kinds = {k: len(measured.of(k)) for k in ("identity", "width_noise", "audit", "decode", "museum")}
    arms, narrow, toy = 3 + 2 + 3, 3 + 2 + 3, 12
    assert kinds == {"identity": (arms + toy) + 2 * (toy - 2 + 1) + 3 * (narrow + 1), "width_noise": 2 * 2 * 3, "audit": 2 * (arms + 1), "decode": 9, "museum": 2}
    names = [(r["asked"], r["section"], r["dtype"], r["prompt_id"], *act5.key(r)) for r in measured.rows]
    assert len(set(names)) == len(names)
    assert measured.config["criteria"] == criteria.load("act5").rules and measured.config["reduced"] is True and measured.config["cell"] == 8


def test_nothing_differs_on_the_reference_blas(measured):
    compared = book.reference(measured) + book.gridded(measured)
    assert book.total(compared, "token_mismatches") == book.total(compared, "state_mismatches") == 0
    assert book.total(compared, "accepted") > 50 and all(r["states"] > 1000 for r in compared)
    assert all(r["flip_gaps"] == [] and r["rows_changed"] == 0 < r["rows_compared"] for r in measured.of("audit"))
    assert all(r["largest_change"] == 0 for r in measured.of("width_noise"))
    # every committed token of a drafted text was chosen by a verify row, but the target's own first proposals
    assert {r["rows_compared"] for r in measured.of("audit") if r["family"] != "uno"} == {5}


def test_timed_rows_of_exact_arms_have_the_tokens_of_plain_exact_decoding(measured):
    rows = [r for r in measured.of("decode")]
    assert book.exact_agrees(rows) and {r["arm"] for r in rows} >= {"ar", "ar_mlx_lm", "exact", "uno_k4_exact", "dflash_b8_exact"}
    assert not book.exact_agrees([r | {"token_digest": "0"} if r["arm"] == "uno_k4_exact" else r for r in rows])
    assert all(r["forward_tokens"] == r["prompt_tokens"] - 1 + 8 * (r["forwards"] - 1) for r in rows if r["arm"] == "exact")


def test_every_rule_finds_its_metric(measured):
    judged = {o.criterion.id: o for o in book.outcomes(measured)}
    assert {i for i, o in judged.items() if o.word == criteria.NO_ROWS} == {"V-10"}  # no text differs at any width
    holds = {i for i, o in judged.items() if o.word == criteria.HOLDS}
    assert {"V-2", "V-3", "V-5", "V-6", "V-7", "V-8", "V-9", "V-11", "V-12", "V-13", "V-14"} <= holds
    assert judged["V-1"].word == judged["V-4"].word == criteria.FAILS  # too few tokens; no width noise here
    with pytest.raises(BadInput, match="not measured under the rules"):
        book.outcomes(RowFile(**{**vars(measured), "config": measured.config | {"criteria": "0" * 64}}))


def test_a_killed_run_goes_on(tmp_path, measured):
    """Killed within a unit of the second process."""
    journal = tmp_path / "act5.journal"

    def stop(done, total, label):
        if done == 85:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        act5.measure(PARAMS, journal, stop)
    file = load_rows(act5.measure(PARAMS, journal, resume=True))
    name = lambda r: (r["asked"], r["section"], r["dtype"], r["prompt_id"], *act5.key(r))  # noqa: E731
    assert list(map(name, file.rows)) == list(map(name, measured.rows))


@pytest.mark.parametrize("fault", ("A1", "A16"))
def test_a_fault_in_undoing_shows_in_the_identity_rows_and_in_the_audit(fault):
    """So that their silence means something."""
    answer = identity.prepare({"target": "tiny-hybrid", "widths": [4]})
    request = {"model": "toy", "dtype": "float32", "prompt": {"id": "toy-1", "text": "Step 1.", "category": "a"}, "tokens": 24}
    with museum.put_in(next(f for f in FAULTS if f.id == fault)):
        rows = list(answer(request | {"section": "reference"}))
        audits = list(answer(request | {"section": "audit", "model": "target"}))
    scripted = [r for r in rows if r["arm"].startswith(("kept_k4", "kept_k8"))]
    assert len(scripted) == 4 and all(r["token_mismatches"] or r["state_mismatches"] for r in scripted) and any(r["token_mismatches"] for r in scripted)
    off = {r["arm"]: r["largest_change"] for r in audits}
    assert off["nothing"] == 0 and off["dflash_b4"] > 1e-3 and off["random_k4"] > 1e-3


def test_the_audit_judges_every_position():
    """Four tokens after a prompt of two: a tie that falls to the higher id, a clear flip, a right one, one that no verify row chose."""
    plain = np.array([[1, 3, 3, 0], [5, 1, 2, 0], [0, 0, 0, 7], [1, 2, 0, 0]], dtype=np.float32)
    rows = identity.mx.array(plain[:3]) + identity.mx.array([[0.0], [0.5], [0.0]])
    row = identity.audit_row(plain, [9, 8], [2, 2, 3, 1], [(1, [8, 2, 2, 0], identity.mx.concatenate([rows, rows[:1]]))], {})
    assert (row["positions"], row["exact_ties"], row["flip_positions"], row["flip_gaps"]) == (4, 1, [0, 1], [0.0, 3.0])
    assert (row["rows_compared"], row["rows_changed"], row["largest_change"]) == (3, 1, 0.5)  # the fourth row held a rejected id


def noisy(change, dtype="float32"):
    return {"kind": "width_noise", "section": "noise", "dtype": dtype, "blas": "x", "prompt_id": "p", "width": 4, "positions": 10, "rows_changed": 6, "largest_change": change,
            "median_change": change / 2, "largest_logit": 9.0, "flips": 0}


def judged(width, first, gaps=(), off=0.0, dtype="float32", arm="uno_k", prompt="p"):
    return {"kind": "audit", "section": "audit", "dtype": dtype, "blas": "x", "arm": f"{arm}{width}", "family": "uno", "width": width, "prompt_id": prompt, "category": "a",
            "positions": 20, "exact_ties": 1, "flip_positions": list(range(len(gaps))), "flip_gaps": list(gaps), "first_divergence": first, "rows_compared": 10, "rows_changed": 1,
            "largest_change": off}


def file_of(*rows):
    return RowFile("act5", "tiny-hybrid", {}, {}, list(rows), "rows", "0" * 64)


def test_a_gap_beyond_the_noise_is_unexplained_and_the_largest_noise_counts():
    file = file_of(noisy(0.1), noisy(0.3), noisy(0.2, "bfloat16"), judged(2, 3, (0.3, 0.31), 0.61), judged(4, None, (0.1,), 0.6), judged(2, None, (0.21,), dtype="bfloat16"))
    found = book.numbers(file)
    assert (found["unexplained:float32"][0], found["off:float32"][0], found["unexplained:bfloat16"][0]) == (1, 1, 1)
    assert found["changed:float32"] == (0.6, None, None, 20) and found["control_flips"][0] == 0
    table = book.audited(file)
    assert table["unexplained"].tolist() == [1, 0, 1] and table["flips"].tolist() == [2, 1, 1] and table["exact ties"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("firsts, wanted", [((3, 5, 9), (1, 1)), ((9, 5, 3), (1, 1)), ((4, 4, 4), (0, 1)), ((3, 9, 5), (0, 1)), ((3, 3, 9), (0, 1)), ((3, None, 9), None), ((None,) * 3, None)])
def test_a_first_difference_that_moves_one_way_with_the_width_is_told(firsts, wanted):
    assert book.moving(file_of(*(judged(w, at, dtype="bfloat16") for w, at in zip((2, 4, 8), firsts))), "bfloat16") == wanted


def test_the_toy_makes_up_the_tokens_that_are_asked_for():
    ask = lambda tokens: len(act5.toy_units(PARAMS | {"identity_tokens": tokens}, arms=8))  # noqa: E731
    assert (ask(1), ask(12 * 12 + 40), ask(12 * 12 + 41), ask(100 * 12 * 12 + 40)) == (1, 1, 2, 100)
    assert len({tuple(identity.toy_prompt(i)) for i in range(50)}) == 50


@pytest.mark.parametrize("change, word", [({"tokens": 4090}, "context"), ({"target": "tiny-hybird"}, "tiny-hybrid")])
def test_bad_input_is_refused_before_anything_is_measured(tmp_path, change, word, monkeypatch):
    if "target" in change:
        from specdecode_nb.targets import load_target
        monkeypatch.setattr(act5, "load_target", load_target)
    with pytest.raises(BadInput, match=word):
        act5.measure(PARAMS | change, tmp_path / "act5.journal")
    assert not list(tmp_path.iterdir())
