"""Rows of Act V, made in a child process each BLAS of its own: bit identity, width noise, the audit of flips, the price of exactness.

A BLAS is chosen once for a process, so the two are compared by two processes. A request names a ``section`` and a prompt:

``reference``  every arm against plain decoding, tokens and states bit for bit (toy and target)
``exact``      every arm on the grid against plain decoding on the grid, and that against ordinary plain decoding
``noise``      one text by one row and by several rows at a time: the width noise of the logits
``audit``      drafted texts, every position judged by the plain target
``price``      timed decode rows with and without the grid
``museum``     faults of other projects put into our source, and which check of the battery sees them
"""
from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache

import numpy as np

from .. import blas
from ..decoder import Session, generate
from ..drafters import Draft, NgramDrafter, RandomDrafter, UnoDrafter
from ..exact import CELL
from ..lora import PUBLISHED, attach
from ..targets import Target, load_target, mx
from . import machine, museum, toy
from .common import decode_rows, drafting_arm, load_drafters, plain_arms

SEED = 20261204
SLACK = 24  # plain tokens known beyond the compared ones, so that a scripted draft can run over the end
NARROW = 4


class Nothing:
    """Proposes nothing: the decoder's own loop of drafting cycles, one row each, as a control."""

    name, exact = "nothing", 0

    def draft(self, cache, history, k, cycle) -> Draft:
        return Draft([])


class Watched:
    """A drafter whose ``calls`` keep every forward of the target since its first draft: (position of its first row, ids, logits [T, V])."""

    def __init__(self, target: Target, inner):
        self._inner, self._forward, self.calls, self._drafting = inner, getattr(inner, "verifier", target.model), [], False

    def __getattr__(self, name: str):
        return getattr(self._inner, name)

    def draft(self, *arguments) -> Draft:
        self._drafting = True
        return self._inner.draft(*arguments)

    def verifier(self, ids, cache):
        start, logits = cache[0].offset, self._forward(ids, cache=cache)
        if self._drafting:
            self.calls.append((start, ids[0].tolist(), logits[0]))
        return logits


def toy_arms(target: Target, known: Callable[[], list[int]], prompt: Sequence[int]) -> dict[str, tuple]:
    """Arm -> (drafter, k, scheme) of the toy. Scripted drafters know the plain text and err after counts drawn for this prompt."""
    text = known()
    counts = [int(c) for c in np.random.default_rng([SEED, *prompt]).integers(0, 9, 64)] + [3]
    script = lambda form: toy.ScriptedDrafter(target, text, len(prompt), counts, form)  # noqa: E731
    untrained = UnoDrafter(target, *attach(target.model, 4, PUBLISHED))
    return ({f"kept_k{k}": (script("kept"), k, "tape") for k in (2, 4, 8, 16)} | {f"lookup_k{k}": (script("lookup"), k, "tape") for k in (4, 8)}
            | {"published_k4": (script("published"), 4, "tape"), "kept_k8_states": (script("kept"), 8, "per_token_states"),
               "kept_k8_replay": (script("kept"), 8, "replay"), "untrained_k4": (untrained, 4, "tape"),
               "ngram2_k4": (NgramDrafter(2), 4, "tape"), "random_k4": (RandomDrafter(target.vocab_size), 4, "tape")})


def arms(target: Target, drafters: Mapping, widths: Sequence[int]) -> dict[str, tuple]:
    """Arm -> (drafter, k, scheme) of a target with trained drafters, by block width where it can be varied."""
    block = drafters["dflash"]
    return ({f"uno_k{k}": (drafters["uno"], k, "tape") for k in widths}
            | {f"dflash_b{k}": (block, k, "tape") for k in widths if NARROW <= k <= block.block_size}
            | {f"mtp_k{NARROW}": (drafters["mtp"], NARROW, "tape"), f"ngram2_k{NARROW}": (NgramDrafter(2), NARROW, "tape"),
               f"random_k{NARROW}": (RandomDrafter(target.vocab_size), NARROW, "tape")})


def toy_prompt(number: int) -> list[int]:
    """From 2 to 40 random ids of the toy's vocabulary, the same for a number."""
    draw = random.Random(f"{SEED}:{number}")
    return [draw.randrange(2, toy.VOCAB) for _ in range(draw.randrange(2, 41))]


def differing(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> int:
    """Numbers whose bits differ, in two lists of arrays of the same shapes."""
    words = lambda a: a if a.dtype.kind == "i" else a.view(np.uint32)  # noqa: E731
    return sum(int((words(a) != words(b)).sum()) for a, b in zip(one, other, strict=True))


def compared(reference, result, about: dict, accepted: int, seconds: float) -> dict:
    """An identity row: two results whose sessions are at their ends."""
    apart = [i for i, (a, b) in enumerate(zip(reference.tokens, result.tokens, strict=True)) if a != b]
    row = {"kind": "identity", **about, "tokens": len(result.tokens), "accepted": accepted, "token_mismatches": len(apart),
           "first_divergence": apart[0] if apart else None, "states": None, "state_mismatches": None, "seconds": seconds}
    if not apart:
        mine, theirs = toy.bits(reference.session.cache), toy.bits(result.session.cache)
        row |= {"states": sum(a.size for a in mine), "state_mismatches": differing(mine, theirs)}
    return row


def identity_rows(target: Target, prompt: list[int], tokens: int, make: Callable, about: dict, exact: bool) -> Iterator[dict]:
    """Every arm of ``make(known, prompt)`` against plain decoding, ``known()`` being its text and more; on the grid if ``exact``, with a row for what the grid does to the plain text."""
    def decode(n, drafter=None, k=1, scheme="tape", exact=exact):
        began = time.perf_counter()
        return generate(target, prompt, drafter, k=k, max_tokens=n, ignore_eos=True, scheme=scheme, exact=exact), time.perf_counter() - began

    about = about | {"against": "plain_exact" if exact else "plain"}
    reference, seconds = decode(tokens)
    if exact:
        ordinary, _ = decode(tokens, exact=False)
        row = compared(ordinary, reference, about | {"arm": "exact", "against": "plain"}, 0, seconds)
        # one row a forward there and a cell of them here: the states are expected to differ where the kernels do
        yield row | {"prefix": row["tokens"] if row["first_divergence"] is None else row["first_divergence"]}
    known = lambda: decode(tokens + SLACK)[0].tokens  # noqa: E731
    for arm, (drafter, k, scheme) in make(known, prompt).items():
        result, seconds = decode(tokens, drafter, k, scheme)
        yield compared(reference, result, about | {"arm": arm}, sum(result.stats.accepted_per_cycle), seconds)


def forced(target: Target, prompt: list[int], tokens: Sequence[int], width: int = 1) -> np.ndarray:
    """Float32 logits [n, V] before each of ``tokens``, forwarded ``width`` rows at a time after the shared prefill."""
    session, found = Session(target), []
    session.feed(prompt)
    ids = [prompt[-1], *tokens[:-1]]
    for start in range(0, len(ids), width):
        found.append(np.array(target.model(mx.array([ids[start : start + width]]), cache=session.cache)[0].astype(mx.float32)))
        mx.eval([c.state for c in session.cache])
    return np.concatenate(found)


def noise_rows(target: Target, prompt: list[int], tokens: list[int], widths: Sequence[int], about: dict) -> Iterator[dict]:
    """The width noise along one fixed text. States go on from forwards of the same width, as they do in decoding."""
    plain = forced(target, prompt, tokens)
    for width in sorted({*widths, CELL}):
        other = forced(target, prompt, tokens, width)
        change = np.abs(other - plain).max(axis=-1)
        yield {"kind": "width_noise", **about, "width": width, "positions": len(tokens), "rows_changed": int((change > 0).sum()),
               "largest_change": float(change.max()), "median_change": float(np.median(change)), "largest_logit": float(np.abs(plain).max()),
               "flips": int((plain.argmax(axis=-1) != other.argmax(axis=-1)).sum())}


def audit_row(plain: np.ndarray, prompt: list[int], tokens: list[int], calls: list, about: dict) -> dict:
    """Judge ``tokens`` by ``plain`` logits [n, V] before each of them, and the rows that verify forwards computed for them (10.4)."""
    best, top = plain.argmax(axis=-1), np.sort(np.partition(plain, -2, axis=-1)[:, -2:], axis=-1)
    flips = [i for i, t in enumerate(tokens) if best[i] != t]
    ids, apart = prompt + tokens, []
    for start, rows, logits in calls:
        right = next((i for i, t in enumerate(rows) if start + i >= len(ids) or ids[start + i] != t), len(rows))
        first = start + 1 - len(prompt)  # the token that row 0 chooses
        right = min(right, len(tokens) - first)
        if right > 0:
            apart += np.abs(np.array(logits[:right].astype(mx.float32)) - plain[first : first + right]).max(axis=-1).tolist()
    return {"kind": "audit", **about, "positions": len(tokens), "exact_ties": int((top[:, 0] == top[:, 1]).sum()), "flip_positions": flips,
            "flip_gaps": [float(top[i, 1] - plain[i, tokens[i]]) for i in flips], "rows_compared": len(apart),
            "rows_changed": sum(a > 0 for a in apart), "largest_change": max(apart, default=0.0)}


def audit_rows(target: Target, prompt: list[int], tokens: int, chosen: Mapping[str, tuple], about: dict) -> Iterator[dict]:
    """Every arm's text under the audit, the control that drafts nothing first."""
    def decode(drafter=None, k=1):
        return generate(target, prompt, drafter, k=k, max_tokens=tokens, ignore_eos=True).tokens

    plain_text = decode()
    plain = forced(target, prompt, plain_text)
    for arm, (drafter, k, _) in ({"nothing": (Nothing(), 1, "")} | dict(chosen)).items():
        watched = Watched(target, drafter)
        text = decode(watched, k)
        first = next((i for i, (a, b) in enumerate(zip(plain_text, text)) if a != b), None)
        logits = plain if first is None else forced(target, prompt, text)
        yield audit_row(logits, prompt, text, watched.calls, about | {"arm": arm, "family": arm.split("_")[0], "width": k, "first_divergence": first})


def price_arms(target: Target, drafters: Mapping) -> dict:
    """The two plain baselines, and plain decoding, adapter, block drafter and lookup without and with the grid."""
    pairs = {"": (None, 1), f"uno_k{NARROW}": (drafters["uno"], NARROW), f"dflash_b{CELL}": (drafters["dflash"], CELL), f"ngram2_k{NARROW}": (NgramDrafter(2), NARROW)}
    found = plain_arms(target)
    for arm, (drafter, k) in pairs.items():
        found |= {arm: drafting_arm(target, drafter, k)} if arm else {}
        found |= {f"{arm}_exact".lstrip("_"): drafting_arm(target, drafter, k, exact=True)}
    return found


def prepare(setup: dict) -> Callable[[dict], Iterator[dict]]:
    """What answers requests: targets and drafters are loaded once a type of numbers."""
    widths, warmed = setup["widths"], set()

    @cache
    def loaded(dtype: str):
        target = load_target(setup["target"], dtype)
        return target, load_drafters(target)[0]

    def answer(r: dict) -> Iterator[dict]:
        section, dtype = r["section"], r["dtype"]
        about = {"section": section, "blas": blas.report()["name"], "dtype": dtype, "prompt_id": r["prompt"]["id"]}
        if section == "museum":
            yield from ({**row, **about} for row in museum.rows())
            return
        if r["model"] == "toy":
            target, prompt = toy.hybrid(dtype=dtype), toy_prompt(int(r["prompt"]["id"].rpartition("-")[2]))
            make = lambda known, ids: toy_arms(target, known, ids)  # noqa: E731
        else:
            target, drafters = loaded(dtype)
            prompt = r["prompt"]["ids"] if "ids" in r["prompt"] else target.encode(r["prompt"]["text"])
            make = lambda known, ids: arms(target, drafters, widths)  # noqa: E731
        if section in ("reference", "exact"):
            fits = (lambda known, ids: {a: v for a, v in make(known, ids).items() if v[1] <= CELL and v[2] != "replay"}) if section == "exact" else make
            yield from identity_rows(target, prompt, r["tokens"], fits, about | {"model": r["model"]}, section == "exact")
        elif section == "noise":
            text = generate(target, prompt, None, max_tokens=r["tokens"], ignore_eos=True).tokens
            yield from noise_rows(target, prompt, text, widths, about)
        elif section == "audit":
            yield from audit_rows(target, prompt, r["tokens"], arms(target, drafters, widths), about | {"category": r["prompt"]["category"]})
        else:
            warm = [] if dtype in warmed else [r["prompt"]]
            warmed.add(dtype)
            yield from decode_rows(target, [r["prompt"]], price_arms(target, drafters), r["tokens"], r["repeats"], warm=warm, section=section,
                                   blas=about["blas"], dtype=dtype)

    return answer


if __name__ == "__main__":
    machine.main(prepare)
