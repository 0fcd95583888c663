"""Running the gated delta rule backward: the inverse of a step, what it does to an error, and a guard (published system, section 4).

With ``c = k . k`` the step ``S' = g S + beta (v - g S k) k^T`` has the inverse

    S_bar = S' + beta / (1 - beta c) (S' k - v) k^T,    S = S_bar / g,

the projector on the right. The published form takes c = 1; keys are unit vectors only up to the epsilon of their norm, and at
beta near 1 that difference costs more than rounding does, so c is computed here. An error in S' is amplified by at most
``a = 1 / ((1 - beta c) g)``, which has no bound: at beta = 1 or g = 0 nothing of S is left to be found.
"""
from __future__ import annotations

from collections.abc import Callable
from functools import partial

from .backend import mx
from .gdn import Tape

LIMIT = 100.0  # the published guard: the largest accumulated amplification that a head is rewound through
EPSILON = 2.0**-23
TOLERANCE = 4 * EPSILON * LIMIT
"""Largest error of a guarded rewind, relative to the largest entry of state and values: four roundings a step, amplified LIMIT times at most."""


@partial(mx.compile)
def amplification(k, g, beta):
    """How much one backward step can amplify an error, per head: k [B, H, Dk], g and beta [B, H] -> [B, H]; infinite at beta = 1 or g = 0."""
    return 1 / ((1 - beta * (k * k).sum(axis=-1)) * g)


@partial(mx.compile)
def step_back(k, v, g, beta, state):
    """The inverse of :func:`.gdn.delta_rule_step`; shapes as there, returns the state before the step [B, H, Dv, Dk]."""
    k_row = k[..., None, :]
    ratio = beta / (1 - beta * (k * k).sum(axis=-1))
    missing = ((state * k_row).sum(axis=-1) - v) * ratio[..., None]
    return (state + missing[..., None] * k_row) / g[..., None, None]


@partial(mx.compile)
def _guarded(k, v, g, beta, state, recorded, product, step, limit):
    product = product * step
    # not (product <= limit), so that a NaN falls back too
    over = mx.logical_not(product <= limit)
    state = mx.where(over[..., None, None], recorded, step_back(k, v, g, beta, state))
    return state, mx.where(over, 1.0, product), over.sum()


def rewind(tape: Tape, n: int, limit: float = LIMIT, amplify: Callable = amplification) -> tuple[mx.array, mx.array]:
    """The state after the first ``n`` recorded rows, from the last state backward.

    The amplification of each head is accumulated over the undone rows. A head that would exceed ``limit`` takes its recorded
    state instead and starts again at 1; such a head-step is a fallback.

    Args:
        tape: recorded for the scheme "rewind", 0 <= n <= tape.rows.
        amplify: what the guard looks at, as :func:`amplification`.
    Returns:
        The state [B, H, Dv, Dk] and the number of fallbacks (an array, not evaluated).
    """
    state, product, fallbacks = tape.states[-1], mx.ones(tape.betas[0].shape), mx.array(0)
    limit = mx.array(limit)
    for t in range(tape.rows - 1, n - 1, -1):
        recorded = tape.states[t - 1] if t else tape.state_before
        k, g, beta = tape.keys[t], tape.decays[t], tape.betas[t]
        state, product, over = _guarded(k, tape.values[t], g, beta, state, recorded, product, amplify(k, g, beta), limit)
        fallbacks = fallbacks + over
    return state, fallbacks
