"""The block-diffusion drafter: what a block sees, its arithmetic, its files."""
import json
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from specdecode_nb import decoder
from specdecode_nb.decoder import Session, generate
from specdecode_nb.dflash import DFlashDrafter
from specdecode_nb.dflash_files import config_file, read_dflash, write_dflash
from specdecode_nb.drafters import load_drafter
from specdecode_nb.errors import BadInput
from specdecode_nb.taps import embed_and_head
from tapping import CONFIG, residuals, scripted, weights
from toy import PROMPT, VOCAB, hybrid, plain


def dflash(target=None, **options):
    return DFlashDrafter(target or hybrid(), weights(**options))


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
        context = rms(taps @ np.array(model.fc.weight).T, model.hidden_norm.weight)[-(c.draft_window_size or len(past)) :]
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
            keys = rope(rms((both @ np.array(a.k_proj.weight).T)[:, cut], a.k_norm.weight), len(past) - len(context))
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
@pytest.mark.parametrize("window", (None, 3, 5))
def test_the_draft_forward_by_hand(history, k, window):
    target, drafter = hybrid(), dflash(config=replace(CONFIG, draft_window_size=window))
    session = Session(target)
    session.feed(history, drafter.verifier)
    draft = drafter.draft(session.cache, history, k, 1)
    logits = by_hand(drafter.model, target, history, k)
    chosen = logits[np.arange(k - 1), draft.tokens]
    assert (logits.max(1) - chosen).max() < 1e-4 and np.ptp(logits, axis=1).min() > 1  # the best but for rounding
    assert draft.exact == 0 and not draft.seed_kept
    assert draft.forwards == 1 and draft.rows == k


WINDOWED = replace(CONFIG, draft_window_size=5)


def as_a_fresh_one(drafter, session):
    """The draft is that of a drafter which has just read the session from its start; how many forwards it took to get there."""
    cold = dflash(config=WINDOWED).draft(session.cache, session.tokens, 6, 1)
    live = drafter.draft(session.cache, session.tokens, 6, 1)
    assert live.tokens == cold.tokens and drafter.context_ids == tuple(session.tokens[:-1])
    for cache in drafter._caches:
        assert cache.end == len(session.tokens) - 1 and min(5, cache.end) <= cache.offset <= 10
    return live.forwards


@pytest.mark.parametrize("k", (2, 6, 16))
def test_a_window_follows_the_committed_prefix(k):
    target, drafter = hybrid(), dflash(config=WINDOWED)
    drafter.script, drafter.own = scripted("dflash", target).script, drafter.draft
    drafter.draft = lambda *a: replace(drafter.own(*a), tokens=drafter.script.draft(*a).tokens)
    result = generate(target, PROMPT, drafter, k=k, max_tokens=40, ignore_eos=True)
    assert result.tokens == plain(target)[:40]
    drafter.draft = drafter.own
    assert as_a_fresh_one(drafter, result.session) == 1


def test_rows_out_of_the_window_are_never_computed(monkeypatch):
    target, prompt = hybrid(), [int(i) for i in np.random.default_rng(1).integers(2, VOCAB, 23)]
    monkeypatch.setattr(decoder, "PREFILL_ROWS", 4)
    drafter, session, read = dflash(config=WINDOWED), Session(target), []
    hold = drafter._hold
    drafter._hold = lambda ids, taps: (read.append(len(ids)), hold(ids, taps))[1]
    session.feed(prompt, drafter.verifier)  # 22 rows in forwards of 4; the last of 2 is still to be read
    assert len(drafter.context_ids) == 20 and sum(read) == 7  # of each earlier one, what lies in a window of 5 before the next one's end
    assert drafter._caches[0].first == 17 and as_a_fresh_one(drafter, session) == 1


def test_going_back_reads_again_only_what_the_window_lacks():
    drafter, session = dflash(config=WINDOWED), Session(hybrid())
    session.feed(PROMPT * 4)
    assert as_a_fresh_one(drafter, session) == 2  # its first sight of the session
    forwards = []
    for length in (len(PROMPT) * 4 - 2, len(PROMPT) * 4 - 5, 3, 2):
        del session.tokens[length:]  # as after a cycle that was undone
        forwards.append(as_a_fresh_one(drafter, session))
    assert forwards == [2, 2, 2, 1]


@pytest.mark.parametrize("length", (3, 23))
def test_a_draft_broken_off_does_not_spoil_the_next(length, monkeypatch):
    """After Ctrl-C a window may have dropped rows of ids that were never noted as held."""
    drafter, session = dflash(config=WINDOWED), Session(hybrid())
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(drafter, "_head", lambda *_: 1 / 0)
        generate(hybrid(), plain(hybrid())[:length], drafter, k=4, max_tokens=5, session=session)
    assert len(session.tokens) == length and as_a_fresh_one(drafter, session) == 1  # from the rows of the latest forward


@pytest.mark.parametrize("window", (2**31 - 1, 2**63 - 1))
def test_a_window_wider_than_any_context_is_none(window):
    history = plain(hybrid())[:9]
    drafts = [dflash(config=replace(CONFIG, draft_window_size=w)).draft(hybrid().make_cache(), history, 6, 1).tokens for w in (None, window)]
    assert drafts[0] == drafts[1]


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
    (lambda f: f["dflash_config"].update(draft_window_size=0), "draft_window_size"),
    (lambda f: (f.update(draft_window_size=9), f["dflash_config"].update(draft_window_size=8)), "draft_window_size twice"),
    (lambda f: f["dflash_config"].update(layers_to_skip=1), "layers_to_skip"),
    (lambda f: f.pop("dflash_config"), "no dflash_config"),
    (lambda f: f.update(hidden_size=32), "hidden_size 32"),
    (lambda f: f.update(vocab_size=300), "vocab_size 300"),
    (lambda f: f.update(num_target_layers=8), "num_target_layers 8"),
    (lambda f: f.update(num_hidden_layers=3), "layers.2"),
    (lambda f: f.update(intermediate_size=50), "shape"),
    (lambda f: f.update(num_key_value_heads=3), "divide"),
    (lambda f: f.update(layer_types=["full_attention", "sliding_attention"]), "full_attention"),
    (lambda f: f.update(layer_types=5), "full_attention"),
    (lambda f: f.update(head_dim=15), "must be even"),
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
    with pytest.raises(BadInput, match="takes no dflash drafter"):
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


def test_the_card_of_a_configuration(tmp_path):
    write_dflash(tmp_path / "windowed", weights(WINDOWED), {})
    assert load_drafter(str(tmp_path / "windowed"), hybrid()).window == 5
    assert config_file(CONFIG)["dflash_config"]["target_layer_ids"] == [0, 2, 3] and "target_layer_ids" not in config_file(CONFIG)
