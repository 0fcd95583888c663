"""A small target whose every step is known: what the museum of faults and the tests decode with, and the oracle of its states.

``hybrid`` is a random model of the real class (three Gated DeltaNet layers to one attention layer), ``scripted`` answers
from a written text, ``ScriptedDrafter`` reaches any accepted count it is told to.
"""
from __future__ import annotations

from functools import lru_cache

import numpy as np

from ..backend import mx  # isort: skip

from mlx.utils import tree_map
from mlx_lm.models import qwen3_5
from mlx_lm.models.cache import KVCache

from ..decoder import Session
from ..drafters import Draft
from ..gdn import RecurrentCache
from ..targets import Target, take_over
from ..transaction import Transaction

VOCAB = 256
PROMPT = [5, 9, 200, 33, 7, 8, 9]


class ByteTokenizer:
    """Id b is byte b; ids 0 and 1 are special and have no text. A character of n bytes takes n tokens."""

    def __init__(self, eos=(0,)):
        self.eos_token_ids = list(eos)

    def encode(self, text, add_special_tokens=False):
        return list(text.encode())

    def get_vocab(self):
        return {f"<{i:02x}>": i for i in range(VOCAB)}

    def decode(self, ids, skip_special_tokens=True, clean_up_tokenization_spaces=False):
        return bytes(i for i in ids if i > 1).decode("utf-8", "replace")


def config(value_heads: int = 4, key_heads: int = 2, layers: int = 4, vocab: int = VOCAB) -> dict:
    return dict(
        model_type="qwen3_5", hidden_size=64, intermediate_size=96, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-6, vocab_size=vocab, max_position_embeddings=4096,
        linear_num_value_heads=value_heads, linear_num_key_heads=key_heads, linear_key_head_dim=16, linear_value_head_dim=16,
        linear_conv_kernel_dim=4, tie_word_embeddings=True, full_attention_interval=4, eos_token_id=0,
        rope_parameters=dict(type="default", rope_theta=100000.0, partial_rotary_factor=0.5))


def stock(seed: int = 0, dtype=mx.float32, **shape):
    """mlx-lm's own model, untouched. Matrices are scaled up so that the logits have gaps."""
    mx.random.seed(seed)
    model = qwen3_5.Model(qwen3_5.ModelArgs.from_dict(config(**shape)))
    model.update(tree_map(lambda v: (v * 3 if v.ndim == 2 else v).astype(dtype), model.parameters()))
    for layer in model.layers:
        if layer.is_linear:  # slow decays, so that the state remembers
            layer.linear_attn.A_log = mx.log(mx.array(np.geomspace(0.002, 0.5, layer.linear_attn.num_v_heads))).astype(dtype)
    model.eval()
    mx.eval(model.parameters())
    return model


@lru_cache(maxsize=None)
def hybrid(seed: int = 0, dtype: str = "float32", value_heads: int = 4, key_heads: int = 2, eos=(0,)) -> Target:
    model = stock(seed, getattr(mx, dtype), value_heads=value_heads, key_heads=key_heads)
    take_over(model)
    return Target(model, ByteTokenizer(eos), f"toy{seed}", dtype, 4096, VOCAB)


def reference_cache(target: Target, ids, prefill: int) -> list:
    """Caches after ``ids``: the first ``prefill`` of them in one forward, then one row at a time."""
    cache = target.make_cache()
    if prefill:
        target.model(mx.array([ids[:prefill]]), cache=cache)
    for i in ids[prefill:]:
        target.model(mx.array([[i]]), cache=cache)
        mx.eval([c.state for c in cache])
    return cache


def bits(cache) -> list[np.ndarray]:
    """Everything that a cache stands for: window, state, and keys and values below the offset."""
    found = []
    for c in cache:
        if isinstance(c, KVCache):
            found += [np.array(c.offset)] + ([np.array(a[..., : c.offset, :].astype(mx.float32)) for a in (c.keys, c.values)]
                                             if c.offset else [])
        else:
            found += [np.array(getattr(c, "offset", 0))] + [np.array(a.astype(mx.float32)) for a in c.cache if a is not None]
    return found


def equal(x, y) -> bool:
    return len(x) == len(y) and all(p.shape == q.shape and p.tobytes() == q.tobytes() for p, q in zip(x, y))


def same_bits(a, b) -> bool:
    return equal(bits(a), bits(b))


def clean(cache) -> bool:
    """No recording, no open transaction, nothing sealed."""
    return all(getattr(c, "tape", None) is None and getattr(c, "transaction", None) is None and not getattr(c, "sealed", False)
               for c in cache)


class ScriptedDrafter:
    """Knows the plain continuation and offers it with a mistake after as many right tokens as the script says.

    Args:
        known: the ids after the prompt, as plain decoding gives them.
        prompt_tokens: length of everything before ``known``.
        counts: accepted count of each cycle, the last repeated; a count above the block means all of it.
        form: "lookup" offers guesses alone; "published" puts the exact token first; "kept" also leaves the seed's row in
            the caches, as the Uno drafter does.
        wrong: the id of every mistake; by default the next id after the right one.
    """

    name = "scripted"

    def __init__(self, target: Target, known, prompt_tokens: int, counts=(10**6,), form: str = "kept", wrong: int | None = None):
        self.target, self.known, self.prompt, self.counts, self.form, self.wrong = target, known, prompt_tokens, counts, form, wrong

    def draft(self, cache, history, k, cycle):
        at = len(history) - self.prompt
        exact = int(self.form != "lookup")
        right = list(self.known[at : at + k - 1 + exact])
        good = exact + self.counts[min(cycle, len(self.counts)) - 1]
        tokens = right[:good] + [(t + 1) % VOCAB if self.wrong is None else self.wrong for t in right[good:]]
        if self.form != "kept":
            return Draft(tokens, exact=exact)
        with Transaction(cache) as tx:
            row = self.target.model(mx.array([[history[-1]] + [7] * (k - 1)]), cache=cache)[0, 0]
            first = mx.argmax(row).item()
            tx.commit(1)
        return Draft([first] + tokens[1:], exact=1, seed_kept=True, forwards=1, rows=k, seed_logits=row)


class ScriptedModel:
    """Answers ``script[p + 1]`` at position p while every id so far is the script's, and id 2 otherwise.

    Its one cache is a KVCache that holds the ids themselves, so the caches show what has been committed.
    """

    def __init__(self, script):
        self.script, self.calls = list(script), 0

    def make_cache(self):
        return [KVCache()]

    def __call__(self, ids, cache=None):
        self.calls += 1
        held, _ = cache[0].update_and_fetch(ids[:, None, :, None].astype(mx.float32), ids[:, None, :, None].astype(mx.float32))
        seen = np.array(held[0, 0, :, 0]).astype(int).tolist()
        answers = [self.script[p + 1] if p + 1 < len(self.script) and seen[: p + 1] == self.script[: p + 1] else 2
                   for p in range(len(seen) - ids.shape[1], len(seen))]
        return (mx.arange(VOCAB)[None, None] == mx.array(answers)[None, :, None]).astype(mx.float32)


def scripted(text, prompt=(65,), eos=(0,)) -> tuple[Target, list[int], list[int]]:
    """A target that continues ``prompt`` with ``text`` (str, bytes or ids): target, prompt ids, continuation ids."""
    ids = list(text.encode() if isinstance(text, str) else text)
    return Target(ScriptedModel([*prompt, *ids]), ByteTokenizer(eos), "scripted", "float32", 4096, VOCAB), list(prompt), ids


def held(session: Session) -> list[int]:
    """The ids in the cache of a scripted target."""
    cache = session.cache[0]
    return [] if cache.keys is None else np.array(cache.keys[0, 0, : cache.offset, 0]).astype(int).tolist()


def recurrent(cache) -> list[RecurrentCache]:
    return [c for c in cache if isinstance(c, RecurrentCache)]
