"""Read the residual stream of the target while it decodes, and drafters whose context follows what was read.

A second tree over the same weights has layers that report. mlx-lm's own forward runs, so the logits are the target's
bits; nothing is patched and the target is left as it is.
"""
from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace

from .backend import mx, nn  # isort: skip

from mlx_lm.models.qwen3_5 import DecoderLayer

from .acceptance import Greedy
from .decoder import PREFILL_ROWS
from .drafters import Draft
from .targets import Target, share


class _TappedLayer(DecoderLayer):
    """mlx-lm's layer; hands its output, the residual stream after it, to ``_report``."""

    def __call__(self, x, mask=None, cache=None):
        out = super().__call__(x, mask=mask, cache=cache)
        self._report(out)
        return out


def _tap(layer: DecoderLayer, report: Callable) -> _TappedLayer:
    tapped = _TappedLayer.__new__(_TappedLayer)
    nn.Module.__init__(tapped)
    tapped.__dict__.update(layer.__dict__, _no_grad=set(layer._no_grad), _report=report)
    dict.update(tapped, layer)
    return tapped


class TappedModel:
    """The target's forward that also says what its layers held.

    Args:
        model: the model of a target.
        layers: indices of the tapped layers, ascending.
        receive: called after every forward with (the caches, position of the first row, ids of the rows, the outputs of
            the tapped layers, each [1, T, hidden]); nothing is evaluated for it.
    """

    def __init__(self, model, layers: Sequence[int], receive: Callable[[list, int, list[int], list[mx.array]], None] | None = None):
        self._outputs: list[mx.array] = []
        self._receive = receive
        self._model = share(model)
        layers_of = self._model.language_model.model.layers  # the list itself; Model.layers is a copy of it
        for i in layers:
            layers_of[i] = _tap(layers_of[i], self._outputs.append)

    def make_cache(self) -> list:
        return self._model.make_cache()

    def taps(self, ids, cache: list) -> tuple[mx.array, list[mx.array]]:
        """Logits [P, T, vocab] of ids [P, T], as from the model itself, and each tapped output [P, T, hidden]."""
        self._outputs.clear()
        try:
            return self._model(ids, cache=cache), self._outputs[:]
        finally:
            self._outputs.clear()

    def __call__(self, ids, cache: list):
        start = cache[0].offset
        logits, outputs = self.taps(ids, cache)
        if self._receive is not None:
            self._receive(cache, start, ids[0].tolist(), outputs)
        return logits


def embed_and_head(target: Target) -> tuple[Callable, Callable]:
    """The target's embedding and its head, by reference."""
    text = target.model.language_model
    return text.model.embed_tokens, text.model.embed_tokens.as_linear if text.args.tie_word_embeddings else text.lm_head


class TapDrafter:
    """A drafter that reads the target's layers: what it holds is always a prefix of the committed ids.

    The decoder sends the target's rows through :attr:`verifier`, which gives the target's own logits and keeps the taps.
    The context remembers the ids that it stands for. Whatever happened since the last draft (a rejected one, an undone
    cycle, rows decoded without this drafter, another session), rows that are not those of the history are dropped, and
    when rows are missing the history is run through the target once more, which the draft counts as forwards. So one
    drafter may serve several sessions; alternating between them is correct but pays that each time.

    A subclass holds rows in ``_hold``, passes over them in ``_pass`` if it has a window, forgets them in ``_cut`` and
    proposes in ``_propose``.
    """

    exact = 0
    samples = True
    window: float = math.inf
    """How many of the latest context rows a draft reads."""
    block_size: int
    """The widest ``k`` that it can draft for."""

    def __init__(self, target: Target, layers: Sequence[int], caches: list, name: str, metadata: dict | None):
        self.target, self.name, self.metadata = target, name, metadata or {}
        self._embed, self._head = embed_and_head(target)
        self.verifier = TappedModel(target.model, layers, self._receive)
        self._caches = caches
        self._ids: list[int] = []  # what the caches stand for
        self._pending: tuple[int, list[int], list[mx.array]] | None = None  # the latest forward: start, ids, taps
        self._owner: Callable = lambda: None  # a cache of the session that both belong to

    def _hold(self, ids: list[int], taps: mx.array) -> None:
        """Add committed rows to the caches: taps [1, n, layers * hidden] of the n ``ids`` that follow those held."""
        raise NotImplementedError

    def _pass(self, rows: int) -> None:
        """Go past ``rows`` committed rows that no later draft will read."""
        raise NotImplementedError

    def _propose(self, ids: list[int], taps: mx.array | None, anchor: int, k: int, choose: Callable) -> Draft:
        """Add committed rows as :meth:`_hold` does (None for none) and draft k - 1 tokens after ``anchor``.

        ``choose(logits [T, V], ahead=0)`` gives tokens [T] and their distributions for the ``ahead``-th draft token and after.
        """
        raise NotImplementedError

    @property
    def context_ids(self) -> tuple[int, ...]:
        """The committed ids that the draft cache stands for; with a window it holds the rows of the latest of them."""
        return tuple(self._ids)

    def _receive(self, cache: list, start: int, ids: list[int], taps: list[mx.array]) -> None:
        self._serve(cache)
        if self._pending is not None and self._pending[0] + len(self._pending[1]) == start:
            # the target has gone on from all of them (a long prefill): hold keys and values instead of taps
            first, before, outputs = self._pending
            known = _common(self._ids[first:], before)
            self._cut(first + known)
            if len(self._ids) == first + known < start:
                self._extend(before[known:], [t[:, known:] for t in outputs], start + len(ids))
        self._pending = start, ids, taps

    def _serve(self, cache: list) -> None:
        if self._owner() is not cache[0]:
            self._cut(0)
            self._pending, self._owner = None, weakref.ref(cache[0])

    def _cut(self, length: int) -> None:
        """Forget all but the first ``length`` ids; a subclass that cannot go back so far forgets more."""
        del self._ids[length:]
        for cache in self._caches:
            cache.offset = length

    def _extend(self, ids: list[int], taps: list[mx.array], end: int = 0) -> None:
        """Hold the rows of ``ids``; those that the window before position ``end`` does not reach are never computed."""
        far = min(len(ids), max(0, end - self.window - len(self._ids)))
        if far:
            self._pass(far)
        if far < len(ids):
            self._hold(ids[far:], mx.concatenate([t[:, far:] for t in taps], axis=-1))
            mx.eval([c.state for c in self._caches if not c.empty()])
        self._ids += ids

    def _follow(self, past: list[int]) -> list[mx.array]:
        """Cut the context to what it shares with ``past``; taps of the rows after that, if the latest forward has them."""
        self._cut(_common(self._ids, past))
        held = len(self._ids)
        if self._pending is None or self._pending[0] > held:
            return []
        start, ids, taps = self._pending
        end = start + _common(ids, past[start:])
        return [t[:, held - start : end - start] for t in taps] if end > held else []

    def _rebuild(self, past: list[int]) -> None:
        self._cut(0)
        cache = self.target.make_cache()
        for first in range(0, len(past), PREFILL_ROWS):
            ids = past[first : first + PREFILL_ROWS]
            self._extend(ids, self.verifier.taps(mx.array([ids]), cache)[1], len(past))
            mx.eval([c.state for c in cache])

    def draft(self, cache: list, history: list[int], k: int, cycle: int, rule: Greedy = Greedy()) -> Draft:
        """``history`` is every committed id; its last is the anchor, the others are the context. ``rule`` chooses."""
        self._serve(cache)
        past, rebuilt = history[:-1], 0
        taps = self._follow(past)
        held = len(self._ids) + (taps[0].shape[1] if taps else 0)
        if k < 2:  # nothing to propose, but the rows seen must not be lost
            if taps:
                self._extend(past[len(self._ids) : held], taps)
            return Draft([])
        if held < len(past):
            self._rebuild(past)
            taps, rebuilt = [], len(past)
        choose = lambda logits, ahead=0: rule.propose(logits, len(history) + ahead, history)  # noqa: E731
        draft = self._propose(past[len(self._ids) :], mx.concatenate(taps, axis=-1) if taps else None, history[-1], k, choose)
        self._ids += past[len(self._ids) :]
        self._pending = None
        return replace(draft, forwards=draft.forwards + int(rebuilt > 0), rows=draft.rows + rebuilt)


def _common(a: list[int], b: list[int]) -> int:
    """Length of the common prefix."""
    n = min(len(a), len(b))
    return n if a[:n] == b[:n] else next(i for i in range(n) if a[i] != b[i])
