"""Exact decoding: bits that no drafter and no kernel's choice by width can change, ``generate(..., exact=True)``.

A matrix product of one row and one of several may be different kernels that add in another order, so the verify forward
of an ordinary cycle agrees with plain decoding only up to near ties. Here every forward has the same shape instead.
Positions from the seed token on are laid on a grid of cells of :data:`CELL` rows. A forward, plain or drafted, starts from
the caches as they were where its cell begins and runs exactly ``CELL`` rows: the committed ids of the cell, then the draft,
then :data:`PADDING`. A draft that runs over the end of the cell is cut there. When every row of a cell is committed, the
caches that this last forward left are where the next cell begins.

**Claim.** Logits and states of a committed position are a function of the ids before it, of the prefill and of ``CELL``: not of
the drafter, ``k``, the policy, what was rejected, or how many forwards the cell took.

**Proof**, by induction over cells. (1) Two runs whose caches agree bit for bit where a cell begins forward it with arrays of the
same shapes in each of their forwards, so the same kernels run. (2) In such a kernel, row i of a result is made of row i of its input, or, in
attention, convolution and recurrence, of rows up to i: a masked score gets the weight exactly 0, and 0 times a finite number added
to a sum leaves its bits. Layer by layer, row i is therefore a function of rows 0..i of the ids, whatever stands behind. (3) A
token is committed only when rows 0..i held committed ids, so its logits are that function of them, in whichever forward they were read.
(4) The states at the cell's end come from a forward with ``CELL`` committed rows, so by (2) the runs agree where the next one begins.
The first begins after the prefill, which is the same forward for all. ∎

**What it rests on, and its limits.** Kernels are deterministic for given shapes and values (no sums in the order of arrival, no choice
by timing, address, or load; the threads of the BLAS fixed) and keep rows apart. Both hold for the dense layers here and are
tested. Layers that mix rows in other ways are outside: a mixture of experts whose batches depend on the other rows, an activation
scale taken over all rows. It promises one text for one machine, library and grid, not across machines, and not the text of ordinary
plain decoding, whose forwards have one row: at near ties the two may differ. A session can go on: the same sequence of calls, each with
the same prompt and as many new tokens, gives the same bits with any drafter in each of them. Since a grid begins where a call does, it need
not equal one uninterrupted call.

**Price.** Every forward pays for ``CELL`` rows; a full cell costs one more forward where its last row was not drafted right.
"""
from __future__ import annotations

import time
from dataclasses import replace

from .backend import mx
from .drafters import Draft
from .errors import BadInput
from .sampling import Sampling, entropy_of, logprobs_of
from .transaction import Transaction, restore, snapshot

CELL = 8
PADDING = 0  # any id: a row that nothing committed can see
SCHEMES = ("tape", "per_token_states")


def check(target, positions: int, k: int, scheme: str, sampling: Sampling) -> None:
    """Raises BadInput for what exact decoding cannot honour.

    Args:
        positions: prompt, everything before it in the session, and new tokens.
        k: the widest block asked for; 1 without a drafter.
    """
    if sampling.temperature and sampling.rule == "rejection":
        raise BadInput("The rule 'rejection' draws other tokens with every drafter, and exact decoding promises the same; choose gumbel or match.")
    if k > CELL:
        raise BadInput(f"k is {k}, but exact decoding verifies at most {CELL} rows at once; give {CELL} or less.")
    if scheme not in SCHEMES:
        raise BadInput(f"The scheme {scheme!r} does not keep the very bits of a forward, which exact decoding promises; choose {' or '.join(SCHEMES)}.")
    if positions + CELL > target.context:
        raise BadInput(f"{positions} tokens and a cell of {CELL} rows do not fit the context of {target.context}; ask for fewer.")


def rounds(run):
    """The cycles of ``run`` (:class:`.decoder._Run`) on the grid, with or without a drafter: yields (tokens, origins, texts, log-probabilities where asked for).

    Between cycles and at every exit the caches hold ``session.tokens[:-1]``, cut from the latest forward and not evaluated
    before they are asked for: a drafter that does not read them never pays for the cut.
    """
    session = run.session
    began, start = snapshot(session.cache), len(session.tokens) - 1
    try:
        while True:
            if len(session.tokens) - 1 - start == CELL:
                mx.eval([c.state for c in session.cache])
                began, start = snapshot(session.cache), start + CELL
            saved, length = snapshot(session.cache), len(session.tokens)
            try:
                cycle = _cycle(run, began, start)
            except BaseException:
                # rows of the cell below this offset may have been written again, with the same bits
                restore(session.cache, saved)
                del session.tokens[length:]
                raise
            yield cycle
    finally:
        mx.eval([c.state for c in session.cache if not c.empty()])  # empty: the first draft failed after a prompt of one token


def _draft(run, room: int) -> tuple[Draft, int]:
    """At most ``room`` proposals, every one to be verified, and the width asked for. The row of an exact one was made at another width."""
    asked = run.k if run.policy is None else run._asked()
    k = min(asked, room + 1 - getattr(run.drafter, "exact", 1))
    if k < 1:
        return Draft([]), asked
    draft = run._checked(run.drafter.draft(run.session.cache, run.session.tokens, k, run.stats.cycles, *run.told))
    return replace(draft, tokens=draft.tokens[:room], exact=0, seed_kept=False, seed_logits=None), asked


def _cycle(run, began: list, start: int):
    session, s, clock = run.session, run.stats, time.perf_counter
    known, t0, draft, asked, entropy = session.tokens[start:], clock(), Draft([]), 0, None
    if run.drafter is not None:
        s.cycles += 1
        draft, asked = _draft(run, min(CELL - len(known), run.stops.room - 1))
        s.draft_seconds += clock() - t0
        s.forwards += draft.forwards
        s.forward_tokens += draft.rows
    t1, rows = clock(), known + draft.tokens
    restore(session.cache, began)
    with Transaction(session.cache, run.scheme) as tx:
        logits = run.forward(mx.array([rows + [PADDING] * (CELL - len(rows))]), cache=session.cache)[0]
        best = run.rule.pick(logits, start + 1, session.tokens + draft.tokens)
        mx.eval(best)
        if run.policy is not None and run.policy.wants_entropy:
            entropy = entropy_of(logits[len(known) - 1])
        scores = logprobs_of(logits, best) if run.logprobs else None
        best = best.tolist()[len(known) - 1 :]
        t2 = clock()
        s.verify_seconds += t2 - t1
        accepted, following = run.rule.accept(best, draft.tokens, 0, 0)
        candidate = draft.tokens[:accepted] + [following]
        kept, texts = run.stops.admit(candidate)
        tx.commit(len(known) - 1 + kept)
        # all rows at once, as every other step of this kind: a shape of its own could have bits of its own
        scores = [] if scores is None else scores.tolist()[len(known) - 1 :][:kept]
    s.commit_seconds += clock() - t2
    s.forwards += 1
    s.forward_tokens += CELL
    s.recorded_bytes = max(s.recorded_bytes, tx.recorded_bytes)
    if run.drafter is not None:
        return run._booked(draft, candidate, accepted, kept, texts, scores, asked, entropy)
    session.tokens.extend(candidate)
    return candidate, ["target"], texts, scores
