"""Sampling: the distribution is the target's, counted; by the rule "gumbel" the tokens of a seed are, whatever drafts and however it stops."""
import inspect
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm import sample_utils
from specdecode_nb import acceptance, cli, fit, streams
from specdecode_nb.decoder import Session, generate, stream
from specdecode_nb.drafters import Draft, NgramDrafter, RandomDrafter
from specdecode_nb.errors import BadInput
from specdecode_nb.protocols import chain
from specdecode_nb.sampling import RULES, WINDOW, Sampling
from specdecode_nb.staged import Staged, Truncated
from tapping import make
from toy import PROMPT, VOCAB, ScriptedDrafter, _once, consistent, hybrid, uno

N, SEED = 16, 3
PLAIN, FILTERED = Sampling(0.8), Sampling(1.3, top_k=50, top_p=0.9, min_p=0.01)
PENALISED = Sampling(0.9, repetition_penalty=1.3, presence_penalty=0.2, frequency_penalty=0.1)
GREEDY = Sampling(0, repetition_penalty=1.5, frequency_penalty=0.5)


def alone(sampling, n=N, seed=SEED):
    """The tokens of plain decoding."""
    target = hybrid()
    return _once(target, (sampling, n, seed), lambda: generate(target, PROMPT, None, max_tokens=n, ignore_eos=True, sampling=sampling, seed=seed).tokens)


def scripted(sampling, form="lookup"):
    return ScriptedDrafter(hybrid(), alone(sampling, N + 8), len(PROMPT), (1, 0, 10**6, 2), form)


DRAFTERS = {"uno": lambda s: uno(hybrid()), "uno_published": lambda s: uno(hybrid(), keep_seed=False), "uno_twice": lambda s: uno(hybrid(), passes=2),
            "dflash": lambda s: make("dflash"), "mtp": lambda s: make("mtp"), "ngram": lambda s: NgramDrafter(1), "random": lambda s: RandomDrafter(VOCAB),
            "staged": lambda s: Staged(uno(hybrid()), 2), "truncated": lambda s: Truncated(make("dflash"), 2), "scripted": scripted}


@pytest.mark.parametrize("sampling", (PLAIN, FILTERED, PENALISED, GREEDY), ids=("plain", "filtered", "penalised", "greedy"))
@pytest.mark.parametrize("name", DRAFTERS)
def test_the_tokens_of_a_seed_are_the_same_with_any_drafter(name, sampling):
    """Gumbel and match share the target's noise; and what a rejection leaves behind is right too, whatever it draws."""
    assert len(set(alone(sampling))) > 8 and alone(sampling) != alone(sampling, seed=4) or sampling is GREEDY
    for k, rule in ((1, "gumbel"), (5, "gumbel"), (3, "match"), (4, "rejection")):
        result = generate(hybrid(), PROMPT, DRAFTERS[name](sampling), k=k, max_tokens=N, ignore_eos=True, sampling=replace(sampling, rule=rule), seed=SEED)
        assert len(result.tokens) == N and consistent(result.session, len(PROMPT) - 1)
        assert result.tokens == alone(sampling) or rule == "rejection" and sampling is not GREEDY
        if name == "scripted" and rule == "gumbel" and k == 5:
            assert result.stats.accepted_per_cycle[:3] == [1, 0, 4]


@pytest.mark.parametrize("end", ("budget", "stop", "closed", "failed"))
def test_a_session_goes_on_as_if_it_had_not_ended(end):
    target, session, tokens, spend = hybrid(), Session(hybrid()), alone(PLAIN, 30), dict(ignore_eos=True, sampling=PLAIN, seed=SEED, k=4)
    drafter = uno(target)
    if end == "budget":
        generate(target, PROMPT, drafter, max_tokens=7, session=session, **spend)
    elif end == "stop":
        text = target.decode([next(t for t in tokens[5:] if 32 < t < 127)])
        assert generate(target, PROMPT, drafter, max_tokens=25, stop=text, session=session, **spend).finish_reason == "stop"
    elif end == "closed":
        events = stream(target, PROMPT, drafter, max_tokens=25, session=session, **spend)
        assert [next(events).token for _ in range(5)] == tokens[:5]
        events.close()
    else:
        own = drafter.draft
        drafter.draft = lambda cache, history, k, cycle, rule: own(cache, history, k, cycle, rule) if cycle < 4 else 1 / 0
        with pytest.raises(ZeroDivisionError):
            generate(target, PROMPT, drafter, max_tokens=25, session=session, **spend)
    done = len(session.tokens) - len(PROMPT)
    assert 3 < done < 20 and session.tokens[len(PROMPT) :] == tokens[:done] and consistent(session, len(PROMPT) - 1)
    rest = generate(target, [tokens[done]], make("dflash"), max_tokens=29 - done, session=session, **spend)
    assert rest.tokens == tokens[done + 1 :] and consistent(session, len(PROMPT) - 1)


def test_noise_is_of_seed_and_position_alone():
    before = [np.array(s) for s in mx.random.state]
    alone(Sampling(0.81))
    assert all((a == np.array(b)).all() for a, b in zip(before, mx.random.state))
    assert len({streams.stream_seed(s, stream, p) for s in (0, 1) for stream in (streams.SAMPLE_NOISE, streams.DRAFT_NOISE, streams.ACCEPT_NOISE)
                for p in range(50)}) == 300
    short = generate(hybrid(), PROMPT, None, max_tokens=N, ignore_eos=True, temperature=0.8, seed=SEED)
    assert short.tokens == alone(PLAIN) and generate(hybrid(), PROMPT, None, max_tokens=4, seed=SEED).tokens != short.tokens[:4]


SETTINGS = (Sampling(0.7), Sampling(0.7, top_p=0.8), Sampling(1.2, top_k=5), Sampling(1.0, min_p=0.1), Sampling(0.6, top_p=0.95, min_p=0.02, top_k=20),
            Sampling(0.9, repetition_penalty=1.3), Sampling(0.9, presence_penalty=0.7, frequency_penalty=-0.4), replace(PENALISED, top_p=0.9))


@pytest.mark.parametrize("s", SETTINGS)
def test_definitions_are_those_of_mlx_lm(s, monkeypatch):
    """The same distribution, row by row with the ids before it; and a row has the same bits in a forward of any width."""
    monkeypatch.setattr(sample_utils, "categorical_sampling", lambda logits, temp: mx.softmax(logits * (1 / temp), axis=-1))
    rows, vocab = 5, 251  # an odd size, so that vector loops have a rest
    draw = np.random.default_rng(0)
    logits, ids = mx.array(3 * draw.standard_normal((rows, vocab)).astype(np.float32)), draw.integers(0, 9, 40).tolist()
    kept, ours = np.array(logits), s.scores(logits, 30, ids)
    processors = sample_utils.make_logits_processors(None, s.repetition_penalty, WINDOW, s.presence_penalty, WINDOW, s.frequency_penalty, WINDOW)
    mx.disable_compile()
    try:
        sampler = sample_utils.make_sampler(s.temperature, s.top_p, s.min_p, top_k=s.top_k)
        for t in range(rows):
            x = mx.array(kept[t : t + 1])
            for process in processors:
                x = process(mx.array(ids[: 30 + t]), x)
            theirs = np.array(sampler(x - mx.logsumexp(x, axis=-1, keepdims=True)))[0]
            mine = np.array(mx.softmax(ours[t]))
            assert ((theirs > 0) == (mine > 0)).all() and np.allclose(theirs, mine, rtol=1e-4, atol=1e-7)
            assert np.array(s.scores(logits[t : t + 1], 30 + t, ids)).tobytes() == np.array(ours[t]).tobytes()
    finally:
        mx.enable_compile()
    assert (np.array(logits) == kept).all()


def test_penalties_count_committed_ids_and_the_draft_before_a_row():
    """A greedy run by hand, one row at a time, with mlx-lm's own penalties."""
    target, ids, cache = hybrid(), list(PROMPT), hybrid().make_cache()
    mx.eval(target.model(mx.array([ids[:-1]]), cache=cache))
    processors = sample_utils.make_logits_processors(None, 1.5, WINDOW, None, WINDOW, 0.5, WINDOW)
    for _ in range(N):
        x = target.model(mx.array([ids[-1:]]), cache=cache)[0]
        for process in processors:
            x = process(mx.array(ids), x)
        ids.append(mx.argmax(x[0]).item())
    assert alone(GREEDY) == ids[len(PROMPT) :] != alone(Sampling(0), N)


P, Q = chain.tables(4)
CASES = {rule: (Sampling(rule=rule), None) for rule in RULES} | {
    "match, drawn": (Sampling(rule="match"), streams.DRAFT_NOISE), "rejection, filtered": (Sampling(0.9, top_p=0.85, rule="rejection"), None),
    "gumbel, filtered": (Sampling(0.9, top_k=3), None)}


def counted(sampling, stream=None, q=Q, tokens=3000, seed=5, k=4):
    p, drafted = chain.probabilities(P, sampling), chain.probabilities(q, sampling)
    result = chain.decode(P, chain.ChainDrafter(q, stream and (seed, stream)), sampling, tokens, k, seed)
    if sampling.rule == "match" and not stream:
        drafted = np.eye(4)[drafted.argmax(1)]
    closed = fit.acceptance(p, drafted, sampling.rule)
    return fit.chi_square(fit.pairs(result.tokens, 4), p), fit.distance(*chain.judged_after(result, 4), closed)


@pytest.mark.parametrize("case", CASES)
def test_pairs_are_distributed_as_the_target_and_accepted_as_computed(case):
    counts, found = counted(*CASES[case])
    assert counts["z"] < 3 and counts["df"] >= 25
    assert abs(found["z"]) < 3 and found["judged"] > 2000 and found["accepted"] < 0.9 * found["judged"]


def test_noise_used_twice_is_seen():
    """Draft and acceptance by the same noise; and one uniform number for two neighbours, whose single tokens still look right."""
    assert counted(Sampling(rule="rejection"), streams.ACCEPT_NOISE)[0]["z"] > 6
    own = acceptance.uniform
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(acceptance, "uniform", lambda seed, stream, position: own(seed, stream, position // 4))
        assert counted(Sampling(rule="rejection"), tokens=5000)[0]["z"] > 4


def test_a_drafter_that_equals_the_target_is_always_accepted():
    for rule, tokens in (("rejection", 1500), ("gumbel", 300)):
        counts, found = counted(Sampling(rule=rule), q=P, tokens=tokens)
        assert found["accepted"] == found["judged"] > 200 and counts["z"] < 3


@pytest.mark.parametrize("rule", RULES)
def test_one_token_left_is_the_greedy_one(rule):
    """A filter that leaves one token: p is a point mass, mostly outside what the drafter draws from."""
    tokens = chain.decode(P, chain.ChainDrafter(-P), Sampling(top_k=1, rule=rule), 40, 4, 0).tokens
    assert tokens == chain.decode(P, None, Sampling(0), 40, 1, 0).tokens
    s = replace(PENALISED, top_k=1, rule=rule)
    assert generate(hybrid(), PROMPT, make("mtp"), k=4, max_tokens=N, sampling=s, seed=1, ignore_eos=True).tokens == alone(replace(s, temperature=0, rule="gumbel"))


def test_closed_forms_are_ordered():
    p, q = (chain.probabilities(t, Sampling()) for t in chain.tables(12, seed=1))
    apart = abs(p - q).sum(1) / 2
    best, shared, independent = (fit.acceptance(p, q, rule) for rule in ("rejection", "gumbel", "match"))
    assert np.allclose(best, 1 - apart) and (shared >= (1 - apart) / (1 + apart)).all() and (shared <= best).all() and (independent <= best).all()
    assert np.allclose(fit.acceptance(p, p, "gumbel"), 1)


@pytest.mark.parametrize("name", ("uno", "uno_published", "dflash", "mtp", "truncated"))
def test_q_is_what_the_draft_was_drawn_from(name):
    drafter, seen = DRAFTERS[name](FILTERED), []
    own = drafter.draft
    drafter.draft = lambda *args: (seen.append(own(*args)), seen[-1])[1]
    generate(hybrid(), PROMPT, drafter, k=4, max_tokens=8, ignore_eos=True, sampling=replace(FILTERED, rule="rejection"))
    drawn = [d for d in seen if len(d.tokens) > d.exact]
    assert drawn
    for d in drawn:
        q = np.array(d.q)
        assert q.shape == (len(d.tokens) - d.exact, VOCAB) and np.allclose(q.sum(1), 1, atol=1e-5)
        assert ((q > 0).sum(1) <= 50).all() and all(row[t] > 0 for row, t in zip(q, d.tokens[d.exact :]))


def test_a_drafter_that_cannot_sample_says_so():
    for form in ("published", "kept"):
        with pytest.raises(ValueError, match="decodes at temperature 0 only"):
            generate(hybrid(), PROMPT, scripted(PLAIN, form), temperature=0.8, max_tokens=4)
    odd = type("Odd", (), {"name": "odd", "draft": lambda self, *a: Draft([5, 6], q=mx.ones((1, VOCAB)))})()
    with pytest.raises(ValueError, match=r"distributions of shape \(1, 256\) with 2 proposals"):
        generate(hybrid(), PROMPT, odd, temperature=0.8, max_tokens=4)


@pytest.mark.parametrize("options, message", [
    *((dict(top_k=v), "top_k is .*; give a whole") for v in (-1, 1.5, True, None)), *((dict(top_p=v), "top_p is .*; give a number") for v in (0, -1, 1.1, "1")),
    *((dict(min_p=v), "min_p is .*; give") for v in (-0.1, 2, float("nan"))), *((dict(repetition_penalty=v), "repetition_penalty is") for v in (0, -1, None)),
    (dict(presence_penalty=float("inf")), "presence_penalty is inf"), (dict(frequency_penalty="x"), "frequency_penalty is 'x'"),
    (dict(rule="exact"), "no sampling rule 'exact'; choose gumbel, match or rejection"), (dict(rule=None), "no sampling rule None")])
def test_bad_sampling(options, message):
    with pytest.raises(BadInput, match=message) as caught:
        Sampling(**options)
    assert str(caught.value).endswith(".") and ". " not in str(caught.value)


def test_the_command_knows_every_option():
    assert {"temperature", *(name.replace("-", "_") for name, *_ in cli.SAMPLING)} == set(inspect.signature(Sampling).parameters)
    assert cli.main(["generate", "x", "--temperature", "0.5", "--rule", "other"]) == 2
