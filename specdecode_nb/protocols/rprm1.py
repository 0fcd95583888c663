"""RPRM Stage 1: what the drafter knows of its own guesses, beside what the target thinks of them (system of the report, 5.11).

``slots`` rows: one block of seven speculative positions at the end of a window, teacher-forced. Three strata share windows, noise and
the target's answer: ``full`` (corpus text, every draft position noise, as in decoding), ``schedule`` (the same windows, each position
noise with a rate drawn for the window, as in training) and ``own`` (the same beginnings gone on by the target itself, every position
noise). A window is one held-out document of the grammar, so no two share text.
"""
from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from .. import criteria
from ..decoder import Session, generate
from ..drafters import UnoDrafter
from ..errors import BadInput
from ..residual import SHARES
from ..streams import EVAL_NOISE, stream_seed
from ..targets import Target, mx
from ..train.grammar import CATEGORIES, document
from ..transaction import Transaction
from .common import journal_of, keeper, load_pair

ACT, BLOCK = "rprm1", 8
STRATA = ("full", "schedule", "own")
CONTEXT, OWN = (64, 256), 32  # tokens before the seed token, drawn for each window; of them the target's own in the stratum of that name
DIGITS = 3  # of a recorded number
FIELDS = ("agree", "entropy", "doubt", "second", "gap", "teacher_entropy", "bare_entropy")


def window(target: Target, number: int, seed: int) -> tuple[str, list[int]]:
    """Category and ids of one window, its last BLOCK - 1 tokens being the true ones of the block. Raises BadInput for too short a document."""
    category = list(CATEGORIES)[number % len(CATEGORIES)]
    ids = target.encode(document(category, number // len(CATEGORIES), f"{ACT}/{seed}", held_out=True))
    longest = min(CONTEXT[1], len(ids) - BLOCK)
    if longest < CONTEXT[0]:
        raise BadInput(f"Document {number} has {len(ids)} tokens with the tokenizer of {target.name!r}, but a window takes at least {CONTEXT[0] + BLOCK}; choose another target.")
    return category, ids[: random.Random(f"{seed}/context/{number}").randint(CONTEXT[0], longest) + BLOCK]


def corruption(target: Target, number: int, seed: int) -> tuple[list[int], float, list[int]]:
    """Noise ids of the block, and for ``schedule`` the rate and which positions are noise (0/1); by window alone, whatever was done before."""
    key = mx.random.key(stream_seed(seed, EVAL_NOISE, number))
    rng = random.Random(f"{seed}/rate/{number}")
    rate = rng.random()
    return mx.random.randint(1, target.vocab_size, (BLOCK - 1,), key=key).tolist(), rate, [int(rng.random() < rate) for _ in range(BLOCK - 1)]


def distribution(logits: np.ndarray) -> np.ndarray:
    """Probabilities [rows, vocab] in double precision."""
    e = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def entropy(p: np.ndarray) -> np.ndarray:
    """Nats of each row."""
    return -(p * np.log(np.maximum(p, 1e-300))).sum(axis=-1)


def features(student: np.ndarray, teacher: np.ndarray, bare: np.ndarray) -> dict[str, list]:
    """Label and signals of each position; all arguments logits [positions, vocab].

    Args:
        student: of the adapted rows. ``teacher``: of the target on the true tokens. ``bare``: of the target on the corrupted rows.
    Returns:
        agree: 1 where both prefer the same token. entropy: the student's over ln vocab. doubt: 1 minus its top-1 probability, kept
        in this form because top-1 is often near 1. second: its second probability. gap: sum of \\|teacher - bare\\|, in [0, 2].
        teacher_entropy, bare_entropy: nats. Numbers have DIGITS significant digits.
    """
    q, p, r = map(distribution, (student, teacher, bare))
    ordered = np.sort(q, axis=-1)
    found = {"entropy": np.abs(entropy(q)) / np.log(q.shape[-1]), "doubt": ordered[:, :-1].sum(axis=-1), "second": ordered[:, -2], "gap": np.abs(p - r).sum(axis=-1),
             "teacher_entropy": np.abs(entropy(p)), "bare_entropy": np.abs(entropy(r))}
    return {"agree": (student.argmax(axis=-1) == teacher.argmax(axis=-1)).astype(int).tolist(),
            **{name: [float(f"{v:.{DIGITS}g}") for v in values] for name, values in found.items()}}


def answers(target: Target, session: Session, true: Sequence[int] | None) -> tuple[np.ndarray, list[int]]:
    """The target's logits [BLOCK - 1, vocab] on the rows after the seed token, and those rows: ``true``, or without them its own best tokens."""
    with Transaction(session.cache):  # nothing is committed
        if true is not None:
            logits = target.model(mx.array([[session.tokens[-1], *true]]), cache=session.cache)[0]
            return np.array(logits.astype(mx.float32))[1:], list(true)
        rows, out = [session.tokens[-1]], []
        for _ in range(BLOCK):
            out.append(np.array(target.model(mx.array([rows[-1:]]), cache=session.cache)[0, -1].astype(mx.float32)))
            rows.append(int(out[-1].argmax()))
        return np.stack(out[1:]), rows[1:BLOCK]


def row(target: Target, drafter: UnoDrafter, session: Session, teacher: np.ndarray, rows: Sequence[int]) -> dict[str, list]:
    """The features of one block whose draft positions hold ``rows``."""
    seed = session.tokens[-1]
    with Transaction(session.cache):
        student = np.array(drafter.logits(session.cache, seed, mx.array(rows)).astype(mx.float32))[1:]
    with Transaction(session.cache):
        bare = np.array(target.model(mx.array([[seed, *rows]]), cache=session.cache)[0].astype(mx.float32))[1:]
    return features(student, teacher, bare)


def window_rows(target: Target, drafter: UnoDrafter, number: int, seed: int, done: set[str] = frozenset()) -> Iterator[dict]:
    """The rows of one window whose stratum is not in ``done``."""
    category, ids = window(target, number, seed)
    noise, rate, noised = corruption(target, number, seed)
    context, true = ids[: 1 - BLOCK], ids[1 - BLOCK :]

    def made(stratum: str, session: Session, teacher: np.ndarray, rows: Sequence[int]) -> dict:
        level, mask = (rate, noised) if stratum == "schedule" else (1.0, [])
        drafted = [n if m else t for n, t, m in zip(noise, rows, mask)] if mask else noise
        return {"kind": "slots", "stratum": stratum, "window": number, "category": category, "rate": float(f"{level:.{DIGITS}g}"), "noised": mask,
                **row(target, drafter, session, teacher, drafted)}

    if not {"full", "schedule"} <= done:
        session = Session(target)
        session.feed(context)
        teacher, rows = answers(target, session, true)
        for stratum in ("full", "schedule"):
            if stratum not in done:
                yield made(stratum, session, teacher, rows)
    if "own" not in done:
        session = Session(target)
        generate(target, context[:-OWN], max_tokens=OWN, ignore_eos=True, session=session)
        yield made("own", session, *answers(target, session, None))


def measure(params: dict, journal: Path, progress: Callable[[int, int, str], None] | None = None, resume: bool = False) -> Path:
    """Measure RPRM Stage 1 and write a row file beside ``journal``; finished rows survive a kill and are not made again.

    Args:
        params: target, drafter, windows (of each stratum), seed, dtype, quick.
        progress: called with (rows done, rows in all, label).
    Raises:
        BadInput: before anything is measured, if an input does not exist or does not fit.
    """
    target, drafter = load_pair(params)
    if not isinstance(drafter, UnoDrafter):
        raise BadInput(f"The drafter {drafter.name!r} drafts no canvas of noise, which this Act corrupts; choose uno or the path of an adapter file.")
    windows, seed = params["windows"], params["seed"]
    for number in range(windows):
        window(target, number, seed)
    config = {key: params[key] for key in ("target", "drafter", "windows", "seed", "dtype")} | {"reduced": params["quick"]}
    config |= {"strata": list(STRATA), "block": BLOCK, "vocab": target.vocab_size, "context": list(CONTEXT), "own_tokens": OWN, "shares": list(SHARES),
               "trained_block": drafter.metadata.get("recipe", {}).get("block"), "criteria": criteria.load(ACT).rules}
    with journal_of(ACT, journal, target, drafter, config, resume) as rows:
        keep = keeper(rows, windows * len(STRATA), progress)
        done: dict[int, set[str]] = {}
        for r in rows:
            done.setdefault(r["window"], set()).add(r["stratum"])
        for number in range(windows):
            keep(window_rows(target, drafter, number, seed, done.get(number, set())))
    return journal.with_suffix(".json")
