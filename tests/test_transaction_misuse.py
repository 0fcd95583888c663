"""Everything that must be refused, and everything that must leave nothing behind."""
import gc

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache, KVCache, QuantizedKVCache, RotatingKVCache
from specdecode_nb.decoder import Session
from specdecode_nb.errors import BadInput
from specdecode_nb.gdn import RecurrentCache
from specdecode_nb.transaction import EXACT, SCHEMES, RollbackUnsupported, Transaction, TransactionError, restore, snapshot
from toy import PROMPT, bits, clean, equal, hybrid, recurrent, reference_cache, same_bits, scripted, stock

BLOCK = [3, 90, 41, 77, 150]
RECORDED = [s for s in SCHEMES if s != "replay"]


@pytest.fixture
def target():
    return hybrid()


@pytest.fixture
def cache(target):
    return reference_cache(target, PROMPT, len(PROMPT))


def forward(target, ids, cache):
    logits = target.model(mx.array([ids]), cache=cache)
    mx.eval(logits, [c.state for c in cache])
    return logits


def untouched(target, cache):
    return clean(cache) and same_bits(cache, reference_cache(target, PROMPT, len(PROMPT)))


def test_transactions_do_not_nest(target, cache):
    with Transaction(cache) as tx:
        with pytest.raises(TransactionError, match="nest"):
            Transaction(cache[2:]).__enter__()
        with pytest.raises(TransactionError, match="has been used"):
            tx.__enter__()
        forward(target, BLOCK, cache)
        tx.commit(2)
        with pytest.raises(TransactionError, match="nest"):
            Transaction(cache).__enter__()
    assert clean(cache) and same_bits(cache, reference_cache(target, PROMPT + BLOCK[:2], len(PROMPT)))


def test_a_transaction_is_used_once(target, cache):
    tx = Transaction(cache)
    with pytest.raises(TransactionError, match="open transaction"):
        tx.commit(0)
    with tx:
        forward(target, BLOCK, cache)
        tx.commit(1)
        with pytest.raises(TransactionError, match="only once"):
            tx.commit(1)
    with pytest.raises(TransactionError, match="only once"):
        tx.commit(1)
    with pytest.raises(TransactionError, match="has been used"):
        tx.__enter__()
    assert clean(cache) and same_bits(cache, reference_cache(target, PROMPT + BLOCK[:1], len(PROMPT)))


@pytest.mark.parametrize("scheme", RECORDED)
@pytest.mark.parametrize("n", [-1, 6, 2.0, None, "2"])
def test_a_commit_out_of_range_is_refused_and_may_be_corrected(target, cache, scheme, n):
    with Transaction(cache, scheme) as tx:
        forward(target, BLOCK, cache)
        with pytest.raises(TransactionError, match="5 were forwarded"):
            tx.commit(n)
        tx.commit(5)
    assert same_bits(cache, reference_cache(target, PROMPT + BLOCK, len(PROMPT)))


def test_a_commit_without_rows(target, cache):
    with Transaction(cache) as tx:
        with pytest.raises(TransactionError, match="0 were forwarded"):
            tx.commit(1)
        tx.commit(0)
    assert untouched(target, cache)


@pytest.mark.parametrize("scheme", RECORDED)
@pytest.mark.parametrize("keep", [0, 2, 5])
def test_nothing_is_forwarded_after_the_commit(target, cache, scheme, keep):
    with pytest.raises(RuntimeError, match="forward further rows in a new one"):
        with Transaction(cache, scheme) as tx:
            forward(target, BLOCK, cache)
            tx.commit(keep)
            kept = bits(cache)
            forward(target, BLOCK[:1], cache)
    assert clean(cache) and equal(bits(cache), kept)
    assert scheme not in EXACT or same_bits(cache, reference_cache(target, PROMPT + BLOCK[:keep], len(PROMPT)))
    forward(target, BLOCK[:1], cache)  # usable again


def test_rows_after_the_commit_in_attention_layers_are_dropped():
    target, prompt, _ = scripted("abcdefgh")
    cache = target.make_cache()
    with pytest.raises(TransactionError, match="after the commit"):
        with Transaction(cache) as tx:
            target.model(mx.array([prompt + [97, 98]]), cache=cache)
            tx.commit(2)
            target.model(mx.array([[99]]), cache=cache)
    assert cache[0].offset == 2 and clean(cache)


def test_rows_after_the_commit_in_stock_recurrent_layers_are_dropped():
    model = stock()
    cache, wanted = model.make_cache(), model.make_cache()
    with pytest.raises(TransactionError, match="after the commit"):
        with Transaction(cache, "replay", rerun=lambda n: model(mx.array([BLOCK[:n]]), cache=cache)) as tx:
            model(mx.array([BLOCK]), cache=cache)
            tx.commit(2)
            model(mx.array([BLOCK[2:]]), cache=cache)
    model(mx.array([BLOCK[:2]]), cache=wanted)
    assert same_bits(cache, wanted)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, GeneratorExit, MemoryError])
def test_whatever_leaves_the_block_keeps_nothing(target, cache, scheme, error):
    rerun = {"rerun": lambda n: None} if scheme == "replay" else {}
    with pytest.raises(error):
        with Transaction(cache, scheme, **rerun):
            forward(target, BLOCK, cache)
            raise error()
    assert untouched(target, cache)


def test_leaving_without_a_commit_keeps_nothing(target, cache):
    for scheme in RECORDED:
        with Transaction(cache, scheme):
            forward(target, BLOCK, cache)
        assert untouched(target, cache)
    fresh = target.make_cache()
    with Transaction(fresh):
        forward(target, BLOCK, fresh)
    assert all(c.offset == 0 for c in fresh)
    forward(target, PROMPT, fresh)
    assert same_bits(fresh, cache)


@pytest.mark.parametrize("layer", range(4))
def test_a_forward_that_fails_in_one_layer(target, cache, layer, monkeypatch):
    """The layers before it have moved and the others have not."""
    def broken(*_, **__):
        raise ValueError("broken")

    monkeypatch.setattr(type(target.model.layers[layer].mlp), "__call__",
                        lambda self, x, real=type(target.model.layers[layer].mlp).__call__:
                        broken() if self is target.model.layers[layer].mlp else real(self, x))
    with pytest.raises(ValueError, match="broken"):
        with Transaction(cache):
            forward(target, BLOCK, cache)
    monkeypatch.undo()
    assert untouched(target, cache)
    if layer < 3:
        with pytest.raises(TransactionError, match="different numbers of rows"):
            with Transaction(cache) as tx:
                target.model.layers[layer](mx.zeros((1, 2, 64)), None, cache[layer])
                tx.commit(2)
        assert untouched(target, cache)


def test_a_rerun_that_fails_keeps_nothing(target, cache):
    def failing(n):
        target.model(mx.array([BLOCK[:n]]), cache=cache)
        raise KeyboardInterrupt

    for rerun, error in [(failing, KeyboardInterrupt), (lambda n: None, TransactionError)]:
        with pytest.raises(error):
            with Transaction(cache, "replay", rerun=rerun) as tx:
                forward(target, BLOCK, cache)
                tx.commit(3)
        assert untouched(target, cache)


def test_options():
    cache = hybrid().make_cache()
    with pytest.raises(ValueError, match="no scheme 'snapshot'.*tape"):
        Transaction(cache, "snapshot")
    with pytest.raises(ValueError, match="needs rerun"):
        Transaction(cache, "replay")
    with pytest.raises(ValueError, match="no other takes it"):
        Transaction(cache, "tape", rerun=print)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("make", [lambda: RotatingKVCache(max_size=8), QuantizedKVCache, lambda: ArraysCache(2)],
                         ids=["rotating", "quantized", "arrays"])
def test_a_cache_that_cannot_be_undone_is_refused_at_construction(scheme, make):
    odd = make()
    caches = [RecurrentCache(), KVCache(), odd]
    rerun = {"rerun": print} if scheme == "replay" else {}
    if scheme == "replay" and type(odd) is ArraysCache:
        Transaction(caches, scheme, **rerun)
        return
    with pytest.raises(RollbackUnsupported, match=f"Layer 2 has a {type(odd).__name__}.*make_cache"):
        Transaction(caches, scheme, **rerun)
    assert clean(caches)


def test_caches_that_do_not_count_rows_are_refused_by_what_is_wrong():
    with pytest.raises(RollbackUnsupported, match="None of these caches counts its rows: all are stock ArraysCaches.*make_cache"):
        Transaction([ArraysCache(2), ArraysCache(2)], "replay", rerun=print)
    Transaction([ArraysCache(2), KVCache()], "replay", rerun=print)


def test_a_subclass_of_the_attention_cache_is_not_taken_on_trust():
    class Windowed(KVCache):
        pass

    with pytest.raises(RollbackUnsupported, match="Layer 0 has a Windowed"):
        Transaction([Windowed()])


@pytest.mark.parametrize("make", [lambda: RotatingKVCache(max_size=8), QuantizedKVCache], ids=["rotating", "quantized"])
def test_a_session_refuses_such_a_cache_when_it_is_made(target, make):
    """Windowed and quantised caches: one sentence at construction, for plain decoding too, whose last step is undone as well."""
    caches = [*target.make_cache()[:3], make()]
    with pytest.raises(RollbackUnsupported, match=f"Layer 3 has a {type(caches[3]).__name__}.*make_cache") as caught:
        Session(target, caches)
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".") and ". " not in str(caught.value).replace("target.make_cache", "")


def test_a_session_refuses_caches_that_are_not_of_its_tokens(target, cache):
    assert Session(target, cache, [*PROMPT, 9]).tokens[-1] == 9
    for tokens in ([], PROMPT, [*PROMPT, 9, 9]):
        with pytest.raises(BadInput, match="hold .7. rows and must hold all of its .* tokens but the last"):
            Session(target, cache, tokens)
    with pytest.raises(BadInput, match="hold .0. rows"):
        Session(target, tokens=PROMPT)


def test_padded_batches_are_refused():
    for spoil in ({"lengths": mx.array([3])}, {"left_padding": mx.array([1])}):
        cache = RecurrentCache()
        vars(cache).update(spoil)
        with pytest.raises(RollbackUnsupported, match="Layer 0.*padded"):
            Transaction([cache])


def test_replay_works_with_stock_caches():
    model = stock()
    for keep in range(len(BLOCK) + 1):
        cache, wanted = model.make_cache(), model.make_cache()
        for c in (cache, wanted):
            model(mx.array([PROMPT]), cache=c)
        with Transaction(cache, "replay", rerun=lambda n: model(mx.array([BLOCK[:n]]), cache=cache)) as tx:
            model(mx.array([BLOCK]), cache=cache)
            tx.commit(keep)
        if keep:
            model(mx.array([BLOCK[:keep]]), cache=wanted)
        assert same_bits(cache, wanted)


def test_no_recording_outside_a_block(target, cache):
    with Transaction(cache) as tx:
        forward(target, BLOCK, cache)
        assert all(c.tape.rows == 5 and len(c.tape.deltas) == 5 and not c.tape.states for c in recurrent(cache))
        tx.commit(2)
    forward(target, [1], cache)
    assert clean(cache)


def test_two_models_in_one_process(target, cache):
    """Open at the same time, forwarded in turn, one kept and one dropped."""
    other = hybrid(seed=1)
    others = reference_cache(other, PROMPT, len(PROMPT))
    with Transaction(cache) as tx, Transaction(others, "per_token_states"):
        for i in BLOCK:
            forward(target, [i], cache)
            forward(other, [i], others)
        tx.commit(3)
        forward(other, [9], others)
    assert same_bits(cache, reference_cache(target, PROMPT + BLOCK[:3], len(PROMPT)))
    assert untouched(other, others)


def test_snapshot_and_restore(target, cache):
    saved, before = snapshot(cache), bits(cache)
    forward(target, BLOCK, cache)
    restore(cache, saved)
    forward(target, BLOCK[::-1], cache)  # rows written over the stale ones
    restore(cache, saved)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(bits(cache), before))


@pytest.mark.parametrize("scheme", RECORDED)
def test_a_closed_block_holds_no_memory(target, scheme):
    cache = reference_cache(target, PROMPT, len(PROMPT))
    def block():
        with Transaction(cache, scheme) as tx:
            forward(target, BLOCK, cache)
            tx.commit(0)

    block()
    gc.collect()
    before = mx.get_active_memory()
    for _ in range(10):
        block()
    gc.collect()
    assert mx.get_active_memory() - before < 4096
