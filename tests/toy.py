"""What tests share: the toy of :mod:`specdecode_nb.protocols.toy`, memoised plain runs and oracles, a random adapter."""
from __future__ import annotations

import mlx.core as mx
from mlx.utils import tree_map_with_path
from specdecode_nb import lora
from specdecode_nb.decoder import Session, generate
from specdecode_nb.drafters import UnoDrafter
from specdecode_nb.protocols.toy import (PROMPT, VOCAB, ByteTokenizer, ScriptedDrafter, ScriptedModel, bits, clean, config, equal, held, hybrid, recurrent,
                                         reference_cache, same_bits, scripted, stock)
from specdecode_nb.targets import Target

__all__ = ["PROMPT", "VOCAB", "ByteTokenizer", "ScriptedDrafter", "ScriptedModel", "adapter", "bits", "clean", "config", "consistent", "equal", "held", "hybrid",
           "plain", "recurrent", "reference_cache", "same_bits", "scripted", "stock", "uno"]

_MEMO: dict = {}


def _once(target: Target, key: tuple, make):
    """``make()``, computed once per target and key; the target is kept alive, so that its id is not used again."""
    if (id(target), *key) not in _MEMO:
        _MEMO[id(target), *key] = target, make()
    return _MEMO[id(target), *key][1]


def plain(target: Target, prompt=tuple(PROMPT), n: int = 80) -> list[int]:
    """The greedy continuation of ``prompt``, end-of-text ids taken as ordinary ones; checked not to degenerate."""
    tokens = _once(target, ("plain", *prompt, n), lambda: generate(target, list(prompt), None, max_tokens=n, ignore_eos=True).tokens)
    assert len(set(tokens[:40])) >= min(5, n)
    return tokens


def consistent(session: Session, prefill: int | None = None) -> bool:
    """The caches are clean and bit-equal to plain decoding of the session's own tokens, all but the last.

    ``prefill``: rows of the first forward of the reference; by default all rows.
    """
    ids = session.tokens[:-1]
    prefill = len(ids) if prefill is None else min(prefill, len(ids))
    wanted = _once(session.target, ("bits", prefill, *ids), lambda: bits(reference_cache(session.target, ids, prefill)))
    return clean(session.cache) and equal(bits(session.cache), wanted)


def adapter(target: Target, rank: int = 4, modules=lora.PUBLISHED + lora.DELTANET, seed: int = 1, size: float = 0.2):
    """A random adapter that is not zero: (adapted model, gate)."""
    adapted, gate = lora.attach(target.model, rank, modules, seed=seed)
    key = [mx.random.key(seed)]

    def draw(path, value):
        if not path.endswith("lora_b"):
            return value
        key[0], sub = mx.random.split(key[0])
        return size * mx.random.normal(value.shape, key=sub)

    adapted.update(tree_map_with_path(draw, adapted.parameters()))
    mx.eval(adapted.parameters())
    return adapted, gate


def uno(target: Target, **options) -> UnoDrafter:
    return UnoDrafter(target, *adapter(target), **options)


def failing(real, at: int, late: bool, error: BaseException):
    """``real`` that raises ``error`` in its call number ``at``, before its work is done or (``late``) after it."""
    calls = [0]

    def wrapped(*args, **kwargs):
        calls[0] += 1
        if calls[0] == at and not late:
            raise error
        result = real(*args, **kwargs)
        if calls[0] == at:
            raise error
        return result

    return wrapped
