"""What rows of logits say, in float32 nats."""
from __future__ import annotations

from .backend import mx


def logprobs_of(logits, tokens):
    """Log-probabilities [T] of ``tokens`` [T] under a float32 softmax of ``logits`` [T, V]; not evaluated."""
    logits = logits.astype(mx.float32)
    return mx.take_along_axis(logits, tokens[:, None], axis=-1)[:, 0] - mx.logsumexp(logits, axis=-1)


def entropy_of(logits) -> float:
    """Entropy of one row of logits [V]. Where the seed's row was kept, the verify forward's first row is that of the first
    proposal, one position after the published one."""
    logp = logits.astype(mx.float32) - mx.logsumexp(logits.astype(mx.float32))
    return round(-(mx.exp(logp) * logp).sum().item(), 5)
