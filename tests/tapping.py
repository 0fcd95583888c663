"""Toy drafters that read the target's layers, with random weights, and the residual stream by hand."""
from dataclasses import replace
from functools import cache

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map_with_path
from mlx_lm.models.base import create_attention_mask
from specdecode_nb.dflash import DFlashConfig, DFlashDrafter, DFlashModel
from specdecode_nb.mtp import MTPDrafter, MTPModel
from specdecode_nb.train import tapped
from specdecode_nb.train.uno import own_windows
from toy import PROMPT, VOCAB, ScriptedDrafter, hybrid, plain

CONFIG = DFlashConfig(hidden_size=64, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                      vocab_size=VOCAB, rms_norm_eps=1e-6, rope_theta=1e4, block_size=16, num_target_layers=4, target_layer_ids=(0, 2, 3),
                      mask_token_id=1)


PREFIX, LENGTH = 6, 40  # of the windows that the toy trains on


@cache
def toy_windows():
    """Eight windows of the toy's own continuations, [8, LENGTH]."""
    tokens = np.random.default_rng(6).integers(2, VOCAB, 900)
    tokens[::30] = 0
    return own_windows(hybrid(), tokens, 8, prefix=PREFIX, length=LENGTH, seed=3, batch=4)


def toy_rows(folder, taps):
    """The tapped rows of :func:`toy_windows`."""
    return tapped.tapped_rows(hybrid(), toy_windows(), taps, folder / "taps.npy", batch=3, say=lambda *_, **__: None)


def drawn(model, seed=3, dtype=mx.float32):
    """``model`` with random matrices large enough that its drafts depend on everything it reads."""
    keys = [mx.random.key(seed)]

    def draw(_, v):
        keys[0], sub = mx.random.split(keys[0])
        return (float(v.ndim == 1) + 0.2 * mx.random.normal(v.shape, key=sub)).astype(dtype)

    model.update(tree_map_with_path(draw, model.parameters()))
    mx.eval(model.parameters())
    return model


def weights(config=CONFIG, **options):
    return drawn(DFlashModel(config), **options)


def make(kind, target=None, depth=15):
    """A drafter of ``kind`` ("dflash" or "mtp") for blocks of up to 16 rows."""
    target = target or hybrid()
    dtype = getattr(mx, target.dtype)
    if kind == "dflash":
        return DFlashDrafter(target, weights(dtype=dtype))
    return MTPDrafter(target, drawn(MTPModel(target, 48), dtype=dtype), depth)


def scripted(kind, target, counts=(1, 0, 10**6, 2), known=None, prompt_tokens=len(PROMPT)):
    """Reads and drafts as its kind does, and then offers what a script says, so that every accepted count occurs."""
    drafter = make(kind, target)
    drafter.own, drafter.script = drafter.draft, ScriptedDrafter(target, known or plain(hybrid()), prompt_tokens, counts, "lookup")
    drafter.draft = lambda cache, history, k, cycle: replace(drafter.own(cache, history, k, cycle),
                                                             tokens=drafter.script.draft(cache, history, k, cycle).tokens)
    return drafter


def residuals(target, ids):
    """The residual stream after each layer, by hand, in one forward."""
    text, cache = target.model.model, target.make_cache()
    x, found = text.embed_tokens(mx.array([ids])), []
    for layer, c in zip(text.layers, cache):
        x = layer(x, mask=None if layer.is_linear else create_attention_mask(x, c), cache=c)
        found.append(x)
    return found, text.embed_tokens.as_linear(text.norm(x))
