"""However a generation ends, the session is at a committed prefix and goes on as if it had been decoded plainly."""
import gc
from dataclasses import replace

import mlx.core as mx
import pytest
from specdecode_nb import decoder
from specdecode_nb.decoder import Session, generate, stream
from specdecode_nb.drafters import NgramDrafter, RandomDrafter, UnoDrafter
from specdecode_nb.errors import BadInput
from specdecode_nb.stops import Stops
from specdecode_nb.transaction import Transaction
from toy import PROMPT, VOCAB, ScriptedDrafter, adapter, consistent, failing, hybrid, plain

FORMS = ("lookup", "published", "kept")
ARMS = ("plain", "uno", "uno_published", *FORMS)
MORE = [65, 66]


def make(arm, target, known=None, prompt_tokens=len(PROMPT), counts=(1, 0, 3, 2)):
    """A drafter on the weights of ``hybrid()``, bound to ``target``."""
    if arm.startswith("uno"):
        return UnoDrafter(target, *adapter(hybrid()), keep_seed=arm == "uno")
    if arm in FORMS:
        return ScriptedDrafter(target, known or plain(hybrid()), prompt_tokens, counts, arm)
    return {"plain": None, "ngram": NgramDrafter(1), "random": RandomDrafter(VOCAB)}[arm]


def cold(tokens, n=6):
    return plain(hybrid(), tokens, n)


def goes_on(session):
    """After the event under test: continuing equals a cold run over the session's own tokens."""
    assert consistent(session)
    done = list(session.tokens)
    result = generate(session.target, MORE, None, max_tokens=6, ignore_eos=True, session=session)
    assert result.tokens == cold([*done, *MORE]) and consistent(session)


class Flaky:
    """Fails in one call of the model, before or after the caches have moved."""

    def __init__(self, model, at, error, late):
        self.model, self.at, self.error, self.late, self.calls = model, at, error, late, 0

    def make_cache(self):
        return self.model.make_cache()

    def __call__(self, ids, cache=None):
        self.calls += 1
        if self.calls == self.at and not self.late:
            raise self.error
        logits = self.model(ids, cache=cache)
        mx.eval(logits)
        if self.calls == self.at:
            raise self.error
        return logits


@pytest.mark.parametrize("error", [ValueError("injected"), KeyboardInterrupt()], ids=["error", "interrupt"])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("arm", ARMS)
def test_the_target_fails(arm, late, error):
    """In the prefill, in the first and in a later cycle."""
    for at in (1, 2, 3, 5):
        target = replace(hybrid(), model=Flaky(hybrid().model, at, error, late))
        session = Session(target)
        with pytest.raises(type(error)):
            generate(target, PROMPT, make(arm, target), k=4, max_tokens=20, ignore_eos=True, session=session)
        assert session.tokens == ([] if at == 1 else PROMPT + plain(hybrid())[: len(session.tokens) - len(PROMPT)])
        goes_on(session)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("where", ["draft", "acceptance", "commit"])
@pytest.mark.parametrize("arm", ARMS)
def test_anything_else_fails(arm, where, late, monkeypatch):
    if arm == "plain" and where != "acceptance":
        return
    target = hybrid()
    for at in (1, 2, 3, 4):
        session, drafter = Session(target), make(arm, target)
        with monkeypatch.context() as patch:
            if where == "draft":
                patch.setattr(drafter, "draft", failing(drafter.draft, at, late, ValueError("injected")))
            else:
                owner, name = (Stops, "admit") if where == "acceptance" else (Transaction, "commit")
                patch.setattr(owner, name, failing(getattr(owner, name), at, late, ValueError("injected")))
            with pytest.raises(ValueError, match="injected"):
                generate(target, PROMPT, drafter, k=4, max_tokens=20, ignore_eos=True, session=session)
        assert session.tokens == PROMPT + plain(target)[: len(session.tokens) - len(PROMPT)]
        goes_on(session)


def test_a_failure_after_the_tokens_were_noted(monkeypatch):
    """Even then caches and tokens agree: the whole cycle is undone."""
    target = hybrid()

    class Counters(decoder.Stats):
        def __init__(self, **values):
            super().__init__(**values)
            self.committed_per_cycle = self

        def append(self, _):
            raise KeyboardInterrupt

    monkeypatch.setattr(decoder, "Stats", Counters)
    session = Session(target)
    with pytest.raises(KeyboardInterrupt):
        generate(target, PROMPT, make("kept", target), max_tokens=20, ignore_eos=True, session=session)
    monkeypatch.undo()
    assert session.tokens == PROMPT
    goes_on(session)


@pytest.mark.parametrize("how", ["close", "forget", "throw"])
@pytest.mark.parametrize("arm", ARMS)
def test_a_stream_is_left_after_each_event(arm, how):
    target = hybrid()
    for events in range(1, 9):
        session = Session(target)
        running = stream(target, PROMPT, make(arm, target), k=4, max_tokens=20, ignore_eos=True, session=session)
        seen = [next(running).token for _ in range(events)]
        if how == "close":
            running.close()
        elif how == "throw":
            with pytest.raises(KeyboardInterrupt):
                running.throw(KeyboardInterrupt())
        del running
        gc.collect()
        done = session.tokens[len(PROMPT) :]
        assert done == plain(target)[: len(done)] and done[:events] == seen and len(done) < events + 5
        goes_on(session)


def test_a_stream_that_was_never_started():
    session = Session(hybrid())
    running = stream(hybrid(), PROMPT, None, session=session)
    running.close()
    assert session.tokens == [] and not session.busy
    goes_on(session)


@pytest.mark.parametrize("arm", ["plain", "uno", "kept"])
def test_one_generation_at_a_time_uses_a_session(arm):
    target = hybrid()
    session = Session(target)
    running = stream(target, PROMPT, make(arm, target), max_tokens=20, ignore_eos=True, session=session)
    first = next(running).token
    later = stream(target, MORE, None, session=session)
    with pytest.raises(BadInput, match="finish or close it first"):
        next(later)
    with pytest.raises(BadInput, match="finish or close it first"):
        generate(target, MORE, None, session=session)
    rest = [e.token for e in running]  # the first one is not disturbed
    assert [first, *rest] == plain(target)[:20] and consistent(session)
    goes_on(session)


@pytest.mark.parametrize("pair", [("plain", "uno"), ("uno", "kept"), ("uno", "uno_published"), ("plain", "plain")])
def test_two_streams_in_turn_on_one_target(pair):
    target = hybrid()
    prompts = PROMPT, [77, 3, 200]
    runs = [stream(target, p, make(arm, target, plain(target, p), len(p)), k=4, max_tokens=20, ignore_eos=True)
            for p, arm in zip(prompts, pair)]
    seen = list(zip(*runs))
    assert [[e.token for e in column] for column in zip(*seen)] == [plain(target, p)[:20] for p in prompts]


@pytest.mark.parametrize("shared", [False, True])
def test_two_adapters_on_one_target_in_turn(shared):
    """Their row gates are their own; with one adapted model for both, each draft sets its own mask."""
    target = hybrid()
    one = adapter(target)
    drafters = [UnoDrafter(target, *one), UnoDrafter(target, *(one if shared else adapter(target, rank=2, seed=7)))]
    runs = [stream(target, PROMPT, d, k=k, max_tokens=20, ignore_eos=True) for d, k in zip(drafters, (3, 6))]
    seen = list(zip(*runs))
    assert [[e.token for e in column] for column in zip(*seen)] == [plain(target)[:20]] * 2


@pytest.mark.parametrize("arms", [["uno"] * 5, ["uno_published"] * 5, ["kept"] * 5, ["ngram"] * 5, ["plain"] * 5,
                                  ["uno", "plain", "kept", "random", "plain"], ["plain", "lookup", "plain", "uno", "ngram"]])
def test_five_turns_on_one_session_equal_cold_runs(arms):
    target, session = hybrid(), None
    for turn, arm in enumerate(arms):
        prompt = [turn + 40, *PROMPT[turn:]]
        whole = (session.tokens if session else []) + prompt
        known = plain(target, whole, 16)
        result = generate(target, prompt, make(arm, target, known, len(whole)), k=4, max_tokens=7, ignore_eos=True, session=session)
        session = result.session
        assert result.tokens == known[:7] and session.tokens == whole + result.tokens and consistent(session)


@pytest.mark.parametrize("arm", ARMS)
def test_the_same_prompt_twice_gives_the_same(arm):
    target = hybrid()
    drafter = make(arm, target)
    runs = [generate(target, PROMPT, drafter, k=4, max_tokens=12, ignore_eos=True) for _ in range(2)]
    assert runs[0].tokens == runs[1].tokens == plain(target)[:12]
    assert runs[0].stats.accepted_per_cycle == runs[1].stats.accepted_per_cycle


@pytest.mark.parametrize("arm", ARMS)
def test_going_on_after_an_end_of_text(arm):
    """Its id is in the tokens, its row is not in the caches; the next turn feeds it."""
    tokens = plain(hybrid())
    for at in (i for i in range(1, 8) if tokens[i] not in tokens[:i]):
        target = replace(hybrid(), tokenizer=type(hybrid().tokenizer)(eos=(tokens[at],)))
        result = generate(target, PROMPT, make(arm, target), k=4, max_tokens=20)
        assert result.finish_reason == "stop" and result.tokens == tokens[: at + 1]
        goes_on(result.session)


def test_the_first_token_ends_the_text():
    first = plain(hybrid())[0]
    target = replace(hybrid(), tokenizer=type(hybrid().tokenizer)(eos=(first,)))
    for arm in ARMS:
        result = generate(target, PROMPT, make(arm, target), k=4, max_tokens=20)
        assert (result.tokens, result.text, result.finish_reason) == ([first], "", "stop")
        goes_on(result.session)
