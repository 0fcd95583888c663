"""Rules as data: every word that a verdict can be, and every file that must be refused."""
import json

import pytest

from specdecode_nb import criteria
from specdecode_nb.book import overview, published
from specdecode_nb.criteria import FAILS, HOLDS, NO_ROWS, SPANS, Criterion, judge, table
from specdecode_nb.errors import BadInput
from specdecode_nb.records import RowFile


def entry(comparison=">", threshold=1.0, **changed):
    rule = {"metric": "speed", "comparison": comparison, "threshold": threshold, "unit": "x", "format": ".2f"}
    return {"id": "X-1", "statement": "It is faster.", "rule": rule, "published": {"number": "1.03", "verdict": "passed"}, "differs": "the machine"} | changed


def criterion(*rule):
    return Criterion.model_validate(entry(*rule))


@pytest.mark.parametrize("rule, value, low, high, word", [
    ((">", 1.0), 1.2, 1.1, 1.3, HOLDS), ((">", 1.0), 1.2, 1.0, 1.3, SPANS), ((">=", 1.0), 1.2, 1.0, 1.3, HOLDS), ((">", 1.0), 0.8, 0.7, 1.0, FAILS),
    ((">=", 1.0), 0.8, 0.7, 1.0, SPANS), (("<", 1.0), 0.8, 0.7, 0.9, HOLDS), (("<", 1.0), 1.2, 1.0, 1.3, FAILS), (("<=", 1.0), 1.2, 1.0, 1.3, SPANS),
    (("<=", 1.0), 0.8, 0.7, 1.0, HOLDS), ((">", 1.0), 1.0, None, None, FAILS), (("<", 50), 10.5, None, None, HOLDS), (("==", 0), 0, None, None, HOLDS),
    (("==", 0), 3, None, None, FAILS), (("between", [1.2, 1.3]), 1.25, 1.2, 1.3, HOLDS), (("between", [1.2, 1.3]), 1.25, 1.1, 1.3, SPANS),
    (("between", [1.2, 1.3]), 1.25, 1.1, 1.4, SPANS), (("between", [1.2, 1.3]), 1.5, 1.4, 1.6, FAILS), ((">", 1.0), None, None, None, NO_ROWS),
])
def test_words_follow_the_rule(rule, value, low, high, word):
    assert judge(criterion(*rule), value, low, high).word == word


@pytest.mark.parametrize("rule, arguments", [((">", 1), (1.2, 1.1, None)), ((">", 1), (1.2, 1.4, 1.3)), ((">", 1), (None, 1.0, 1.4)), (("==", 0), (0, 0, 1))])
def test_no_verdict_on_half_an_interval(rule, arguments):
    with pytest.raises(ValueError):
        judge(criterion(*rule), *arguments)


def test_too_few_units_decide_nothing_and_a_count_is_judged():
    assert judge(criterion(), 1.2, 1.1, 1.3, 2).word == "not decidable: 2 units" and judge(criterion(), 1.2, 1.1, 1.3, 3).word == HOLDS
    thin = judge(criterion(), 1.2, n="7 and 1", thin=criteria.few(7, 1))
    assert thin.word == "not decidable: 7 prompts against 1" and thin.text == "1.20 x (n=7 and 1)"
    assert judge(criterion("==", 0), 0, n=1).word == HOLDS and criteria.few(3, 6) == ""
    with pytest.raises(ValueError):
        judge(criterion(), 1.2, 1.1, 1.3, 1, thin="1 prompt")


def test_the_closing_table_keeps_published_and_measured_apart():
    unpublished = Criterion.model_validate(entry("<", 1.0, published=None))
    frame = table([judge(criterion(), 1.2, 1.1, 1.3, 27), judge(unpublished, None)])
    assert frame["published number"].tolist() == ["1.03", "not published"]
    assert frame["measured here"].tolist() == ["1.20 [1.10, 1.30] x (n=27)", "-"]
    assert frame["rule"].tolist() == ["> 1.0 x", "< 1.0 x"] and frame["verdict here"].tolist() == [HOLDS, NO_ROWS]


@pytest.fixture
def file(tmp_path, monkeypatch):
    (tmp_path / "criteria").mkdir()
    monkeypatch.setattr(criteria.paths, "data", lambda: tmp_path)

    def write(*entries, act="act4u2", text=None):
        (tmp_path / "criteria" / "act4u2.json").write_text(text or json.dumps({"act": act, "criteria": list(entries)}))
    return write


@pytest.mark.parametrize("bad, says", [
    (entry("~", 1), r"criteria\[0\].rule.comparison"), (entry(">", [1, 2]), "threshold is one number"), (entry("between", [2, 1]), "lower first"),
    (entry("between", 1), "threshold"), (entry(">", "1"), "threshold"), (entry(colour="red"), "colour"), (entry(published={"number": "1"}), "published.verdict"),
])
def test_files_that_do_not_fit_are_refused(file, bad, says):
    file(bad)
    with pytest.raises(BadInput, match=says):
        criteria.load("act4u2")


def test_other_files_are_refused(file):
    with pytest.raises(BadInput, match="There is no file of criteria"):
        criteria.load("act4u2")
    file(entry(), entry())
    with pytest.raises(BadInput, match="used twice"):
        criteria.load("act4u2")
    file(entry(), act="act4s")
    with pytest.raises(BadInput, match="holds the criteria of 'act4s'"):
        criteria.load("act4u2")


def test_rows_are_bound_to_the_rules_but_not_to_the_wording(file):
    file(entry())
    first = criteria.load("act4u2")
    rows = RowFile("act4u2", "t", {}, {"criteria": first.rules}, [], "rows.json", "0")
    first.bind(rows)
    file(entry(differs="more words"))
    criteria.load("act4u2").bind(rows)
    file(entry(">", 1.01))
    with pytest.raises(BadInput, match="rows.json was not measured under the rules"):
        criteria.load("act4u2").bind(rows)
    with pytest.raises(BadInput, match="measure again"):
        first.bind(RowFile("act4u2", "t", {}, {}, [], "rows.json", "0"))
    assert first["X-1"].statement == "It is faster." and len(first) == 1
    with pytest.raises(BadInput, match="no criterion 'X-2'"):
        first["X-2"]


@pytest.mark.parametrize("name", ["act1", "act3", "act4u2", "act4u6", "act4s_rest", "dflash_rest", "rprm1"])
def test_the_claims_of_a_rule_are_published_ones(name):
    facts = published.load(name.removesuffix("_rest")).facts
    known = {c.id for c in facts.criteria} | {n.hypothesis for n in facts.negative_results}
    named = {claim for c in criteria.load(name) for claim in c.claims}
    assert named and named <= known


def test_a_rule_that_came_after_the_rows_says_so_and_binds_none(tmp_path, monkeypatch):
    monkeypatch.setattr(criteria.paths, "data", lambda: tmp_path)
    (tmp_path / "criteria").mkdir()

    def write(*late, **more):
        first = {"id": "X-1", "statement": "It is faster.", "rule": {"metric": "speed", "comparison": ">", "threshold": 1}, "published": None, "differs": "nothing", "claims": ["C-1"]}
        (tmp_path / "criteria" / "x.json").write_text(json.dumps({"act": "x", "criteria": [first, *(first | {"late": True} | one for one in late)], **more}))
        return criteria.load("x")

    alone, both = write(), write({"id": "X-2", "claims": ["C-2"]}, unjudged={"C-3": "it cannot be seen"})
    assert alone.rules == both.rules and len(both) == 2 and [c.late for c in both] == [False, True] and both.unjudged == {"C-3": "it cannot be seen"}
    assert [criteria.LATER in c.statement for c in both] == [False, True]
    with pytest.raises(BadInput, match="used twice"):
        write({"id": "X-1"})
    with pytest.raises(BadInput, match="reason for having none are there for C-1"):
        write(unjudged={"C-1": "no"})


@pytest.mark.parametrize("name", ["act1", "act2", "act3", "act4u", "act4u3", "act4u4", "act4u5", "dflash", "rprm1"])
def test_every_published_criterion_has_a_rule_or_a_reason(name):
    rules, ids = criteria.load(name), {c.id for c in published.load(name).facts.criteria}
    parts = [rules, criteria.load("dflash_rest")] if name == "dflash" else [rules]
    ruled = {claim for part in parts for c in part for claim in c.claims}
    assert rules.unjudged.keys() <= ids and ids <= ruled | rules.unjudged.keys()


def test_the_ledger_takes_every_named_claim_with_its_word():
    own = overview.own_verdicts()
    for name, judge_rows in overview.JUDGES.items():
        for file in overview.rows_of(name).values():
            for o in judge_rows(file):
                assert all(any(o.word in text and o.criterion.statement in text for text in own[name.split("_")[0], claim]) for claim in o.criterion.claims)
