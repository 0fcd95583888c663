"""Act VI measured in small on a toy target with toy drafters, and its metrics on rows whose numbers are known beforehand."""
from dataclasses import replace

import numpy as np
import pytest
import synthetic
from pydantic import ValidationError
from specdecode_nb import criteria, fit
from specdecode_nb.book import acts, needs, overview, sampled
from specdecode_nb.errors import BadInput
from specdecode_nb.protocols import act6
from specdecode_nb.records import load_rows
from specdecode_nb.rows.decoding import ChainRow
from tapping import make
from toy import hybrid, uno

PARAMS = acts.get("act6").resolve({"quick": True}) | {"prompts": 2, "tokens": 6, "chain_tokens": 400}
ARMS = 4 + 2 * 8 + 7

short_prompts = synthetic.short_prompts(act6)


@pytest.fixture(scope="module")
def measured(short_prompts, tmp_path_factory):
    """Killed in the counts and between two sections of a prompt, and gone on with each time."""
    journal = tmp_path_factory.mktemp("act6") / "act6.journal"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(act6, "load_target", lambda name, dtype: hybrid())
        patch.setattr(act6, "load_drafters", lambda target, names: ({"uno": uno(target), "dflash": make("dflash", target)}, dict.fromkeys(names, "0" * 64)))
        for at, resume in ((3, False), (7 + 14, True)):
            with pytest.raises(KeyboardInterrupt):
                act6.measure(PARAMS, journal, synthetic.stopping(at, len(act6.CHAINS) + 2 * ARMS), resume=resume)
        with pytest.raises(BadInput):
            act6.measure(PARAMS | {"tokens": 7}, journal, resume=True)
        return load_rows(act6.measure(PARAMS, journal, resume=True))


def test_every_arm_of_every_section_is_there_once(measured):
    assert [r["case"] for r in measured.of("chain")] == list(act6.CHAINS)
    wanted = [(p, s, a) for p in measured.config["prompts"] for s, group in measured.config["arms"].items() for a in group]
    assert [(r["prompt_id"], r["section"], r["arm"]) for r in measured.of("decode")] == wanted and len(wanted) == 2 * ARMS
    assert needs.check(measured) is measured
    with pytest.raises(BadInput, match="chain rows with case control: noise used twice"):
        needs.check(replace(measured, rows=[r for r in measured.rows if r.get("sound") is not False]))


def test_promised_tokens_are_audited_and_others_are_not(measured):
    for r in measured.of("decode"):
        promised = r["section"] == "greedy" or not r["arm"].startswith(("rejection", "ar_mlx_lm"))
        assert r["identical_to_ar"] is (True if promised else None)
    assert len({r["token_digest"] for r in measured.of("decode") if r["arm"] == "ar"}) > 4  # the sections write different texts


def test_every_rule_can_be_judged(measured):
    found, rules = sampled.numbers(measured), criteria.load("act6")
    assert {c.rule.metric for c in rules} == set(found)
    words = {o.criterion.id: o.word for o in sampled.outcomes(measured)}
    assert all(words[i] == criteria.HOLDS for i in words if i.startswith("identity")) and words["fit"] == words["closed-form"] == criteria.HOLDS
    assert words["speed-uno"] == "not decidable: 2 prompts" and overview.found("act6", measured)[0].startswith("at temperature 1")


def test_counts_against_a_known_chain():
    p = np.array([[0.5, 0.5], [0.25, 0.75]])
    counts = (800 * np.array([0.4, 0.6])[:, None, None] * p[:, :, None] * p[None]).round().astype(int)
    assert fit.chi_square(counts, p)["statistic"] < 0.01 and fit.chi_square(counts, p)["df"] == 6
    other = fit.chi_square(counts, p[::-1])
    assert other["z"] > 10 and fit.chi_square(counts, np.eye(2))["statistic"] == float("inf")
    assert fit.pairs([1, 1, 0, 1, 1], 2).sum() == 2 and fit.pairs([1, 1, 0, 1], 2)[1, 0, 1] == 1
    q = np.array([[0.9, 0.1], [0.25, 0.75]])
    assert np.allclose(fit.acceptance(p, q, "rejection"), [0.6, 1]) and np.allclose(fit.acceptance(p, q, "match"), [0.5, 0.625])
    # two tokens: 1 / max(1, ..) terms by hand, 1 / (1 + max(1, 1/9)) + 1 / (1 + max(1, 9))
    assert np.allclose(fit.acceptance(p, q, "gumbel"), [1 / 2 + 1 / 10, 1])
    told = fit.distance([100, 50], 110, np.array([0.6, 1.0]))
    assert told["expected"] == pytest.approx(110) and told["z"] == pytest.approx(0) and told["judged"] == 150


def test_acceptance_counts_what_was_judged_and_leaves_the_last_cycle_out():
    rows = [{"offered_per_cycle": [3, 3, 3, 3], "accepted_per_cycle": [3, 0, 1, 1]}, {"offered_per_cycle": [7], "accepted_per_cycle": [7]}]
    assert sampled.judged(rows) == (3 + 1 + 2, 4) and sampled.accepted(rows) == pytest.approx(4 / 6)
    assert [sampled.rule_of(a) for a in ("ar", "ar_mlx_lm", "uno_k4", "gumbel_uno_k4", "rejection_dflash_b8")] == ["", "", "greedy", "gumbel", "rejection"]


@pytest.mark.parametrize("change, words", [({"counts": [1] * 7}, "7 counts"), ({"accepted": 9}, "9 of 4 judged"), ({"p": [[1.0, 0.0]]}, "tables of 1 and 2 rows"), ({"rule": "luck"}, "rule")])
def test_a_damaged_count_is_refused(change, words):
    good = {"kind": "chain", "case": "x", "rule": "match", "sound": True, "tokens": 9, "k": 4, "p": [[0.5, 0.5]] * 2, "q": [[1.0, 0.0]] * 2, "counts": [1] * 8,
            "judged_after": [1, 3], "accepted": 2}
    assert ChainRow.model_validate(good)
    with pytest.raises(ValidationError, match=words):
        ChainRow.model_validate(good | change)
