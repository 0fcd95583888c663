"""The state oracle: whatever scheme undoes a block, every layer is bit-equal to plain decoding of the kept prefix.

The scheme "rewind" is held to its tolerance in the recurrent state alone; window, offset, keys and values are bit-equal there too.
"""
import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import KVCache
from specdecode_nb.rewind import TOLERANCE
from specdecode_nb.transaction import EXACT, SCHEMES, Transaction
from toy import PROMPT, VOCAB, bits, clean, equal, hybrid, recurrent, reference_cache, same_bits

WIDEST = 17
BLOCK = [int(i) for i in np.random.default_rng(3).integers(1, VOCAB, WIDEST + 1)]
STARTS = {"empty": [], "prefilled": PROMPT}


def forward(target, ids, cache):
    logits = target.model(mx.array([ids]), cache=cache)
    mx.eval(logits, [c.state for c in cache])
    return logits


def transact(target, prefix, block, keep, scheme, calls=None):
    return transacted(target, prefix, block, keep, scheme, calls)[0]


def transacted(target, prefix, block, keep, scheme, calls=None):
    """Caches after ``prefix`` and the first ``keep`` rows of ``block``, undone by ``scheme``, and the transaction; ``calls``: rows per forward."""
    cache = reference_cache(target, prefix, len(prefix))
    rerun = {"rerun": lambda n: target.model(mx.array([block[:n]]), cache=cache)} if scheme == "replay" else {}
    with Transaction(cache, scheme, **rerun) as tx:
        at = 0
        for rows in calls or [len(block)]:
            forward(target, block[at : at + rows], cache)
            at += rows
        assert tx.rows == at
        tx.commit(keep)
    return cache, tx


def oracle(target, prefix):
    """Bits after 0, 1, ... rows of BLOCK by plain decoding."""
    cache = reference_cache(target, prefix, len(prefix))
    found = [bits(cache)]
    for i in BLOCK[:WIDEST]:
        forward(target, [i], cache)
        found.append(bits(cache))
    return found


def agrees(scheme, found, wanted):
    """As exactly as the scheme promises: the bits, or the recurrent states (four-dimensional, after a window) within the tolerance."""
    if scheme in EXACT:
        return equal(found, wanted)
    states = [i for i in range(1, len(wanted)) if wanted[i].ndim == 4 and wanted[i - 1].ndim == 3]
    assert len(states) == 3
    rest = [i for i in range(len(wanted)) if i not in states]
    return len(found) == len(wanted) and equal([found[i] for i in rest], [wanted[i] for i in rest]) and all(
        np.abs(found[i] - wanted[i]).max() <= TOLERANCE * max(1, np.abs(wanted[i]).max()) for i in states)


@pytest.fixture(scope="module", params=STARTS)
def start(request):
    return STARTS[request.param]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_width_and_every_count(scheme, start):
    target = hybrid()
    wanted = oracle(target, start)
    for width in range(1, WIDEST + 1):
        for keep in range(width + 1):
            cache = transact(target, start, BLOCK[:width], keep, scheme)
            if keep == 0 and not start:
                # nothing was ever kept: empty arrays and zeros are the same state
                assert all(c.offset == 0 for c in cache) and all(c.cache == [None, None] for c in recurrent(cache))
            else:
                assert agrees(scheme, bits(cache), wanted[keep]), (width, keep)
            assert clean(cache)


@pytest.mark.parametrize("shape", [dict(value_heads=2, key_heads=2), dict(value_heads=6, key_heads=2)])
def test_other_head_counts(shape):
    target = hybrid(**shape)
    wanted = oracle(target, PROMPT)
    for width, keep in [(1, 0), (1, 1), (2, 1), (5, 1), (5, 4), (9, 6), (17, 16), (17, 3)]:
        for scheme in SCHEMES:
            assert agrees(scheme, bits(transact(target, PROMPT, BLOCK[:width], keep, scheme)), wanted[keep]), (scheme, width, keep)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_bfloat16_keeps_a_float32_state(scheme):
    target = hybrid(dtype="bfloat16")
    wanted = oracle(target, PROMPT)
    for width in (1, 2, 5, 8):
        for keep in range(width + 1):
            cache = transact(target, PROMPT, BLOCK[:width], keep, scheme)
            assert agrees(scheme, bits(cache), wanted[keep]), (width, keep)
            assert all((c[0].dtype, c[1].dtype) == (mx.bfloat16, mx.float32) for c in recurrent(cache))


def follow(target, cache, seed, n=20):
    tokens = []
    for _ in range(n):
        tokens.append(seed := int(mx.argmax(forward(target, [seed], cache)[0, -1]).item()))
    return tokens


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_next_twenty_tokens(scheme, start):
    target = hybrid()
    for width, keep in [(1, 0), (1, 1), (4, 2), (8, 5), (17, 1), (17, 9), (17, 17)]:
        seed = BLOCK[width - 1]
        wanted = follow(target, reference_cache(target, start + BLOCK[:keep], len(start)), seed)
        cache = transact(target, start, BLOCK[:width], keep, scheme)
        assert follow(target, cache, seed) == wanted
        assert len(set(wanted)) >= 5 and all(c[1].dtype == mx.float32 for c in recurrent(cache))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("calls", [[1, 4], [4, 1], [2, 3], [1, 1, 1, 1, 1], [3, 2]])
def test_several_forwards_in_one_block(scheme, calls, start):
    target = hybrid()
    wanted = oracle(target, start)
    for keep in range(1, 6):
        assert agrees(scheme, bits(transact(target, start, BLOCK[:5], keep, scheme, calls)), wanted[keep]), keep


def test_blocks_follow_each_other_across_the_growth_of_the_attention_cache():
    """Rejections on both sides of the 256 rows at which a KVCache grows."""
    target, kept, cache = hybrid(), [], None
    cache = target.make_cache()
    rng = np.random.default_rng(0)
    prefix = rng.integers(1, VOCAB, 245).tolist()
    forward(target, prefix, cache)
    for _ in range(6):
        block = rng.integers(1, VOCAB, 9).tolist()
        keep = int(rng.integers(0, 10))
        with Transaction(cache) as tx:
            forward(target, block, cache)
            tx.commit(keep)
        kept += block[:keep]
    assert len(kept) + 245 > 256
    assert same_bits(cache, reference_cache(target, prefix + kept, 245))


def test_a_full_commit_reads_no_snapshot_and_still_closes():
    target = hybrid()
    cache = reference_cache(target, PROMPT, len(PROMPT))
    with Transaction(cache) as tx:
        forward(target, BLOCK[:4], cache)
        before = [c.cache[:] for c in recurrent(cache)]
        tx.commit(4)
        assert all(a is b for c, was in zip(recurrent(cache), before) for a, b in zip(c.cache, was))
    assert clean(cache)


def test_verify_rows_do_not_see_later_rows():
    target = hybrid()
    cut = 4
    other = BLOCK[:cut] + [(i + 100) % VOCAB for i in BLOCK[cut:9]]
    outputs = []
    for block in (BLOCK[:9], other):
        cache = reference_cache(target, PROMPT, len(PROMPT))
        with Transaction(cache):
            outputs.append(np.array(forward(target, block, cache))[0])
    assert outputs[0][:cut].tobytes() == outputs[1][:cut].tobytes()
    assert not np.array_equal(outputs[0][cut:], outputs[1][cut:])


def test_a_row_of_a_block_gives_the_logits_of_a_plain_step():
    target = hybrid()
    cache = reference_cache(target, PROMPT, len(PROMPT))
    plain = [np.array(forward(target, [i], cache))[0, 0] for i in BLOCK]
    for width in (2, 5, 8, 17):
        cache = reference_cache(target, PROMPT, len(PROMPT))
        block = np.array(forward(target, BLOCK[:width], cache))[0]
        assert all(block[i].tobytes() == plain[i].tobytes() for i in range(width)), width


@pytest.mark.parametrize("spoil", ["delta", "key", "decay", "window"])
def test_the_comparison_has_teeth(spoil):
    """Negative control: the smallest error in one recorded row of one layer is seen."""
    target = hybrid()
    cache = reference_cache(target, PROMPT, len(PROMPT))
    with Transaction(cache) as tx:
        forward(target, BLOCK[:5], cache)
        tape = recurrent(cache)[1].tape
        if spoil == "window":
            tape.conv_rows = mx.roll(tape.conv_rows, 1, axis=1)
        else:
            rows = {"delta": tape.deltas, "key": tape.keys, "decay": tape.decays}[spoil]
            rows[1] = rows[1] * (1 + 3e-7)
        tx.commit(3)
    assert not same_bits(cache, reference_cache(target, PROMPT + BLOCK[:3], len(PROMPT)))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_recorded_bytes(scheme):
    target, width = hybrid(), 6
    layer = target.model.layers[0].linear_attn
    heads, dv, dk = layer.num_v_heads, layer.head_v_dim, layer.head_k_dim
    row = 4 * heads * {"tape": dv + dk + 1, "per_token_states": dv * dk, "replay": 0, "rewind": dv * dk + dv + dk + 2}[scheme]
    for keep in (0, 3, width):
        cache, tx = transacted(target, PROMPT, BLOCK[:width], keep, scheme)
        assert tx.recorded_bytes == len(recurrent(cache)) * width * row


def test_attention_alone_and_recurrence_alone():
    target = hybrid()
    layers = target.model.layers
    x = mx.random.normal((1, 5, 64), key=mx.random.key(0))
    for index in (0, 3):
        run = lambda rows, cache: layers[index](rows, None if layers[index].is_linear else "causal", cache)  # noqa: E731
        cache = [target.make_cache()[index]]
        with Transaction(cache) as tx:
            mx.eval(run(x, cache[0]))
            tx.commit(2)
        wanted = [target.make_cache()[index]]
        for t in range(2):
            mx.eval(run(x[:, t : t + 1], wanted[0]))
        assert same_bits(cache, wanted) and isinstance(cache[0], KVCache) == (index == 3)
