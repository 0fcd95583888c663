"""Read the residual stream of the target while it decodes: a second tree over the same weights whose tapped layers report.

mlx-lm's own forward runs, so the logits are the target's bits; nothing is patched and the target is left as it is.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence

from .backend import mx, nn  # isort: skip

from mlx_lm.models.qwen3_5 import DecoderLayer

from .lora import share


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
