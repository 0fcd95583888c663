"""The block-diffusion drafter: taps, what a block sees, a context that follows the committed prefix, identity, files."""
import json
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten, tree_map_with_path
from mlx_lm.models.base import create_attention_mask
from specdecode_nb import decoder
from specdecode_nb.decoder import Session, generate, stream
from specdecode_nb.dflash import DFlashConfig, DFlashDrafter, DFlashModel, embed_and_head
from specdecode_nb.dflash_files import config_file, read_dflash, write_dflash
from specdecode_nb.drafters import NgramDrafter, load_drafter
from specdecode_nb.errors import BadInput
from specdecode_nb.stops import Stops
from specdecode_nb.taps import TappedModel
from specdecode_nb.transaction import Transaction
from toy import PROMPT, VOCAB, ScriptedDrafter, consistent, hybrid, plain

CONFIG = DFlashConfig(hidden_size=64, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                      vocab_size=VOCAB, rms_norm_eps=1e-6, rope_theta=1e4, block_size=16, num_target_layers=4, target_layer_ids=(0, 2, 3),
                      mask_token_id=1)
N = 24


def weights(config=CONFIG, seed=3, dtype=mx.float32):
    """A random drafter with matrices large enough that its drafts depend on everything it reads."""
    model, keys = DFlashModel(config), [mx.random.key(seed)]

    def draw(_, v):
        keys[0], sub = mx.random.split(keys[0])
        return (float(v.ndim == 1) + 0.2 * mx.random.normal(v.shape, key=sub)).astype(dtype)

    model.update(tree_map_with_path(draw, model.parameters()))
    mx.eval(model.parameters())
    return model


def dflash(target=None, **options):
    return DFlashDrafter(target or hybrid(), weights(**options))


class Scripted(DFlashDrafter):
    """Reads and drafts as DFlash does, and then offers what a script says, so that every accepted count occurs."""

    def __init__(self, target, counts=(1, 0, 10**6, 2), known=None, prompt_tokens=len(PROMPT)):
        super().__init__(target, weights())
        self.script = ScriptedDrafter(target, known or plain(hybrid()), prompt_tokens, counts, "lookup")

    def draft(self, cache, history, k, cycle):
        own = super().draft(cache, history, k, cycle)
        return replace(own, tokens=self.script.draft(cache, history, k, cycle).tokens)


# taps


def residuals(target, ids):
    """The residual stream after each layer, by hand, in one forward."""
    text, cache = target.model.model, target.make_cache()
    x, found = text.embed_tokens(mx.array([ids])), []
    for layer, c in zip(text.layers, cache):
        x = layer(x, mask=None if layer.is_linear else create_attention_mask(x, c), cache=c)
        found.append(x)
    return found, text.embed_tokens.as_linear(text.norm(x))


@pytest.mark.parametrize("layers", [(0,), (3,), (0, 2, 3), (1, 2)])
def test_taps_are_the_residual_stream_after_the_layers(layers):
    target = hybrid()
    wanted, logits = residuals(target, PROMPT)
    seen = []
    view, cache = TappedModel(target.model, layers, lambda *a: seen.append(a)), target.make_cache()
    ours = view(mx.array([PROMPT]), cache=cache)
    (caches, start, ids, taps), = seen
    assert caches is cache and start == 0 and ids == PROMPT and len(taps) == len(layers)
    for i, tap in zip(layers, taps):
        assert np.array(tap).tobytes() == np.array(wanted[i]).tobytes(), i
    assert np.array(ours).tobytes() == np.array(logits).tobytes() == np.array(target.model(mx.array([PROMPT]), cache=target.make_cache())).tobytes()
    view(mx.array([[9, 8]]), cache=cache)
    assert seen[1][1:3] == (len(PROMPT), [9, 8]) and seen[1][3][0].shape == (1, 2, 64)


def test_tapping_leaves_the_target_as_it_is():
    target = hybrid()
    kinds, before = [type(layer) for layer in target.model.layers], target.digest()
    view = TappedModel(target.model, (0, 1, 2, 3))
    view.taps(mx.array([PROMPT]), target.make_cache())
    assert [type(layer) for layer in target.model.layers] == kinds and target.digest() == before
    pairs = zip(tree_flatten(target.model.parameters()), tree_flatten(view._model.parameters()), strict=True)
    assert all(a is b for (_, a), (_, b) in pairs)


# what a block sees


def block(model, ids, taps):
    """Logits of the drafter after context rows ``taps`` [1, n, width], by the decoding path."""
    embed, head = embed_and_head(hybrid())
    drafter = DFlashDrafter(hybrid(), model)
    return np.array(head(model(embed(mx.array([ids])), [c.bind(model.features(taps)) for c in drafter._caches])))[0]


def test_a_block_sees_itself_both_ways_and_the_whole_context():
    model, taps = weights(), mx.random.normal((1, 9, 192), key=mx.random.key(1))
    base = block(model, [5, 1, 1, 1], taps)
    assert base.shape == (3, VOCAB)
    assert (base != block(model, [5, 1, 1, 7], taps)).any(axis=1).all()  # a later row reaches the earlier ones
    assert (base != block(model, [6, 1, 1, 1], taps)).any(axis=1).all()
    for row in (0, 8):
        changed = mx.array(np.where(np.arange(9)[None, :, None] == row, 2.0, np.array(taps)).astype(np.float32))
        assert (base != block(model, [5, 1, 1, 1], changed)).any(axis=1).all()


def test_context_rows_do_not_see_each_other():
    """Keys and values of a context row are a function of that row and its position alone."""
    model, taps = weights(), np.random.default_rng(0).normal(size=(1, 6, 192)).astype(np.float32)
    other = taps.copy()
    other[:, [0, 1, 3, 4, 5]] += 1
    attention, pair = model.layers[0].self_attn, []
    for rows in (taps, other):
        pair.append([np.array(a)[:, :, 2] for a in attention.keys_values(model.features(mx.array(rows)), 0)])
    assert all(np.array_equal(a, b) for a, b in zip(*pair))


def by_hand(model, target, history, k):
    """The block in plain numpy-like steps, one head at a time, over the target's residuals of ``history[:-1]``."""
    c, past = model.config, history[:-1]
    embed, head = embed_and_head(target)
    context = np.zeros((0, 64), np.float32)
    if past:
        taps = np.concatenate([np.array(residuals(target, past)[0][i])[0] for i in c.target_layer_ids], axis=-1)
        rms = lambda x, w: x / np.sqrt((x**2).mean(-1, keepdims=True) + c.rms_norm_eps) * np.array(w)  # noqa: E731
        context = rms(taps @ np.array(model.fc.weight).T, model.hidden_norm.weight)
    rms = lambda x, w: x / np.sqrt((x**2).mean(-1, keepdims=True) + c.rms_norm_eps) * np.array(w)  # noqa: E731
    x = np.array(embed(mx.array([history[-1]] + [c.mask_token_id] * (k - 1))))
    frequency = c.rope_theta ** (-np.arange(0, c.head_dim, 2) / c.head_dim)

    def rope(v, first):
        angle = (first + np.arange(len(v)))[:, None] * frequency
        a, b = v[:, : c.head_dim // 2], v[:, c.head_dim // 2 :]
        return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], axis=1)

    for layer in model.layers:
        a, y = layer.self_attn, rms(x, layer.input_layernorm.weight)
        both, outs = np.concatenate([context, y]), []
        for h in range(c.num_attention_heads):
            g = h // (c.num_attention_heads // c.num_key_value_heads)
            cut, own = slice(g * c.head_dim, (g + 1) * c.head_dim), slice(h * c.head_dim, (h + 1) * c.head_dim)
            q = rope(rms((y @ np.array(a.q_proj.weight).T)[:, own], a.q_norm.weight), len(past))
            keys = rope(rms((both @ np.array(a.k_proj.weight).T)[:, cut], a.k_norm.weight), 0)
            scores = q @ keys.T / np.sqrt(c.head_dim)
            p = np.exp(scores - scores.max(1, keepdims=True))
            outs.append(p / p.sum(1, keepdims=True) @ (both @ np.array(a.v_proj.weight).T)[:, cut])
        x = x + np.concatenate(outs, axis=1) @ np.array(a.o_proj.weight).T
        y, m = rms(x, layer.post_attention_layernorm.weight), layer.mlp
        gate = y @ np.array(m.gate_proj.weight).T
        x = x + (gate / (1 + np.exp(-gate)) * (y @ np.array(m.up_proj.weight).T)) @ np.array(m.down_proj.weight).T
    return np.array(head(mx.array(rms(x, model.norm.weight).astype(np.float32))))[1:]


@pytest.mark.parametrize("history", [[77], PROMPT, PROMPT * 3])
@pytest.mark.parametrize("k", (2, 5, 16))
def test_the_draft_forward_by_hand(history, k):
    target, drafter = hybrid(), dflash()
    session = Session(target)
    session.feed(history, drafter.verifier)
    draft = drafter.draft(session.cache, history, k, 1)
    logits = by_hand(drafter.model, target, history, k)
    top = np.sort(logits, axis=1)
    assert (top[:, -1] - top[:, -2]).min() > 1e-3  # no ties
    assert draft.tokens == logits.argmax(1).tolist() and draft.exact == 0 and not draft.seed_kept
    assert draft.forwards == 1 and draft.rows == k


# the context follows the committed prefix


def follows(drafter, session, k=6):
    """Context and draft are those of a drafter that has just read the session's tokens from the start."""
    fresh, live = dflash(session.target), drafter.draft(session.cache, session.tokens, k, 1)
    cold = fresh.draft(session.cache, session.tokens, k, 1)
    wanted = DFlashDrafter.draft(drafter, session.cache, session.tokens, k, 1).tokens if isinstance(drafter, Scripted) else live.tokens
    past = tuple(session.tokens[:-1])
    assert drafter.context_ids == fresh.context_ids == past
    assert all(c.offset == len(past) for c in drafter._caches + fresh._caches)
    for ours, theirs in zip(drafter._caches, fresh._caches):
        for a, b in zip(ours.keys_and_values() if past else (), theirs.keys_and_values() if past else ()):
            assert np.array(a).tobytes() == np.array(b).tobytes()
    return wanted == cold.tokens and live.forwards


@pytest.mark.parametrize("k", range(1, 17))
def test_identity_for_every_block_size(k):
    target = hybrid()
    for drafter in (dflash(), Scripted(target)):
        result = generate(target, PROMPT, drafter, k=k, max_tokens=N, ignore_eos=True)
        assert result.tokens == plain(target)[:N] and consistent(result.session, len(PROMPT) - 1)
        assert follows(drafter, result.session) == 1


@pytest.mark.parametrize("scheme", ("tape", "per_token_states"))
@pytest.mark.parametrize("other", [dict(seed=1, value_heads=2), dict(seed=2, dtype="bfloat16"), dict(seed=3, value_heads=6)])
def test_identity_on_other_targets(other, scheme):
    target = hybrid(**other)
    drafter = dflash(target, dtype=getattr(mx, target.dtype))
    result = generate(target, PROMPT, drafter, k=5, max_tokens=N, ignore_eos=True, scheme=scheme)
    assert result.tokens == plain(target)[:N] and consistent(result.session, len(PROMPT) - 1)


@pytest.mark.parametrize("k", (2, 5, 8))
def test_every_accepted_count(k):
    target = hybrid()
    for count in range(k):
        drafter = Scripted(target, (count,))
        result = generate(target, PROMPT, drafter, k=k, max_tokens=3 * (count + 1) + k, ignore_eos=True)
        assert result.tokens == plain(target)[: len(result.tokens)]
        assert result.stats.accepted_per_cycle[:3] == [count] * 3 and result.stats.committed_per_cycle[:3] == [count + 1] * 3
        assert follows(drafter, result.session) == 1


def test_accounting():
    """One draft forward of k rows and one verify forward of k rows a cycle; nothing is run again."""
    target, k = hybrid(), 5
    s = generate(target, PROMPT, Scripted(target, (2,)), k=k, max_tokens=12, ignore_eos=True).stats
    assert s.committed_per_cycle[:3] == [3, 3, 3] and s.offered_per_cycle[:2] == [k - 1] * 2
    widths = [n + 1 for n in s.offered_per_cycle]
    assert s.forwards == 1 + s.cycles + sum(w > 1 for w in widths) and s.forward_tokens == len(PROMPT) - 1 + sum(w + (w if w > 1 else 0) for w in widths)


def test_the_draft_cache_is_as_long_as_the_committed_prefix_in_every_cycle():
    target, lengths = hybrid(), []

    class Watched(Scripted):
        def draft(self, cache, history, k, cycle):
            made = super().draft(cache, history, k, cycle)
            if k > 1:
                lengths.append((len(history) - 1, len(self.context_ids), cache[0].offset, *(c.offset for c in self._caches)))
                assert list(self.context_ids) == history[:-1]
            return made

    generate(target, PROMPT, Watched(target), k=6, max_tokens=40, ignore_eos=True)
    assert len(lengths) > 8 and all(len(set(row)) == 1 for row in lengths)


def test_a_long_prompt_becomes_keys_and_values_in_parts(monkeypatch):
    target, prompt = hybrid(), [int(i) for i in np.random.default_rng(1).integers(2, VOCAB, 23)]
    monkeypatch.setattr(decoder, "PREFILL_ROWS", 4)
    drafter = dflash()
    session = Session(target)
    session.feed(prompt, drafter.verifier)
    assert len(drafter.context_ids) == 20 and len(drafter._pending[1]) == 2
    assert follows(drafter, session) == 1
    assert generate(target, prompt, drafter, k=4, max_tokens=9, ignore_eos=True).tokens == plain(target, prompt, 9)


@pytest.mark.parametrize("prompt", ([77], PROMPT))
def test_a_session_that_goes_on(prompt):
    target, session = hybrid(), Session(hybrid())
    drafter = dflash()
    for _ in range(3):
        result = generate(target, prompt, drafter, k=4, max_tokens=7, ignore_eos=True, session=session)
        assert result.tokens == plain(target, session.tokens[:-7], 7) and follows(drafter, session) == 1


@pytest.mark.parametrize("between", [None, NgramDrafter(1)])
def test_rows_decoded_without_the_drafter_are_read_again(between):
    """The one case with a second forward over the past, and the draft says so."""
    target, session, drafter = hybrid(), Session(hybrid()), dflash()
    generate(target, PROMPT, drafter, k=4, max_tokens=7, ignore_eos=True, session=session)
    generate(target, [65], between, k=4, max_tokens=7, ignore_eos=True, session=session)
    held = len(session.tokens)
    draft = drafter.draft(session.cache, session.tokens, 4, 1)
    assert draft.forwards == 2 and draft.rows == 4 + held - 1 and follows(drafter, session) == 1
    assert consistent(session)


def test_one_drafter_and_two_sessions_in_turns():
    target, drafter = hybrid(), dflash()
    one = stream(target, PROMPT, drafter, k=4, max_tokens=12, ignore_eos=True)
    two = stream(target, PROMPT[:-1] + [77], drafter, k=4, max_tokens=12, ignore_eos=True)
    pairs = [(a.token, b.token) for a, b in zip(one, two)]
    assert [a for a, _ in pairs] == plain(target)[:12] and [b for _, b in pairs] == plain(target, PROMPT[:-1] + [77], 12)


def test_rows_of_another_session_are_not_taken_for_this_one_s():
    """Even under the same ids: what a context holds was read in the session that it serves."""
    drafter, a, b = dflash(), Session(hybrid()), Session(hybrid())
    a.feed(PROMPT, drafter.verifier)
    assert follows(drafter, a) == 1
    b.feed(PROMPT)
    assert follows(drafter, b) == 2 and follows(drafter, b) == 1 and follows(drafter, a) == 2


@pytest.mark.parametrize("late", (False, True))
@pytest.mark.parametrize("where", ("verifier", "draft", "admit", "commit"))
def test_a_failure_anywhere(where, late, monkeypatch):
    """After it the session is at a committed prefix, goes on, and so does the context."""
    target = hybrid()

    def failing(real, at):
        calls = [0]

        def wrapped(*args, **kwargs):
            calls[0] += 1
            if calls[0] == at and not late:
                raise ValueError("injected")
            result = real(*args, **kwargs)
            if calls[0] == at:
                raise ValueError("injected")
            return result

        return wrapped

    for at in (1, 2, 4):
        session, drafter = Session(target), Scripted(target)
        with monkeypatch.context() as patch:
            owner, name = {"verifier": (drafter, "verifier"), "draft": (drafter, "draft"), "admit": (Stops, "admit"),
                           "commit": (Transaction, "commit")}[where]
            patch.setattr(owner, name, failing(getattr(owner, name), at))
            with pytest.raises(ValueError, match="injected"):
                generate(target, PROMPT, drafter, k=4, max_tokens=20, ignore_eos=True, session=session)
        assert consistent(session)
        if session.tokens:
            assert follows(drafter, session) >= 1
        done = list(session.tokens)
        other = dflash() if at == 2 else drafter
        other.script = ScriptedDrafter(target, [3] * 40, len(done) + 2, (0,), "lookup")
        result = generate(target, [65, 66], other, k=4, max_tokens=6, ignore_eos=True, session=session)
        assert result.tokens == plain(target, [*done, 65, 66], 6) and consistent(session) and follows(other, session) == 1


def test_a_failure_inside_the_draft_forward(monkeypatch):
    target, drafter, session = hybrid(), dflash(), Session(hybrid())
    generate(target, PROMPT, drafter, k=4, max_tokens=5, ignore_eos=True, session=session)
    for name in ("_head", "_embed"):
        with monkeypatch.context() as patch:
            patch.setattr(drafter, name, lambda x: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                generate(target, [4], drafter, k=4, max_tokens=5, ignore_eos=True, session=session)
        assert follows(drafter, session) == 1 and consistent(session)


@pytest.mark.parametrize("stop_after", range(1, 9))
def test_stop_and_closed_stream(stop_after):
    target = hybrid()
    drafter, session = Scripted(target), Session(target)
    events = stream(target, PROMPT, drafter, k=5, max_tokens=20, ignore_eos=True, session=session)
    for _ in range(stop_after):
        next(events)
    events.close()
    assert consistent(session) and follows(drafter, session) == 1
    eos = replace(target, tokenizer=type(target.tokenizer)((plain(target)[stop_after],)))
    ended = Scripted(eos)
    result = generate(eos, PROMPT, ended, k=5, max_tokens=20)
    assert result.finish_reason == "stop" and result.tokens == plain(target)[: len(result.tokens)] and follows(ended, result.session) == 1


def test_plain_decoding_and_other_drafters_are_not_tapped(monkeypatch):
    monkeypatch.setattr(TappedModel, "taps", lambda *a: 1 / 0)
    for drafter in (None, NgramDrafter(1)):
        generate(hybrid(), PROMPT, drafter, max_tokens=4, ignore_eos=True)
    with pytest.raises(ZeroDivisionError):
        generate(hybrid(), PROMPT, dflash(), max_tokens=4, ignore_eos=True)


def test_blocks_wider_than_trained_are_refused():
    target, drafter = hybrid(), dflash(config=replace(CONFIG, block_size=6))
    assert generate(target, PROMPT, drafter, k=6, max_tokens=9, ignore_eos=True).tokens == plain(target)[:9]
    with pytest.raises(BadInput, match="at most 6"):
        generate(target, PROMPT, drafter, k=7, max_tokens=9)


# files


@pytest.fixture
def folder(tmp_path):
    write_dflash(tmp_path / "mine", weights(), {"target_digest": hybrid().digest()})
    return tmp_path / "mine"


def edit(folder, change):
    found = json.loads((folder / "config.json").read_text())
    change(found)
    (folder / "config.json").write_text(json.dumps(found))


def rewrite(folder, change):
    tensors = mx.load(str(folder / "model.safetensors"))
    tensors = change({k: mx.array(np.array(v.astype(mx.float32))) for k, v in tensors.items()})
    mx.save_safetensors(str(folder / "model.safetensors"), tensors)


def test_a_drafter_comes_back_as_it_was_written(folder):
    drafter = load_drafter(str(folder), hybrid())
    assert drafter.name == "mine" and drafter.model.config == CONFIG and drafter.block_size == 16
    for (name, ours), (_, theirs) in zip(tree_flatten(drafter.model.parameters()), tree_flatten(weights().parameters()), strict=True):
        assert np.array_equal(np.array(ours), np.array(theirs.astype(mx.bfloat16).astype(mx.float32))), name
    result = generate(hybrid(), PROMPT, drafter, k=5, max_tokens=9, ignore_eos=True)
    assert result.tokens == plain(hybrid())[:9]


def test_published_names(folder):
    names = set(mx.load(str(folder / "model.safetensors")))
    per_layer = {"input_layernorm.weight", "post_attention_layernorm.weight", *(f"mlp.{n}_proj.weight" for n in ("gate", "up", "down")),
                 *(f"self_attn.{n}.weight" for n in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"))}
    assert names == {"fc.weight", "hidden_norm.weight", "norm.weight"} | {f"layers.{i}.{n}" for i in range(2) for n in per_layer}
    found = json.loads((folder / "config.json").read_text())
    assert found["dflash_config"] == {"target_layer_ids": [0, 2, 3], "mask_token_id": 1}
    assert {"hidden_size", "num_hidden_layers", "rope_theta", "block_size", "num_target_layers", "layer_types"} <= set(found)


REQUIRED = ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size",
            "rms_norm_eps", "rope_theta", "block_size", "num_target_layers", "target_layer_ids", "mask_token_id"]


@pytest.mark.parametrize("key", REQUIRED)
def test_a_missing_key_is_named_and_never_guessed(folder, key):
    edit(folder, lambda f: (f.pop(key, None), f["dflash_config"].pop(key, None)))
    with pytest.raises(BadInput, match=key):
        load_drafter(str(folder), hybrid())


@pytest.mark.parametrize("key", REQUIRED)
@pytest.mark.parametrize("value", ["8", -1, 0.5, True, [], None])
def test_a_value_of_the_wrong_kind(folder, key, value):
    if (key, value) in [("rope_theta", 0.5), ("rms_norm_eps", 0.5)]:
        value = float("nan")
    edit(folder, lambda f: (f["dflash_config"] if key in f["dflash_config"] else f).update({key: value}))
    with pytest.raises(BadInput, match=key):
        load_drafter(str(folder), hybrid())


@pytest.mark.parametrize("change, message", [
    (lambda f: f["dflash_config"].update(target_layer_ids=[2, 0, 3]), "ascend"),
    (lambda f: f["dflash_config"].update(target_layer_ids=[0, 0, 3]), "ascend"),
    (lambda f: f["dflash_config"].update(target_layer_ids=[0, 2, 4]), "taps layer 4"),
    (lambda f: f["dflash_config"].update(target_layer_ids=[0, 2]), "fc.weight"),
    (lambda f: f["dflash_config"].update(mask_token_id=VOCAB), "outside the vocabulary"),
    (lambda f: f["dflash_config"].update(block_size=8), "block_size twice"),
    (lambda f: f["dflash_config"].update(causal=True), "causal"),
    (lambda f: f["dflash_config"].update(draft_window_size=64), "draft_window_size"),
    (lambda f: f.pop("dflash_config"), "no dflash_config"),
    (lambda f: f.update(hidden_size=32), "hidden_size 32"),
    (lambda f: f.update(vocab_size=300), "vocab_size 300"),
    (lambda f: f.update(num_target_layers=8), "num_target_layers 8"),
    (lambda f: f.update(num_hidden_layers=3), "layers.2"),
    (lambda f: f.update(intermediate_size=50), "shape"),
    (lambda f: f.update(num_key_value_heads=3), "divide"),
    (lambda f: f.update(layer_types=["full_attention", "sliding_attention"]), "full_attention"),
    (lambda f: f.update(rope_scaling={"type": "yarn", "factor": 4}), "rope_scaling"),
    (lambda f: f.update(rope_parameters={"rope_type": "yarn", "rope_theta": 1e4}), "rope_parameters"),
    (lambda f: f.update(rope_parameters={"rope_theta": 1e6}), "rope_theta"),
    (lambda f: f.update(attention_bias=True), "attention_bias"),
])
def test_a_pair_that_does_not_fit_is_refused(folder, change, message):
    edit(folder, change)
    with pytest.raises(BadInput, match=message):
        load_drafter(str(folder), hybrid())


def test_keys_may_stand_where_other_releases_put_them(folder):
    def move(f):
        f["dflash_config"] |= {"block_size": f.pop("block_size"), "num_target_layers": f["num_target_layers"], "causal": False, "runtime_block_size": 4}
        f["rope_parameters"] = {"rope_type": "default", "rope_theta": f.pop("rope_theta")}

    edit(folder, move)
    assert load_drafter(str(folder), hybrid()).model.config == CONFIG


def test_extra_embedding_head_and_prefix_are_left_aside(folder):
    extra = {"embed_tokens.weight": mx.full((VOCAB, 64), 7.0), "lm_head.weight": mx.full((VOCAB, 64), 7.0)}
    before = generate(hybrid(), PROMPT, load_drafter(str(folder), hybrid()), k=6, max_tokens=9, ignore_eos=True)
    wanted = load_drafter(str(folder), hybrid()).draft(before.session.cache, before.session.tokens, 8, 1).tokens
    rewrite(folder, lambda t: {f"model.{k}": v for k, v in (t | extra).items()})
    drafter = load_drafter(str(folder), hybrid())
    assert drafter.draft(before.session.cache, before.session.tokens, 8, 1).tokens == wanted


@pytest.mark.parametrize("change, message", [
    (lambda t: t | {"d2t": mx.zeros(9)}, "d2t"),
    (lambda t: t | {"lm_head.weight": mx.zeros((32, 64))}, "another vocabulary"),
    (lambda t: t | {"layers.0.self_attn.q_proj.bias": mx.zeros(64)}, "q_proj.bias"),
    (lambda t: {k: v for k, v in t.items() if k != "hidden_norm.weight"}, "hidden_norm"),
    (lambda t: t | {"fc.weight": mx.zeros((64, 128))}, "fc.weight"),
    (lambda t: t | {"norm.weight": mx.full(64, float("nan"))}, "not finite"),
    (lambda t: t | {"model.norm.weight": t["norm.weight"]}, "prefix"),
])
def test_tensors_are_strict(folder, change, message):
    rewrite(folder, change)
    with pytest.raises(BadInput, match=message):
        load_drafter(str(folder), hybrid())


def test_broken_files_and_other_targets(folder):
    with pytest.raises(BadInput, match="another target"):
        load_drafter(str(folder), hybrid(seed=1))
    with pytest.raises(BadInput, match="no dflash drafter for target 'toy0'"):
        load_drafter("dflash", hybrid())
    with pytest.raises(BadInput, match="does not take"):
        load_drafter(str(folder), hybrid(), order=2)
    with pytest.raises(BadInput, match="no layers to tap"):
        read_dflash(folder, replace(hybrid(), model=object()))
    (folder / "model.safetensors").write_bytes(b"short")
    with pytest.raises(BadInput, match="model.safetensors"):
        load_drafter(str(folder), hybrid())
    (folder / "model.safetensors").unlink()
    with pytest.raises(BadInput, match="model.safetensors"):
        load_drafter(str(folder), hybrid())
    for text in ("{", "[]", '"x"'):
        (folder / "config.json").write_text(text)
        with pytest.raises(BadInput, match="config.json"):
            load_drafter(str(folder), hybrid())


def test_the_card_of_a_configuration():
    assert config_file(CONFIG)["dflash_config"]["target_layer_ids"] == [0, 2, 3] and "target_layer_ids" not in config_file(CONFIG)
