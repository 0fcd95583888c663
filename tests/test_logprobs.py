"""Log-probabilities: those of the target for every emitted token, equal to the plain run's whatever drafts, and nothing where not asked for."""
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from mlx.nn import log_softmax
from specdecode_nb import decoder
from specdecode_nb.decoder import generate, stream
from specdecode_nb.drafters import NgramDrafter, RandomDrafter
from specdecode_nb.errors import BadInput
from specdecode_nb.policies import ByEntropy
from specdecode_nb.sampling import RULES, Sampling
from specdecode_nb.staged import Staged
from specdecode_nb.transaction import SCHEMES
from tapping import make, scripted as reading
from toy import PROMPT, VOCAB, ByteTokenizer, ScriptedDrafter, hybrid, plain, scripted, uno

N = 18


def known(form, counts=(1, 0, 10**6, 2)):
    return lambda t: ScriptedDrafter(t, plain(hybrid()), len(PROMPT), counts, form)


DRAFTERS = {"none": lambda t: None, "uno": uno, "uno_published": lambda t: uno(t, keep_seed=False), "uno_refined": lambda t: uno(t, passes=2),
            "dflash": lambda t: make("dflash", t), "mtp": lambda t: make("mtp", t), "reading": lambda t: reading("dflash", t),
            "ngram": lambda t: NgramDrafter(1), "random": lambda t: RandomDrafter(VOCAB), "staged": lambda t: Staged(known("kept")(t), 2),
            **{form: known(form) for form in ("lookup", "published", "kept")}}


def by_hand(target=None, dtype="float32"):
    """One row at a time: the log-softmax, in float32, of the target's logits at the token that follows."""
    target = target or hybrid()
    cache, found, logits = target.make_cache(), [], None
    for at, token in enumerate([*PROMPT, *plain(hybrid(), n=N)]):
        if at >= len(PROMPT):
            found.append(log_softmax(logits.astype(mx.float32))[token].item())
        logits = target.model(mx.array([[token]]), cache=cache)[0, -1]
    return found


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("n", (1, 2, N))
def test_equal_to_the_plain_run(name, n):
    target = hybrid()
    wanted = generate(target, PROMPT, None, max_tokens=n, ignore_eos=True, logprobs=True)
    result = generate(target, PROMPT, DRAFTERS[name](target), k=4, max_tokens=n, ignore_eos=True, logprobs=True)
    assert result.tokens == wanted.tokens and result.logprobs == wanted.logprobs and len(result.logprobs) == n
    np.testing.assert_allclose(result.logprobs, by_hand()[:n], atol=1e-5)
    events = list(stream(target, PROMPT, DRAFTERS[name](target), k=4, max_tokens=n, ignore_eos=True, logprobs=True))
    assert [e.logprob for e in events] == wanted.logprobs


@pytest.mark.parametrize("scheme", SCHEMES)
def test_by_every_scheme_and_with_a_policy(scheme):
    target = hybrid()
    wanted = generate(target, PROMPT, None, max_tokens=N, ignore_eos=True, logprobs=True).logprobs
    for k in (5, ByEntropy()):
        found = generate(target, PROMPT, known("kept")(target), k=k, max_tokens=N, ignore_eos=True, scheme=scheme, logprobs=True).logprobs
        np.testing.assert_allclose(found, wanted, atol=0 if scheme != "rewind" else 1e-3)


def test_they_are_of_float32_on_a_bfloat16_target():
    target = hybrid(seed=2, dtype="bfloat16")
    results = [generate(target, PROMPT, d, k=4, max_tokens=N, ignore_eos=True, logprobs=True) for d in (None, uno(target))]
    assert results[0].logprobs == results[1].logprobs
    assert any(np.float32(v) != np.array(mx.array(v).astype(mx.bfloat16).astype(mx.float32)) for v in results[0].logprobs)


@pytest.mark.parametrize("form", (None, "lookup", "kept"))
def test_as_many_as_tokens_after_any_end(form):
    tokens = plain(hybrid())
    for at in (i for i in range(1, 8) if tokens[i] not in tokens[:i]):
        target = replace(hybrid(), tokenizer=ByteTokenizer(eos=(tokens[at],)))
        result = generate(target, PROMPT, known(form)(target) if form else None, k=4, max_tokens=N, logprobs=True)
        assert result.finish_reason == "stop" and len(result.logprobs) == len(result.tokens) == at + 1
        np.testing.assert_allclose(result.logprobs, by_hand()[: at + 1], atol=1e-5)
    target, prompt, ids = scripted("abcdefghijkl")
    for stop in ("c", "cde", ("fg", "e")):
        made = form and ScriptedDrafter(target, ids, 1, (9,), form)
        result = generate(target, prompt, made, k=4, max_tokens=12, stop=stop, logprobs=True)
        assert len(result.logprobs) == len(result.tokens) < 12


def test_nothing_is_computed_where_not_asked_for(monkeypatch):
    monkeypatch.setattr(decoder, "logprobs_of", lambda *_: 1 / 0)
    for name in ("none", "uno", "kept"):
        result = generate(hybrid(), PROMPT, DRAFTERS[name](hybrid()), k=4, max_tokens=6, ignore_eos=True)
        assert result.logprobs is None
        assert {e.logprob for e in stream(hybrid(), PROMPT, DRAFTERS[name](hybrid()), k=4, max_tokens=6, ignore_eos=True)} == {None}
        with pytest.raises(ZeroDivisionError):
            generate(hybrid(), PROMPT, DRAFTERS[name](hybrid()), k=4, max_tokens=6, ignore_eos=True, logprobs=True)


def test_a_kept_seed_without_its_logits_is_an_error():
    drafter = known("kept")(hybrid())
    own = drafter.draft
    drafter.draft = lambda *args: replace(own(*args), seed_logits=None)
    assert generate(hybrid(), PROMPT, drafter, k=4, max_tokens=6, ignore_eos=True).tokens == plain(hybrid())[:6]
    with pytest.raises(ValueError, match="give seed_logits"):
        generate(hybrid(), PROMPT, drafter, k=4, max_tokens=6, ignore_eos=True, logprobs=True)
    for value in (1, "yes", None):
        with pytest.raises(BadInput, match="logprobs is .*; give True or False"):
            generate(hybrid(), PROMPT, None, logprobs=value)


@pytest.mark.parametrize("name", ("none", "uno", "dflash", "mtp"))
@pytest.mark.parametrize("rule", RULES)
def test_of_sampled_tokens_they_are_those_of_the_raw_logits(name, rule):
    """Temperature, filters and penalties choose the tokens and leave the log-probabilities alone."""
    target = hybrid()
    how = Sampling(temperature=2.0, top_k=50, repetition_penalty=1.2, rule=rule)
    result = generate(target, PROMPT, DRAFTERS[name](target), k=4, max_tokens=N, ignore_eos=True, sampling=how, seed=3, logprobs=True)
    assert result.tokens != plain(target)[:N]
    logits = target.model(mx.array([PROMPT + result.tokens]), cache=target.make_cache())[0, len(PROMPT) - 1 : -1]
    wanted = [log_softmax(row.astype(mx.float32))[t].item() for row, t in zip(logits, result.tokens)]
    np.testing.assert_allclose(result.logprobs, wanted, atol=1e-5)
