"""Whatever drafts, the tokens are those of plain decoding and the caches are bit-equal to the session's tokens."""
import mlx.core as mx
import numpy as np
import pytest
from specdecode_nb import decoder, lora, streams
from specdecode_nb.decoder import Session, generate
from specdecode_nb.drafters import Draft, NgramDrafter, RandomDrafter, UnoDrafter
from specdecode_nb.transaction import EXACT, SCHEMES
from toy import PROMPT, VOCAB, ScriptedDrafter, adapter, consistent, hybrid, plain, recurrent, scripted, uno

N = 24
BLOCKS = (1, 2, 3, 4, 8, 16)
FORMS = ("lookup", "published", "kept")
DRAFTERS = {
    "uno": lambda t: uno(t),
    "uno_published": lambda t: uno(t, keep_seed=False),
    "uno_states": lambda t: uno(t, scheme="per_token_states"),
    "ngram": lambda t: NgramDrafter(2),
    "random": lambda t: RandomDrafter(VOCAB),
    **{form: lambda t, form=form: ScriptedDrafter(t, plain(t), len(PROMPT), (1, 0, 10**6, 2), form) for form in FORMS},
}


@pytest.mark.parametrize("k", BLOCKS)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_identity(drafter, k):
    target = hybrid()
    result = generate(target, PROMPT, DRAFTERS[drafter](target), k=k, max_tokens=N, ignore_eos=True)
    assert result.tokens == plain(target)[:N] and result.finish_reason == "length"
    assert result.session.tokens == PROMPT + result.tokens and consistent(result.session, len(PROMPT) - 1)
    assert all(c[1].dtype == mx.float32 for c in recurrent(result.session.cache))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("k", (3, 16))
@pytest.mark.parametrize("drafter", ("uno", "uno_published", "uno_states", "kept", "lookup"))
def test_identity_by_every_scheme(drafter, k, scheme):
    target = hybrid()
    result = generate(target, PROMPT, DRAFTERS[drafter](target), k=k, max_tokens=N, ignore_eos=True, scheme=scheme)
    assert result.tokens == plain(target)[:N]
    assert scheme not in EXACT or consistent(result.session, len(PROMPT) - 1)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("form", FORMS)
def test_what_a_scheme_costs_is_counted(form, scheme):
    """Counts 0, 1, all, 2 of a block of 5: every partial block is one replay, and rewound by the rows it drops, in 4 heads of 3 layers."""
    target = hybrid()
    drafter = ScriptedDrafter(target, plain(target), len(PROMPT), (0, 1, 10**6, 2), form)
    s = generate(target, PROMPT, drafter, k=5, max_tokens=19, ignore_eos=True, scheme=scheme).stats
    kept = form == "kept"
    widths = [o + (not kept) + (form != "lookup") for o in s.offered_per_cycle]
    used = [c - kept for c in s.committed_per_cycle]
    assert len(used) >= 4 and widths[0] == 6 - kept - (form == "lookup")
    partial = sum(0 < u < w for u, w in zip(used, widths))
    drafts = s.cycles * (form == "kept")
    assert s.replay_forwards == (partial if scheme == "replay" else 0) and (partial > 2)
    assert s.forwards == 1 + s.cycles + drafts + s.replay_forwards
    assert s.rewind_steps_per_cycle == ([12 * (w - u) if u else 0 for u, w in zip(used, widths)] if scheme == "rewind" else [])
    assert len(s.rewind_fallbacks_per_cycle) == len(s.rewind_steps_per_cycle)
    assert all(f <= n for f, n in zip(s.rewind_fallbacks_per_cycle, s.rewind_steps_per_cycle))
    row = 4 * 3 * 4 * {"tape": 33, "per_token_states": 256, "replay": 0, "rewind": 256 + 34}[scheme]
    assert s.recorded_bytes == max(widths) * row


@pytest.mark.parametrize("other", [dict(seed=1, value_heads=2), dict(seed=2, dtype="bfloat16"), dict(seed=3, value_heads=6)])
@pytest.mark.parametrize("drafter", ("uno", "uno_published", "kept"))
def test_identity_on_other_targets(drafter, other):
    target = hybrid(**other)
    result = generate(target, PROMPT, DRAFTERS[drafter](target), k=5, max_tokens=N, ignore_eos=True)
    assert result.tokens == plain(target)[:N] and consistent(result.session, len(PROMPT) - 1)


def test_plain_decoding_is_one_row_at_a_time():
    target = hybrid()
    result = generate(target, PROMPT, None, max_tokens=40, ignore_eos=True)
    cache, tokens = target.make_cache(), []
    mx.eval(target.model(mx.array([PROMPT[:-1]]), cache=cache))
    seed = PROMPT[-1]
    for _ in range(40):
        logits = np.array(target.model(mx.array([[seed]]), cache=cache)[0, -1])
        top = np.sort(logits)[-2:]
        assert top[1] - top[0] > 1e-4  # the toy has no ties, so identity is no accident of rounding
        tokens.append(seed := int(logits.argmax()))
    assert result.tokens == tokens and consistent(result.session, len(PROMPT) - 1)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("k", (2, 5, 8))
def test_every_accepted_count(form, k):
    target = hybrid()
    for count in range(k):
        drafter = ScriptedDrafter(target, plain(target), len(PROMPT), (count,), form)
        step = count + 1 + (form != "lookup")
        result = generate(target, PROMPT, drafter, k=k, max_tokens=3 * step, ignore_eos=True)
        assert result.tokens == plain(target)[: 3 * step] and consistent(result.session, len(PROMPT) - 1)
        # the last block is no longer than the tokens still allowed
        assert result.stats.accepted_per_cycle[:2] == [count] * 2 and result.stats.committed_per_cycle[:2] == [step] * 2


@pytest.mark.parametrize("form", FORMS)
def test_accepted_counts_in_any_order(form):
    target, k = hybrid(), 6
    script = [int(c) for c in np.random.default_rng(5).integers(0, k, 12)]
    drafter = ScriptedDrafter(target, plain(target), len(PROMPT), script, form)
    result = generate(target, PROMPT, drafter, k=k, max_tokens=40, ignore_eos=True)
    assert result.tokens == plain(target)[:40] and consistent(result.session, len(PROMPT) - 1)
    whole = result.stats.cycles - 2
    assert result.stats.accepted_per_cycle[:whole] == script[:whole] and whole >= 5


def test_rounds_with_and_without_drafts():
    """A round without proposals after a round with them sees the right state."""
    target = hybrid()
    script = ScriptedDrafter(target, plain(target), len(PROMPT), (2,), "lookup")

    class Sometimes:
        name = "sometimes"

        def draft(self, cache, history, k, cycle):
            return Draft([]) if cycle % 2 else script.draft(cache, history, k, cycle)

    result = generate(target, PROMPT, Sometimes(), k=4, max_tokens=N, ignore_eos=True)
    assert result.tokens == plain(target)[:N] and consistent(result.session, len(PROMPT) - 1)
    assert result.stats.committed_per_cycle[:4] == [1, 3, 1, 3]


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_prompt_of_one_token(drafter):
    target = hybrid()
    known = plain(target, (77,))
    made = ScriptedDrafter(target, known, 1, (1,), drafter) if drafter in FORMS else DRAFTERS[drafter](target)
    result = generate(target, [77], made, k=3, max_tokens=10, ignore_eos=True)
    assert result.tokens == known[:10] and consistent(result.session, 0)
    assert result.stats.prompt_tokens == 1


def test_text_and_ids_are_the_same_prompt():
    target, drafter = hybrid(), NgramDrafter()
    assert generate(target, "naïve", drafter, max_tokens=8).tokens == generate(target, list("naïve".encode()), None, max_tokens=8).tokens


def test_a_long_prompt_is_prefilled_in_parts(monkeypatch):
    target = hybrid()
    prompt = [int(i) for i in np.random.default_rng(1).integers(1, VOCAB, 23)]
    whole = generate(target, prompt, None, max_tokens=8, ignore_eos=True)
    monkeypatch.setattr(decoder, "PREFILL_ROWS", 4)
    parts = generate(target, prompt, uno(target), k=3, max_tokens=8, ignore_eos=True)
    assert parts.tokens == whole.tokens and consistent(parts.session) and consistent(whole.session)


def test_published_and_kept_forms_propose_the_same():
    """The seed's row is exact in both, so every block and every count agrees."""
    target = hybrid()
    rows = [generate(target, PROMPT, uno(target, keep_seed=keep), k=4, max_tokens=N, ignore_eos=True).stats for keep in (True, False)]
    assert rows[0].accepted_per_cycle == rows[1].accepted_per_cycle and rows[0].committed_per_cycle == rows[1].committed_per_cycle
    assert rows[0].forward_tokens < rows[1].forward_tokens


class Spy:
    """A drafter that remembers what the one inside it proposed."""

    name = "spy"

    def __init__(self, inner):
        self.inner, self.seen = inner, []

    def draft(self, *args):
        self.seen.append(self.inner.draft(*args))
        return self.seen[-1]


def test_the_draft_forward_is_seed_and_noise():
    """Proposals are those of the adapted model over [seed, noise], the adapter off on the seed's row; checked by hand."""
    target, k = hybrid(), 5
    adapted, gate = adapter(target)
    spy = Spy(UnoDrafter(target, adapted, gate, noise_seed=42))
    result = generate(target, PROMPT, spy, k=k, max_tokens=12, ignore_eos=True)
    done = 0
    for cycle, draft in enumerate(spy.seen[:3], start=1):
        history = PROMPT + result.tokens[:done]
        noise = np.array(mx.random.randint(1, VOCAB, (16,), key=mx.random.key(
            streams.stream_seed(42, streams.BENCH_NOISE, cycle))))[: k - 1].tolist()
        assert 1 <= min(noise) and max(noise) < VOCAB
        gate.rows(mx.array([[0.0] * len(history) + [1.0] * (k - 1)]))
        logits = adapted(mx.array([history + noise]))[0, -k:]
        assert draft.tokens == mx.argmax(logits, axis=-1).tolist()
        assert draft.tokens[0] == plain(target)[done]  # row 0 is the target's own next token
        done += result.stats.committed_per_cycle[cycle - 1]


def test_noise_of_a_slot_does_not_depend_on_the_block():
    target = hybrid()
    adapted, gate = adapter(target, size=0.0)
    seen = []
    view = lambda rows, cache: (seen.append(np.array(rows)[0].tolist()), adapted(rows, cache=cache))[1]  # noqa: E731
    for k in (2, 8, 16):
        UnoDrafter(target, view, gate).draft(Session(target).cache, [9], k, 3)
    assert seen[0] == seen[1][:2] and seen[1] == seen[2][:8]


def test_published_random_streams():
    """The recorded 64-bit values of the published system."""
    wanted = {streams.TRAIN_NOISE: 0x6968999E92C72A55, streams.TRAIN_RATE: 0xDA04FB4075C7D48A, streams.EVAL_NOISE: 0x130E775F61EA0C92,
              0x4556414C5F53504C: 0xB834D8602D137CF2, streams.DATA_SAMPLING: 0xD810757008C58A8B,
              streams.BENCH_NOISE: 0x0AC88C86B1050400}
    assert {s: streams.stream_seed(20260903, s, 0) for s in wanted} == wanted
    assert streams.stream_seed(20260905, streams.BENCH_NOISE, 1) == 0xC60D2800493A5931


def test_prompt_lookup():
    d = NgramDrafter(2)
    assert d.draft([], [1, 2, 3, 4, 1, 2], 3, 1).tokens == [3, 4]
    assert d.draft([], [1, 2, 8, 8, 1, 2, 9, 9, 1, 2], 3, 1).tokens == [9, 9]  # the latest
    assert d.draft([], [1, 2, 3, 4, 1, 2], 1, 1).tokens == d.draft([], [1], 4, 1).tokens == d.draft([], [1, 2, 3], 4, 1).tokens == []
    target, prompt, ids = scripted("abcabcabcabcabcabc")
    result = generate(target, prompt, d, k=4, max_tokens=len(ids))
    assert result.text == "abcabcabcabcabcabc" and sum(result.stats.accepted_per_cycle) > 6


@pytest.mark.parametrize("modules", [lora.PUBLISHED, lora.DELTANET])
def test_other_adapted_modules(modules):
    target = hybrid()
    drafter = UnoDrafter(target, *adapter(target, modules=modules))
    assert generate(target, PROMPT, drafter, k=4, max_tokens=12, ignore_eos=True).tokens == plain(target)[:12]
