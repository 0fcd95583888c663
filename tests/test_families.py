"""Checkpoints of the other families: identity with plain decoding and the state oracle in every number format, refusals by name."""
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import KVCache, QuantizedKVCache, RotatingKVCache, make_prompt_cache
from specdecode_nb import load_drafter, load_target, lora
from specdecode_nb.decoder import Session, generate
from specdecode_nb.dflash import DFlashDrafter
from specdecode_nb.drafters import UnoDrafter
from specdecode_nb.errors import BadInput
from specdecode_nb.dflash_files import write_dflash
from specdecode_nb.families import TESTED, drafters, family, require, take_over
from specdecode_nb.gdn import RecurrentCache, TapedNextGatedDeltaNet, adopt
from specdecode_nb.mtp import MTPDrafter, MTPModel, write_mtp
from specdecode_nb.targets import quantised
from specdecode_nb.taps import TappedModel
from specdecode_nb.transaction import EXACT, RollbackUnsupported, Transaction
from tapping import CONFIG, drawn, weights
from toy import ScriptedDrafter, adapter, bits, consistent, equal, reference_cache
from toy_checkpoints import DENSE, FAMILIES, VOCAB, WINDOW, build, write

PROMPT = [5, 9, 200, 33, 7, 8, 9, 5, 9]
N, K = 18, 5
BLOCK = [40, 41, 7, 250, 3, 9]
EXPERT = ("qwen3_moe", "qwen3_next", "qwen3_5_moe")
FORMATS = ("float32", "bfloat16", 8, 4)
CASES = [(name, form) for name in FAMILIES for form in FORMATS if not (form == "bfloat16" and name in EXPERT)]


def loaded(folder, name, form="float32", **changes):
    path = write(folder / f"{name}-{form}", name, bits=form if isinstance(form, int) else None, **changes)
    return load_target(str(path), "bfloat16" if form == "bfloat16" else None)


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def case(request, tmp_path_factory):
    """A target and its plain continuation."""
    name, form = request.param
    target = loaded(tmp_path_factory.mktemp("families"), name, form)
    tokens = generate(target, PROMPT, None, max_tokens=N, ignore_eos=True).tokens
    assert len(set(tokens)) >= 6 and target.bits == (form if isinstance(form, int) else None)
    return target, tokens


def same(target, tokens, drafter, k=K):
    """Decoding with ``drafter`` gives the plain tokens and leaves the caches of plain decoding; its accepted counts."""
    result = generate(target, PROMPT, drafter, k=k, max_tokens=len(tokens), ignore_eos=True)
    assert result.tokens == tokens and consistent(result.session, len(PROMPT) - 1)
    return result.stats.accepted_per_cycle


def test_identity_with_plain_decoding(case):
    target, tokens = case
    for name in ("ngram", "random"):
        same(target, tokens, load_drafter(name, target))
    for form in ("kept", "lookup"):  # with the seed's row in the caches, and without
        counts = same(target, tokens, ScriptedDrafter(target, tokens + [3] * K, len(PROMPT), range(K), form))
        assert counts[: K - 1] == list(range(K - 1))
    assert same(target, tokens, ScriptedDrafter(target, tokens + [3] * K, len(PROMPT)))[0] == K - 1


def test_the_state_oracle(case):
    """Every accepted count of a block, by every exact scheme: the bits of plain decoding in every layer."""
    target, _ = case
    recurrent = any(isinstance(c, RecurrentCache) for c in target.make_cache())
    wanted = [bits(reference_cache(target, PROMPT + BLOCK[:n], len(PROMPT))) for n in range(len(BLOCK) + 1)]
    for scheme in EXACT if recurrent else EXACT[:1]:
        for keep in range(len(BLOCK) + 1):
            cache = reference_cache(target, PROMPT, len(PROMPT))
            rerun = {"rerun": lambda n, cache=cache: target.model(mx.array([BLOCK[:n]]), cache=cache)} if scheme == "replay" else {}
            with Transaction(cache, scheme, **rerun) as tx:
                mx.eval(target.model(mx.array([BLOCK]), cache=cache))
                tx.commit(keep)
            assert equal(bits(cache), wanted[keep]), (scheme, keep)


def test_the_card(case):
    target, _ = case
    name, facts, drafters_line = target.card().split("\n")
    assert "0.1 M parameters" in name and f"with {target.bits}-bit matrices" * bool(target.bits) in name and "ngram, random, uno" in drafters_line
    assert family(target.model) in TESTED and "not among" not in facts and "context 512" in facts
    assert ("sliding window" in name) == any(kind in target.name for kind in ("gemma3", "sliding"))
    assert ("undone by tape" in facts) == ("1 Gated DeltaNet + 1" in name) == ("qwen3_5" in target.name or "qwen3_next" in target.name)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_logits_of_mlx_lm(name, tmp_path):
    """Against mlx-lm's own model and caches, past the window of the sliding ones: prompt, steps and a block."""
    target, (model, _) = loaded(tmp_path, name), build(name)
    ours, theirs = target.make_cache(), make_prompt_cache(model)
    ids = [int(i) for i in np.random.default_rng(2).integers(2, VOCAB, 3 * WINDOW)]
    for rows in (ids[:11], *[[i] for i in ids[11:17]], ids[17:]):
        a, b = (np.array(m(mx.array([rows]), cache=c)) for m, c in ((target.model, ours), (model, theirs)))
        assert np.abs(a - b).max() < 1e-3 * np.abs(b).max()


@pytest.mark.parametrize("experts", [True, False])
def test_the_layer_of_qwen3_next(experts):
    """The taped layer against its own one-row steps bit for bit, and against the stock layer to rounding."""
    model, _ = build("qwen3_next", mlp_only_layers=[1] if experts else [0, 1])
    stock = model.layers[0].linear_attn
    taped = adopt(stock)
    assert isinstance(taped, TapedNextGatedDeltaNet) and type(stock) is not type(taped)
    x = mx.random.normal((1, 7, 64), key=mx.random.key(1))
    whole, steps = RecurrentCache(), RecurrentCache()
    y = np.array(taped(x, cache=whole))
    rows = np.concatenate([np.array(taped(x[:, t : t + 1], cache=steps)) for t in range(7)], axis=1)
    assert y.tobytes() == rows.tobytes() and all(np.array(whole[i]).tobytes() == np.array(steps[i]).tobytes() for i in (0, 1))
    np.testing.assert_allclose(y, np.array(stock(x)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", EXPERT)
def test_experts_in_bfloat16_are_refused_on_a_cpu(name, tmp_path):
    if mx.default_device().type != mx.cpu:
        pytest.skip("a GPU multiplies them")
    with pytest.raises(BadInput, match="has experts, which MLX multiplies in bfloat16 on a GPU alone; load it in float32"):
        loaded(tmp_path, name, "bfloat16")


REFUSED = {
    "mamba": (dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, state_size=4, conv_kernel=4, use_bias=False, use_conv_bias=True,
                   time_step_rank=2, vocab_size=VOCAB), r"Layer 0 of target 'x' \(mamba, ResidualBlock\) keeps its rows in ArraysCache"),
    "olmo3": (DENSE | dict(num_hidden_layers=4, sliding_window=8, rope_theta=1e4),
              r"Layer 0 of target 'x' \(olmo3, Olmo3DecoderLayer\) keeps its rows in RotatingKVCache")}


@pytest.mark.parametrize("name", REFUSED)
def test_layers_that_cannot_be_undone_are_named(name):
    changes, message = REFUSED[name]
    model, _ = build(name, **changes)
    with pytest.raises(BadInput, match=message + ", which cannot be undone row by row; supported are attention with a KVCache, sliding windows of llama"):
        take_over(model, "x")


def test_another_family_is_taken_and_the_card_says_so(tmp_path):
    target = loaded(tmp_path, "qwen2", **DENSE | dict(head_dim=16, rope_theta=1e4, tie_word_embeddings=True))
    assert "qwen2 is not among the families that the tests decode with" in target.card()
    tokens = generate(target, PROMPT, None, max_tokens=8, ignore_eos=True).tokens
    assert same(target, tokens, ScriptedDrafter(target, tokens + [3] * K, len(PROMPT)))[0] == K - 1


@pytest.mark.parametrize("make", [lambda: QuantizedKVCache(group_size=32, bits=8), lambda: RotatingKVCache(max_size=WINDOW)], ids=["quantised", "rotating"])
def test_caches_of_another_kind_are_refused_at_construction(make):
    model, _ = build("llama")
    caches = [make() for _ in model.layers]
    with pytest.raises(RollbackUnsupported, match=f"Layer 0 has a {type(caches[0]).__name__}, .*a KVCache of full precision and the RecurrentCache.* can"):
        Transaction(caches)


# trained drafters on dense targets

DENSE_TARGETS = ("llama", "llama_sliding", "qwen3")


@pytest.fixture(scope="module", params=[(name, form) for name in (*DENSE_TARGETS, "qwen3_moe", "qwen3_next") for form in ("float32", 4)],
                ids=lambda case: f"{case[0]}-{case[1]}")
def tapped(request, tmp_path_factory):
    name, form = request.param
    target = loaded(tmp_path_factory.mktemp("tapped"), name, form)
    return target, generate(target, PROMPT, None, max_tokens=N, ignore_eos=True).tokens


def make(kind, target):
    if kind == "uno":
        return UnoDrafter(target, *adapter(target))
    if kind == "mtp":
        return MTPDrafter(target, drawn(MTPModel(target, 48)), 5)
    return DFlashDrafter(target, weights(replace(CONFIG, vocab_size=VOCAB, num_target_layers=2, target_layer_ids=(0, 1))))


@pytest.mark.parametrize("kind", ["uno", "dflash", "mtp"])
def test_drafters_that_read_or_adapt_the_target(kind, tapped):
    target, tokens = tapped
    if kind not in drafters(target.model)[0]:
        with pytest.raises(BadInput, match=f"takes no {kind} drafter: {family(target.model)} is not among llama, qwen3, qwen3_5; choose ngram or random"):
            require(kind, target.model, target.name)
        return
    before = target.digest()
    for counts in (range(K), (2, 10**6)):
        drafter = make(kind, target)
        own, script = drafter.draft, ScriptedDrafter(target, tokens + [3] * K, len(PROMPT), counts, "kept" if kind == "uno" else "lookup")
        assert all(0 <= t < VOCAB for t in own(session_of(target, drafter).cache, PROMPT, K, 1).tokens)
        same(target, tokens, drafter)
        if kind != "uno":
            drafter.draft = lambda *a, own=own, script=script: replace(own(*a), tokens=script.draft(*a).tokens)
            found = same(target, tokens, drafter)
            assert counts != range(K) or found[: K - 1] == list(range(K - 1))
    assert target.digest() == before


def session_of(target, drafter):
    session = Session(target)
    session.feed(PROMPT, getattr(drafter, "verifier", None))
    return session


def test_taps_of_a_dense_target(tapped):
    """What is reported is the residual stream after each layer, and the logits are the target's own bits."""
    target, _ = tapped
    if any(isinstance(c, RecurrentCache) for c in target.make_cache()):
        return  # by hand in test_tap_drafters
    text, cache = target.model.model, target.make_cache()
    x = text.embed_tokens(mx.array([PROMPT]))
    logits, taps = TappedModel(target.model, (0, 1)).taps(mx.array([PROMPT]), target.make_cache())
    for layer, c, tap in zip(text.layers, cache, taps, strict=True):
        mask = c.make_mask(len(PROMPT), return_array=False, window_size=WINDOW if getattr(layer, "use_sliding", False) else None)
        x = layer(x, mask, c)
        assert np.array(tap).tobytes() == np.array(x).tobytes()
    assert np.array(logits).tobytes() == np.array(target.model(mx.array([PROMPT]), cache=target.make_cache())).tobytes()


def test_an_adapter_of_a_dense_target_on_file(tmp_path):
    """Names are those of the model, any prefix is read, an adapter of another family is refused."""
    target, path = loaded(tmp_path, "llama"), tmp_path / "a.safetensors"
    adapted, _ = adapter(target, rank=3, modules=lora.PUBLISHED)
    wanted = lora.adapter_weights(adapted)
    assert len(wanted) == 2 * 7 * 2 and all(name.startswith("model.layers.") for name in wanted)
    for prefix in ("model.", "language_model.model.", ""):
        mx.save_safetensors(str(path), {k.replace("model.", prefix, 1): v for k, v in wanted.items()})
        found = lora.adapter_weights(lora.load_adapter(path, target.model)[0])
        assert all(np.array_equal(np.array(v), np.array(wanted[k])) for k, v in found.items())
    tokens = generate(target, PROMPT, None, max_tokens=9, ignore_eos=True).tokens
    same(target, tokens, load_drafter(str(path), target))
    with pytest.raises(BadInput, match="does not fit this model|has shape"):
        load_drafter(str(path), loaded(tmp_path, "qwen3_moe"))


def test_drafters_that_do_not_fit_are_refused_with_the_reason(tmp_path):
    target = loaded(tmp_path, "gemma")
    fit, not_fit = drafters(target.model)
    assert fit == ["ngram", "random", "uno"] and set(not_fit) == {"dflash", "mtp"}
    assert "no dflash: gemma is not among llama" in target.card()
    small = quantised(loaded(tmp_path, "qwen3"), 4, 32)
    assert small.bits == 4 and small.card().count("4-bit") == 1 and type(small.make_cache()[0]) is KVCache


def test_drafters_of_a_dense_target_on_file(tmp_path):
    target = loaded(tmp_path, "llama")
    tokens = generate(target, PROMPT, None, max_tokens=9, ignore_eos=True).tokens
    config = replace(CONFIG, vocab_size=VOCAB, num_target_layers=2, target_layer_ids=(0, 1))
    write_dflash(tmp_path / "block", weights(config), {"target_digest": target.digest()})
    write_mtp(tmp_path / "chain.safetensors", drawn(MTPModel(target, 48)), {"depth": 4, "target_digest": target.digest()})
    for path in ("block", "chain.safetensors"):
        drafter = load_drafter(str(tmp_path / path), target)
        assert drafter.metadata["target_digest"] == target.digest() and max(same(target, tokens, drafter)) < K
    other = loaded(tmp_path, "gemma")
    for path, message in (("block", "takes no dflash drafter: gemma"), ("chain.safetensors", "takes no mtp drafter: gemma")):
        with pytest.raises(BadInput, match=message):
            load_drafter(str(tmp_path / path), other)


def test_the_families_of_the_card_are_those_decoded_here():
    assert {family(build(name)[0]) for name in FAMILIES} == set(TESTED)
