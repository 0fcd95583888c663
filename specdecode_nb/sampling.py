"""From logits to a sampling distribution: penalties, filters, temperature, noise that depends on a position alone; and what rows of logits say.

Order and definitions are those of mlx-lm's ``sample_utils``: penalties change logits; top-p, min-p and top-k drop tokens, in this
order and before the temperature. All in float32 and row by row, so a row has the same bits in a forward of any width.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .backend import mx
from .errors import BadInput
from .streams import stream_seed

RULES = ("gumbel", "match", "rejection")
WINDOW = 20  # latest ids that penalties look at, prompt included


def _number(value) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. The defaults of all but ``temperature`` and ``rule`` change nothing.

    Args:
        temperature: 0 takes the most likely token (after penalties) and draws nothing.
        top_k: keep the k most likely tokens; 0 keeps all.
        top_p: keep the fewest most likely tokens that hold this mass.
        min_p: keep tokens at least this share as likely as the most likely one.
        repetition_penalty: divides positive logits of ids among the latest 20 and multiplies negative ones.
        presence_penalty, frequency_penalty: taken from logits of these ids, once or for each occurrence.
        rule: which drafts survive, see :mod:`specdecode_nb.acceptance`.

    Raises:
        BadInput: a value outside its range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    rule: str = "gumbel"

    def __post_init__(self):
        def need(name: str, fits, what: str) -> None:
            value = getattr(self, name)
            if not (_number(value) and fits(value)):
                raise BadInput(f"{name} is {value!r}; give {what}.")

        need("temperature", lambda v: v == 0 or v >= 1e-6, "0 for greedy decoding or a number above it, such as 0.7")
        need("top_k", lambda v: isinstance(v, int) and v >= 0, "a whole number, 0 to keep all tokens")
        need("top_p", lambda v: 0 < v <= 1, "a number above 0, 1 to keep all tokens")
        need("min_p", lambda v: 0 <= v <= 1, "a number from 0 to 1")
        need("repetition_penalty", lambda v: v > 0, "a number above 0, 1 for no penalty")
        need("presence_penalty", lambda v: True, "a number, 0 for no penalty")
        need("frequency_penalty", lambda v: True, "a number, 0 for no penalty")
        if self.rule not in RULES:
            raise BadInput(f"There is no sampling rule {self.rule!r}; choose {', '.join(RULES[:-1])} or {RULES[-1]}.")

    @property
    def penalised(self) -> bool:
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)

    def scores(self, logits: mx.array, position: int, ids: Sequence[int] = ()) -> mx.array:
        """Logits of the sampling distribution, [T, V] float32, -inf where filtered; with temperature 0 the penalised logits.

        Row t chooses the token at absolute ``position + t`` and sees ``ids[: position + t]``, or all ids where there are fewer.
        """
        x = logits.astype(mx.float32)
        if self.penalised:
            x = self._penalise(x, [ids[: position + t][-WINDOW:] for t in range(x.shape[0])])
        if self.temperature == 0:
            return x
        if self.top_p < 1:
            ordered = mx.sort(x, axis=-1)
            mass_above = mx.cumsum(mx.softmax(ordered, axis=-1), axis=-1, reverse=True, inclusive=False)
            dropped = mx.minimum((mass_above >= self.top_p).sum(axis=-1, keepdims=True), x.shape[-1] - 1)
            x = mx.where(x < mx.take_along_axis(ordered, dropped, axis=-1), -mx.inf, x)
        if self.min_p > 0:
            x = mx.where(x < x.max(axis=-1, keepdims=True) + math.log(self.min_p), -mx.inf, x)
        if 0 < self.top_k < x.shape[-1]:
            rest = mx.argpartition(-x, kth=self.top_k - 1, axis=-1)[..., self.top_k :]
            x = mx.put_along_axis(x, rest, mx.array(-mx.inf), axis=-1)
        return x * (1 / self.temperature)

    def _penalise(self, x: mx.array, windows: list[Sequence[int]]) -> mx.array:
        found = [(t, i, window.count(i)) for t, window in enumerate(map(list, windows)) for i in dict.fromkeys(window)]
        if not found:
            return x
        rows, ids, counts = (mx.array(v) for v in zip(*found))
        old = x[rows, ids]
        new = mx.where(old < 0, old * self.repetition_penalty, old / self.repetition_penalty)
        new = new - self.presence_penalty - self.frequency_penalty * counts.astype(mx.float32)
        x = mx.array(x)  # a view of the caller's logits stays as it is
        x[rows, ids] = new
        return x


def chosen(temperature: float, sampling: Sampling | None) -> Sampling:
    """The sampling of a call: ``temperature`` alone is short for it. Raises BadInput for both at once."""
    if sampling is None:
        return Sampling(temperature=temperature)
    if not isinstance(sampling, Sampling):
        raise BadInput(f"sampling is {sampling!r}; give a Sampling, or None.")
    if temperature != 0:
        raise BadInput(f"temperature is {temperature!r} beside a Sampling; set the temperature in that alone.")
    return sampling


def gumbel(seed: int, stream: int, position: int, vocab: int) -> mx.array:
    """Gumbel noise [vocab] of one absolute position: adding it to logits makes the argmax a sample."""
    return mx.random.gumbel((vocab,), key=mx.random.key(stream_seed(seed, stream, position)))


def uniform(seed: int, stream: int, position: int) -> mx.array:
    """One uniform number in [0, 1)."""
    return mx.random.uniform(key=mx.random.key(stream_seed(seed, stream, position)))


# --- what rows of logits say, in float32 nats ---

def logprobs_of(logits, tokens):
    """Log-probabilities [T] of ``tokens`` [T] under a float32 softmax of ``logits`` [T, V]; not evaluated."""
    logits = logits.astype(mx.float32)
    return mx.take_along_axis(logits, tokens[:, None], axis=-1)[:, 0] - mx.logsumexp(logits, axis=-1)


def entropy_of(logits) -> float:
    """Entropy of one row of logits [V]. Where the seed's row was kept, the verify forward's first row is that of the first
    proposal, one position after the published one."""
    logp = logits.astype(mx.float32) - mx.logsumexp(logits.astype(mx.float32))
    return round(-(mx.exp(logp) * logp).sum().item(), 5)
