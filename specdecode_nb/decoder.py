"""The decoder: draft, verify, accept, commit. Plain decoding is the same driver without a drafter.

Between cycles the caches hold every committed token except the last, which is the seed of the next cycle; after any
exit (stop, budget, exception, closed generator) they hold exactly that too, bit-equal to plain decoding (but for the
scheme "rewind", which is close).
"""
from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field

from . import exact as grid
from .acceptance import Greedy, rule
from .drafters import Draft
from .errors import BadInput, flag
from .options import check
from .policies import Cycle, Policy
from .sampling import Sampling, chosen, entropy_of, logprobs_of
from .stops import Stops
from .targets import Target, mx
from .transaction import Transaction, check_caches, restore, snapshot

PREFILL_ROWS = 512  # bounds the attention scores of a long prompt; shared by every arm


@dataclass
class Session:
    """Caches of one target and the ids they stand for: ``tokens`` is everything committed, prompt included.

    The caches have consumed ``tokens[:-1]``. Pass a session to :func:`generate` or :func:`stream` to go on from it; one
    generation at a time may use it.

    Raises:
        RollbackUnsupported: a cache that cannot be undone, such as a windowed or a quantised one.
        BadInput: caches that hold another number of rows.
    """

    target: Target
    cache: list = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    busy: bool = field(default=False, init=False)

    def __post_init__(self):
        self.cache = self.cache or self.target.make_cache()
        check_caches(self.cache, "replay")  # the scheme that takes the most kinds; a transaction checks for its own
        rows = {c.offset for c in self.cache if getattr(c, "offset", None) is not None}
        if rows - {max(0, len(self.tokens) - 1)}:
            raise BadInput(f"The caches of this session hold {sorted(rows)} rows and must hold all of its {len(self.tokens)} tokens but the last; "
                           "make new ones.")

    def feed(self, ids: Sequence[int], forward: Callable | None = None) -> int:
        """Append ``ids`` and prefill all of them but the last, with ``forward`` or the target's model; returns the rows forwarded."""
        forward = forward or self.target.model
        pending = self.tokens[-1:] + list(ids)
        rows = pending[:-1]
        saved = snapshot(self.cache)
        try:
            for start in range(0, len(rows), PREFILL_ROWS):
                forward(mx.array([rows[start : start + PREFILL_ROWS]]), cache=self.cache)
                mx.eval([c.state for c in self.cache])
        except BaseException:
            restore(self.cache, saved)
            raise
        self.tokens.extend(ids)
        return len(rows)


@dataclass
class Stats:
    """Raw counters of one generation, in the fields of a measured row; seconds are wall time between barriers."""

    prompt_tokens: int = 0
    tokens: int = 0
    wall_seconds: float = 0.0
    prefill_seconds: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    commit_seconds: float = 0.0
    overhead_seconds: float = 0.0
    forwards: int = 0
    forward_tokens: int = 0
    cycles: int = 0
    accepted_per_cycle: list[int] = field(default_factory=list)
    offered_per_cycle: list[int] = field(default_factory=list)
    committed_per_cycle: list[int] = field(default_factory=list)
    replay_forwards: int = 0
    recorded_bytes: int = 0  # the most that one verify forward recorded
    rewind_steps_per_cycle: list[int] = field(default_factory=list)  # rows times heads; empty unless the scheme is rewind
    rewind_fallbacks_per_cycle: list[int] = field(default_factory=list)
    # only where a policy chose, or the drafter was asked to tell
    width_per_cycle: list[int] = field(default_factory=list)
    entropy_per_cycle: list[float] = field(default_factory=list)
    confidence_per_cycle: list[list] = field(default_factory=list)


@dataclass
class Event:
    """One emitted token. ``origin``: "target" (plain step or first proposal), "draft", "correction" or "bonus"; ``logprob`` where asked for."""

    token: int
    text: str
    origin: str
    logprob: float | None = None


@dataclass
class Result:
    tokens: list[int]
    text: str
    finish_reason: str
    stats: Stats
    session: Session = field(repr=False)
    logprobs: list[float] | None = None  # one a token, where asked for

    def row(self) -> dict:
        """The statistics as a plain dictionary of row fields."""
        asked = ("width_per_cycle", "entropy_per_cycle", "confidence_per_cycle")
        return {k: v for k, v in asdict(self.stats).items() if v or k not in asked} | {"finish_reason": self.finish_reason}


def generate(target: Target, prompt, drafter=None, k: int | Policy = 4, max_tokens: int = 128, temperature: float = 0.0, seed: int = 0,
             stop: str | Sequence[str] = (), ignore_eos: bool = False, scheme: str = "tape", session: Session | None = None,
             logprobs: bool = False, exact: bool = False, sampling: Sampling | None = None) -> Result:
    """Decode ``prompt`` (text or ids). Greedily, the tokens are those of the target alone, with any drafter; sampled, their
    distribution is, and by the rule "gumbel" the tokens of a ``seed`` themselves are.

    Args:
        k: drafted positions a cycle, the first of which is the target's own next token; or a policy that is asked before
            each cycle (:mod:`specdecode_nb.policies`) and may answer 0, a plain step.
        temperature: above 0, short for ``Sampling(temperature)``; :class:`~specdecode_nb.sampling.Sampling` has filters, penalties
            and rules.
        seed: noise depends on it and on the absolute position in the session alone.
        stop: texts that end the generation; the text returned ends before the first one completed.
        ignore_eos: treat end-of-text ids as ordinary tokens, as the benchmarks do.
        scheme: how a recurrent state is undone, see :mod:`specdecode_nb.transaction`. "rewind" alone leaves states within a
            tolerance and not the very bits of the kept rows, so a near tie may fall the other way later.
        session: go on after an earlier generation; the prompt is appended to its tokens.
        logprobs: the log-probability of every token too: the float32 log-softmax, in nats, of the target's own logits before any rule.
        exact: forwards of one shape only, so that tokens and states are the same bits with any drafter or none, whatever the kernels
            (:mod:`specdecode_nb.exact`); slower, and at near ties not the text of ``exact=False``. An adapter's first proposal is
            verified there like any other and counts as drafted, so its acceptance is not comparable with that of ``exact=False``.

    Raises:
        BadInput: an option that cannot be honoured; raised before any work is done.
    """
    run = _Run(target, prompt, drafter, k, max_tokens, temperature, seed, stop, ignore_eos, scheme, session, logprobs, exact, sampling, want_text=False)
    tokens, scores = [], []
    for committed, _, _, scored in run.cycles():
        tokens += committed
        scores += scored
    # without stop texts, "stop" means an end-of-text id, which has no text
    text = run.stops.text if run.stops.want_text else target.decode(tokens[:-1] if run.reason == "stop" else tokens)
    return Result(tokens, text, run.reason, run.stats, run.session, scores if logprobs else None)


def stream(target: Target, prompt, drafter=None, k: int | Policy = 4, max_tokens: int = 128, temperature: float = 0.0, seed: int = 0,
           stop: str | Sequence[str] = (), ignore_eos: bool = False, scheme: str = "tape",
           session: Session | None = None, logprobs: bool = False, exact: bool = False, sampling: Sampling | None = None) -> Iterator[Event]:
    """As :func:`generate`, token by token. The texts of all events joined are the text of the result.

    Closing the iterator leaves the session at the last committed cycle; ``session.tokens`` names it exactly.
    """
    run = _Run(target, prompt, drafter, k, max_tokens, temperature, seed, stop, ignore_eos, scheme, session, logprobs, exact, sampling, want_text=True)

    def events():
        cycles = run.cycles()
        try:
            for tokens, origins, texts, scores in cycles:
                for token, origin, text, score in zip(tokens, origins, texts, scores or [None] * len(tokens)):
                    yield Event(token, text, origin, score)
        finally:
            cycles.close()

    return events()


class _Run:
    """One generation: its options, its session, its counters."""

    def __init__(self, target, prompt, drafter, k, max_tokens, temperature, seed, stop, ignore_eos, scheme, session, logprobs, exact, sampling,
                 want_text):
        self.ids = check(target, prompt, drafter, k, max_tokens, seed, scheme, session)
        drawn = chosen(temperature, sampling)
        self.rule = rule(drawn, seed)
        # what a drafter is told: nothing if its most likely tokens will do
        self.told = (self.rule,) if type(self.rule) is not Greedy and getattr(drafter, "samples", False) else ()
        # a drafter that reads the target's layers sees its rows pass, with the logits of the target itself
        self.forward = getattr(drafter, "verifier", target.model)
        self.stops = Stops(target, () if flag("ignore_eos", ignore_eos) else target.eos_ids, stop, max_tokens, want_text)
        self.target, self.drafter, self.scheme, self.seed, self.logprobs = target, drafter, scheme, seed, flag("logprobs", logprobs)
        if flag("exact", exact):
            earlier = len(session.tokens) if session is not None else 0
            grid.check(target, earlier + len(self.ids) + max_tokens, 1 if drafter is None else getattr(k, "widest", k), scheme, drawn)
        self.exact = exact
        self.policy, self.k = (k.begin(), k.widest) if isinstance(k, Policy) else (None, k)
        getattr(drafter, "begin", lambda: None)()
        self.session = session if session is not None else Session(target)
        self.stats, self.reason = Stats(prompt_tokens=len(self.ids)), "length"

    def cycles(self):
        """Yield (tokens, origins, texts, log-probabilities where asked for) of each cycle, committed already."""
        if self.stops.room == 0:
            return
        if self.session.busy:
            raise BadInput("Another generation is using this session; finish or close it first.")
        self.session.busy = True
        rounds = grid.rounds(self) if self.exact else self._plain() if self.drafter is None else self._speculative()
        try:
            began = time.perf_counter()
            rows = self.session.feed(self.ids, self.forward)
            s = self.stats
            s.prefill_seconds = time.perf_counter() - began
            s.forwards, s.forward_tokens = int(rows > 0), rows
            for cycle in rounds:
                s.tokens += len(cycle[0])
                s.wall_seconds = time.perf_counter() - began
                s.overhead_seconds = s.wall_seconds - s.prefill_seconds - s.draft_seconds - s.verify_seconds - s.commit_seconds
                yield cycle
                if self.stops.reason:
                    self.reason = self.stops.reason
                    return
        finally:
            rounds.close()
            self.session.busy = False

    def _plain(self):
        """One row a step. The next step is started before this one's token is read, and undone if it was the last."""
        session, s, safe = self.session, self.stats, snapshot(self.session.cache)

        def start(row, ahead: int = 0):
            """The token after ``row`` [1, 1], the same shape, and its log-probability where asked for; under way."""
            logits = self.target.model(row, cache=session.cache)[0, -1:]
            token = self.rule.pick(logits, len(session.tokens) + ahead, session.tokens)
            made = [token[None]] + ([logprobs_of(logits, token)] if self.logprobs else [])
            mx.async_eval(made)
            return made

        try:
            pending = start(mx.array([session.tokens[-1:]]))
            while True:
                t0 = time.perf_counter()
                if pending is None:
                    pending = start(mx.array([session.tokens[-1:]]))
                ahead = snapshot(session.cache)
                # penalties need this step's token before the next one can be chosen
                following = start(pending[0], 1) if self.stops.room > 1 and not self.rule.reads_ids else None
                token = pending[0].item()
                s.verify_seconds += time.perf_counter() - t0
                _, texts = self.stops.admit([token])
                session.tokens.append(token)
                safe = ahead
                s.forwards += 1
                s.forward_tokens += 1
                yield [token], ["target"], texts, [score.item() for score in pending[1:]]
                pending = following
        finally:
            restore(session.cache, safe)

    def _speculative(self):
        while True:
            saved, length = snapshot(self.session.cache), len(self.session.tokens)
            try:
                cycle = self._cycle()
            except BaseException:
                restore(self.session.cache, saved)
                del self.session.tokens[length:]
                raise
            yield cycle

    def _asked(self) -> int:
        """The policy's answer. Raises ValueError for one that it did not announce."""
        k = self.policy.width()
        k = k.__index__() if hasattr(k, "__index__") else k
        if not isinstance(k, int) or not 0 <= k <= self.k:
            raise ValueError(f"The policy {type(self.policy).__name__} answered width {k!r}, outside 0 to {self.k}.")
        return k

    def _checked(self, draft: Draft) -> Draft:
        """A draft as the contract wants it. Raises ValueError; an id outside the vocabulary would read memory beyond the embedding."""
        name = getattr(self.drafter, "name", type(self.drafter).__name__)
        if not isinstance(draft, Draft) or (draft.exact or draft.seed_kept) and not draft.tokens:
            raise ValueError(f"The drafter {name!r} answered {draft!r}; an exact token or a kept seed needs a proposal.")
        if draft.exact and not self.told and type(self.rule) is not Greedy:
            raise ValueError(f"The drafter {name!r} names the target's next token without its sampling rule; it decodes at temperature 0 only.")
        if draft.q is not None and draft.q.shape != (len(draft.tokens) - draft.exact, self.target.vocab_size):
            raise ValueError(f"The drafter {name!r} gave distributions of shape {draft.q.shape} with {len(draft.tokens)} proposals.")
        odd = [t for t in draft.tokens if not isinstance(t, int) or not 0 <= t < self.target.vocab_size]
        if odd:
            raise ValueError(f"The drafter {name!r} proposed the id {odd[0]!r}, outside the vocabulary of {self.target.vocab_size}.")
        return draft

    def _cycle(self):
        session, s, clock = self.session, self.stats, time.perf_counter
        s.cycles += 1
        t0 = clock()
        asked = self.k if self.policy is None else self._asked()
        # a cycle commits at most k tokens, and one more if the first is exact; a block beyond the budget would be wasted
        k = min(asked, max(1, self.stops.room - getattr(self.drafter, "exact", 1)))
        draft = self._checked(self.drafter.draft(session.cache, session.tokens, k, s.cycles, *self.told)) if k else Draft([])
        t1 = clock()
        s.draft_seconds += t1 - t0
        s.forwards += draft.forwards
        s.forward_tokens += draft.rows
        shift, steps, fallbacks, entropy, logits = int(draft.seed_kept), 0, 0, None, None
        if self.logprobs and shift and draft.seed_logits is None:
            raise ValueError("A draft that keeps the seed's row has to bring that row's logits along for log-probabilities; give seed_logits.")
        if draft.exact and shift and self.stops.room == 1:
            candidate, accepted = draft.tokens[:1], 1
            kept, texts = self.stops.admit(candidate)
        else:
            rows = draft.tokens if draft.seed_kept else session.tokens[-1:] + draft.tokens
            again = (lambda n: self.target.model(mx.array([rows[:n]]), cache=session.cache)) if self.scheme == "replay" else None
            with Transaction(session.cache, self.scheme, rerun=again) as tx:
                logits = self.forward(mx.array([rows]), cache=session.cache)[0]
                best = self.rule.pick(logits, len(session.tokens) + shift, session.tokens + draft.tokens, draft)
                mx.eval(best)
                if self.policy is not None and self.policy.wants_entropy:
                    entropy = entropy_of(logits[0])
                best = best.tolist()
                t2 = clock()
                s.verify_seconds += t2 - t1
                accepted, following = self.rule.accept(best, draft.tokens, draft.exact, shift)
                candidate = draft.tokens[:accepted] + [following]
                kept, texts = self.stops.admit(candidate)
                t3 = clock()
                tx.commit(kept - shift)
            mx.eval([c.state for c in session.cache])
            s.commit_seconds += clock() - t3
            replayed = again is not None and 0 < kept - shift < len(rows)
            s.replay_forwards += replayed
            s.forwards += 1 + replayed
            s.forward_tokens += len(rows) + replayed * (kept - shift)
            s.recorded_bytes = max(s.recorded_bytes, tx.recorded_bytes)
            steps, fallbacks = tx.rewind_steps, tx.rewind_fallbacks
        scores = []
        if self.logprobs:  # row i of these chose token i
            rows = mx.concatenate(([draft.seed_logits[None]] if shift else []) + ([] if logits is None else [logits]))
            scores = logprobs_of(rows[:kept], mx.array(candidate[:kept])).tolist()
        return self._booked(draft, candidate, accepted, kept, texts, scores, k, entropy, steps, fallbacks)

    def _booked(self, draft, candidate, accepted, kept, texts, scores, k, entropy, steps=0, fallbacks=0):
        """Append the kept tokens and count the cycle; what :meth:`cycles` yields of it."""
        session, s = self.session, self.stats
        session.tokens.extend(candidate[:kept])
        full = accepted == len(draft.tokens)
        last = "target" if not draft.tokens else "bonus" if full else "correction"
        origins = ["target"] * draft.exact + ["draft"] * (accepted - draft.exact) + [last]
        s.accepted_per_cycle.append(max(0, min(kept, accepted) - draft.exact))
        s.offered_per_cycle.append(max(0, len(draft.tokens) - draft.exact))
        s.committed_per_cycle.append(kept)
        if self.scheme == "rewind":
            s.rewind_steps_per_cycle.append(steps)
            s.rewind_fallbacks_per_cycle.append(fallbacks)
        if draft.confidence is not None:
            s.confidence_per_cycle.append(draft.confidence)
        if self.policy is not None:
            s.width_per_cycle.append(k)
            s.entropy_per_cycle += [] if entropy is None else [entropy]
            self.policy.observe(Cycle(k, s.offered_per_cycle[-1], s.accepted_per_cycle[-1], kept, entropy))
        return candidate[:kept], origins[:kept], texts, scores
