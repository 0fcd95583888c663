"""What a right decoder does, as a handful of checks on the toy that take a second together: the examiner of the museum of faults.

Plain decoding by hand, a row at a time, is the reference, and it is found once, before any fault is put in.
"""
from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from .. import blas
from ..decoder import Session, generate, stream
from ..drafters import Draft
from ..policies import ByEntropy, Policy
from ..stops import Stops
from ..taps import TapDrafter
from ..targets import mx, share
from ..transaction import Transaction
from .toy import PROMPT, ScriptedDrafter, bits, clean, held, hybrid, scripted

LENGTH, TURN, FIRST = 24, [65, 66], 6  # plain tokens that are known; what a second turn adds after the first FIRST of them
TOLERANCE = 1e-5  # of the largest entry; used where the BLAS does not give a row the same bits at every width
FLOOR = 0.9  # share of the drafts of a drafter that recalls the text from what it reads, on the text it remembers
FORMS = ("lookup", "published", "kept")
TEXT = "abcdefghijklmnopqrstuvwxyz0123456789"
UNICODE = "é→東🙂é→東🙂 end →"


class Caught(Exception):
    """A check has found something; the message is one sentence."""


def need(right: bool, symptom: str) -> None:
    if not right:
        raise Caught(symptom)


@dataclass
class Plain:
    """Plain decoding of ``prompt`` by hand: tokens, logits before each of them, caches after each consumed row (index: rows)."""

    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    logits: list[np.ndarray] = field(default_factory=list)
    caches: dict[int, list[np.ndarray]] = field(default_factory=dict)

    def __post_init__(self):
        target, consumed = hybrid(), 0
        caches = target.make_cache()
        while len(self.tokens) < LENGTH:
            row = (self.prompt + self.tokens)[consumed]
            logits = target.model(mx.array([[row]]), cache=caches)[0, -1]
            consumed += 1
            self.caches[consumed] = bits(caches)
            if consumed >= len(self.prompt):
                self.logits.append(np.array(logits))
                self.tokens.append(int(mx.argmax(logits).item()))


@cache
def reference() -> tuple[Plain, Plain]:
    """The prompt of the toy, and the two turns of :func:`reuse` decoded cold."""
    first = Plain(PROMPT)
    return first, Plain(PROMPT + first.tokens[:FIRST] + TURN)


@cache
def memory() -> tuple[np.ndarray, list[int]]:
    """Rows of the residual stream after layer 2 over prompt and plain tokens, by hand, and these ids."""
    target, ids = hybrid(), PROMPT + reference()[0].tokens
    x = target.model.language_model.model.embed_tokens(mx.array([ids]))
    for layer, c in list(zip(target.model.layers, target.make_cache()))[:3]:  # Gated DeltaNet layers, which need no mask
        x = layer(x, mask=None, cache=c)
    return np.array(x[0]), ids


class Recalling(TapDrafter):
    """Finds the row that it reads among those it remembers and offers what came after, or the beginning if it does not know the row: right as
    long as it reads the right layer's row."""

    block_size = 8

    def __init__(self, target):
        super().__init__(target, (2,), [], "recalling", None)
        self._row: np.ndarray | None = None

    def _cut(self, length):
        if length < len(self._ids):
            self._ids, self._row = [], None

    def _hold(self, ids, taps):
        self._row = np.array(taps[0, -1])

    def _propose(self, ids, taps, anchor, k, choose):
        if taps is not None:
            self._hold(ids, taps)
        rows, known = memory()
        far = np.abs(rows - self._row).max(axis=1)
        at = int(far.argmin()) if far.min() <= 1e-3 * np.abs(rows).max() else 0
        return Draft(known[at + 2 : at + k + 1], forwards=1, rows=k)


class InTurn(Policy):
    """A drafted cycle, a plain step, a drafted cycle, and so on."""

    widest = 4

    def __init__(self):
        self._asked = 0

    def begin(self):
        return InTurn()

    def width(self) -> int:
        self._asked += 1
        return 4 if self._asked % 2 else 0


def same(caches: list, wanted: list[np.ndarray]) -> bool:
    """Equal in every bit on the BLAS that gives a row the same bits at every width, else within the tolerance."""
    found = bits(caches)
    exact = blas.report()["name"] == "reference"
    return len(found) == len(wanted) and all(
        a.shape == b.shape and (a.tobytes() == b.tobytes() if exact else np.abs(a - b).max() <= TOLERANCE * max(1, np.abs(b).max()))
        for a, b in zip(found, wanted))


def settled(session: Session, plain: Plain, what: str) -> None:
    """The caches are those of plain decoding of the session's tokens, all but the last, and nothing is left open."""
    done, whole = session.tokens, plain.prompt + plain.tokens
    need(clean(session.cache), f"{what} leaves a layer recording or a transaction open")
    need(done == whole[: len(done)], f"{what} leaves tokens that plain decoding does not give")
    lengths = {c.offset for c in session.cache}
    need(lengths == {len(done) - 1}, f"{what} leaves layers of {sorted(lengths)} rows for {len(done)} tokens")
    need(same(session.cache, plain.caches[len(done) - 1]), f"{what} leaves a state that is not the one of its tokens")


def drafter(form: str | None, counts=(1, 0, 99, 2)):
    return form and ScriptedDrafter(hybrid(), reference()[0].tokens, len(PROMPT), counts, form)


def decode(form: str | None, session: Session | None = None, n: int = 14, k=4, **options):
    return generate(hybrid(), PROMPT, drafter(form), k=k, max_tokens=n, ignore_eos=True, session=session, **options)


# the checks

def identity() -> None:
    """The text is that of plain decoding, whatever drafts, by both exact ways to undo, and with plain steps in between."""
    plain = reference()[0]
    for form, options in [(None, {}), *((f, {}) for f in FORMS), ("kept", {"scheme": "per_token_states"}), ("lookup", {"k": InTurn()})]:
        tokens = decode(form, **options).tokens
        first = next((i for i, (a, b) in enumerate(zip(tokens, plain.tokens)) if a != b), None)
        need(first is None, f"token {first} differs from plain decoding ({form or 'no'} drafts)")
        need(len(tokens) == 14, f"{len(tokens)} tokens for a budget of 14")


def state() -> None:
    """Blocks of four rows one after another, of which n are kept: every layer is then where plain decoding of the kept rows is."""
    plain, target = reference()[0], hybrid()
    ids = plain.prompt + plain.tokens
    for scheme in ("tape", "per_token_states", "replay"):
        caches, at = target.make_cache(), 3
        target.model(mx.array([ids[:at]]), cache=caches)
        for keep in (2, 1, 4, 0, 3):
            block = ids[at : at + 4]
            rerun = (lambda n, block=block: target.model(mx.array([block[:n]]), cache=caches)) if scheme == "replay" else None
            with Transaction(caches, scheme, rerun=rerun) as tx:
                rows = target.model(mx.array([block]), cache=caches)[0]
                for i in range(max(0, len(plain.prompt) - 1 - at), 4):
                    off = np.abs(np.array(rows[i]) - plain.logits[at + i + 1 - len(plain.prompt)]).max()
                    need(off <= 1e-3, f"row {i} of a block has other logits than a plain step (by {off:.2g})")
                tx.commit(keep)
            at += keep
            need(same(caches, plain.caches[at]), f"{keep} rows of 4 kept by {scheme}: the caches are not those of the kept rows")
            need(clean(caches), f"{keep} rows of 4 kept by {scheme}: a layer is still recording")


def stops() -> None:
    """End-of-text ids, stop texts and budgets at every place of a block, on a target that follows a written text."""
    for form in (None, "lookup", "kept"):
        def run(text, form=form, wrong=None, **options):
            target, prompt, ids = scripted(text)
            made = form and ScriptedDrafter(target, ids + [2] * 9, 1, (99,) if wrong is None else (1,), form, wrong)
            result = generate(target, prompt, made, k=4, **{"max_tokens": len(ids)} | options)
            need(not result.tokens or held(result.session) == result.session.tokens[:-1], "the caches hold rows that are not of the tokens returned")
            return result

        for at in range(7):
            found = run([*TEXT[:at].encode(), 0, *TEXT[:8].encode()])
            need((len(found.tokens), found.text, found.finish_reason) == (at + 1, TEXT[:at], "stop"), f"end of text at place {at}: "
                 f"{len(found.tokens)} tokens, ended by {found.finish_reason}")
            found = run(TEXT, stop=[TEXT[at + 1 : at + 3], TEXT[at + 1 : at + 4], TEXT[at : at + 3]])
            need((found.text, len(found.tokens)) == (TEXT[:at], at + 3), f"stop texts at place {at}: {len(found.tokens)} tokens, text {found.text!r}")
            need(run(TEXT, max_tokens=at).tokens == list(TEXT[:at].encode()), f"a budget of {at} is not what is returned")
        found = run([*TEXT[:2].encode(), 0], max_tokens=3)
        need(found.finish_reason == "stop", "end of text at the last allowed token is not called a stop")
        need(run(TEXT[:16], wrong=0).text == TEXT[:16], "an end of text that was drafted and rejected ends the text")


def text() -> None:
    """Streamed pieces joined are the decoded text, with characters of several tokens and a stop text that is only begun."""
    for form, budget in ((None, 99), ("kept", 99), ("kept", 14)):
        target, prompt, ids = scripted(UNICODE)
        made = form and ScriptedDrafter(target, ids + [2] * 9, 1, (99,), form)
        events = list(stream(target, prompt, made, k=3, max_tokens=min(budget, len(ids)), stop="→!"))
        wanted = target.decode(ids[:budget])
        need("".join(e.text for e in events) == wanted, f"the streamed text is not the decoded one ({len(wanted)} characters)")


def counters() -> None:
    """What was offered, accepted and committed, by a script, and cut where the text ends."""
    target, prompt, ids = scripted(TEXT)
    for form, exact in (("lookup", 0), ("kept", 1)):
        s = generate(target, prompt, ScriptedDrafter(target, ids, 1, (2, 0), form), k=5, max_tokens=11).stats
        found = s.offered_per_cycle[:2], s.accepted_per_cycle[:2], s.committed_per_cycle[:2]
        need(found == ([4, 4], [2, 0], [3 + exact, 1 + exact]), f"offered, accepted, committed are {found} after two cycles of a known script")
        need(sum(s.committed_per_cycle) == s.tokens == 11, f"{sum(s.committed_per_cycle)} tokens are counted, {s.tokens} were returned")
        cut, prompt, known = scripted([*b"ab", 0, *b"cdefgh"])
        s = generate(cut, prompt, ScriptedDrafter(cut, known, 1, (99,), form), k=6, max_tokens=9).stats
        found = s.accepted_per_cycle, s.committed_per_cycle
        need(found == ([3 - exact], [3]), f"accepted and committed are {found} where the text ends after three tokens")


def exits() -> None:
    """A failure in any part and a closed stream leave the caches at a committed prefix."""
    plain = reference()[0]

    class Failing(Exception):
        pass

    def failing(real, at, late):
        calls = [0]

        def wrapped(*args, **options):
            calls[0] += 1
            result = real(*args, **options) if late or calls[0] != at else None
            if calls[0] == at:
                raise Failing
            return result

        return wrapped

    for form in (None, "published", "kept"):
        for owner, name in ((Stops, "admit"), (Transaction, "commit"), (ScriptedDrafter, "draft")):
            for late in (False, True):
                session, real = Session(hybrid()), getattr(owner, name)
                setattr(owner, name, failing(real, 3, late))
                try:
                    with suppress(Failing):
                        decode(form, session, n=9)
                finally:
                    setattr(owner, name, real)
                settled(session, plain, f"a failure of {owner.__name__}.{name}")
        for events in (1, 4):
            session = Session(hybrid())
            running = stream(hybrid(), PROMPT, drafter(form), k=4, max_tokens=12, ignore_eos=True, session=session)
            for _ in range(events):
                next(running)
            running.close()
            settled(session, plain, f"a stream closed after {events} tokens")
        settled(decode(form).session, plain, "a whole generation")
    caches = hybrid().make_cache()
    hybrid().model(mx.array([PROMPT]), cache=caches)
    with suppress(Failing), Transaction(caches):
        hybrid().model(mx.array([[7, 8, 9]]), cache=caches)
        raise Failing
    need(clean(caches) and same(caches, plain.caches[len(PROMPT)]), "a block that failed leaves rows in the caches")


def reuse() -> None:
    """A second turn on the same session is what a cold run gives; a rule of the block width keeps nothing from before."""
    cold = reference()[1]
    for first in (None, "kept"):
        session = decode(first, n=FIRST).session
        result = generate(hybrid(), TURN, None, max_tokens=8, ignore_eos=True, session=session)
        need(result.tokens == cold.tokens[:8], "the second turn differs from a cold run")
        settled(session, cold, "a second turn")
    rule = ByEntropy(allowed=(1, 4), default=1, low=0.0)  # wide at first, narrow once a verifier has been seen
    widths = [decode("kept", k=rule, n=8).stats.width_per_cycle for _ in range(2)]
    need(widths[0] == widths[1], f"the same prompt twice is drafted with other widths, {widths[0]} and {widths[1]}")


def acceptance() -> None:
    """A drafter that remembers the text by what it reads has its drafts accepted; its context is the committed prefix, after rejections too."""
    # a tree of modules of its own, so that a fault which leaves something in it leaves the toy alone
    target, known = replace(hybrid(), model=share(hybrid().model)), memory()[1]
    before = [type(layer) for layer in target.model.layers]
    for counts in ((99,), (1, 0, 99, 2)):
        made, script, strayed = Recalling(target), drafter("lookup", counts), []
        own = made.draft

        def draft(caches, history, k, cycle, own=own, script=script, strayed=strayed, free=counts == (99,)):
            read = own(caches, history, k, cycle)
            strayed.append(read.tokens != known[len(history) :][: k - 1])
            return read if free else replace(read, tokens=script.draft(caches, history, k, cycle).tokens)

        made.draft = draft
        result = generate(target, PROMPT, made, k=4, max_tokens=14, ignore_eos=True)
        need(result.tokens == reference()[0].tokens[:14], "the text differs from plain decoding")
        need(list(made.context_ids) == result.session.tokens[: len(made.context_ids)], "the drafter's context is not a committed prefix")
        taken = sum(result.stats.accepted_per_cycle) / sum(result.stats.offered_per_cycle)
        need(counts != (99,) or taken >= FLOOR, f"{taken:.0%} of the drafts are accepted, {FLOOR:.0%} is the floor; the text is right")
        need(not any(strayed), f"in {sum(strayed)} of {len(strayed)} cycles it reads a row that is not the last committed one; the text is right")
    need([type(layer) for layer in target.model.layers] == before, "reading the target has changed its layers")


CHECKS: dict[str, Callable[[], None]] = {c.__name__: c for c in (identity, state, stops, text, counters, exits, reuse, acceptance)}


def examine() -> dict[str, str]:
    """What each check finds, by its name; nothing for a decoder that passes all of them. An error is a finding too."""
    reference(), memory()
    found = {}
    for name, check in CHECKS.items():
        try:
            check()
        except Caught as caught:
            found[name] = str(caught)
        except Exception as error:
            found[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
    return found
