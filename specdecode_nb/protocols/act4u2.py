"""Act IV-U2: the ways to undo, decoded with, timed commit by commit, and the algebra of rewind on the gates of real text.

Drafts are dropped whole and the verify forward takes K + 1 rows, as published, so that an arm differs from another of its K in
the undo of the verify forward alone. The plain continuation of a prompt supplies the rows of every other section.
"""
from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from .. import criteria
from ..decoder import generate
from ..drafters import NAMES, NOISE_SEED, load_drafter
from ..errors import BadInput
from ..gdn import RecurrentCache, Tape
from ..rewind import amplification, rewind
from ..targets import Target, load_target, mx
from ..transaction import SCHEMES, Transaction, restore, snapshot
from .common import WARMUP_PROMPTS, check_room, decode_rows, decoded, drafting_arm, journal_of, keeper, plain_arms, prompt_suite

GATE_PROMPTS, GATE_TOKENS = 9, 48
GUARDS = (("both", 1.0), ("both", 10.0), ("both", 100.0), ("both", 1000.0), ("both", None), ("beta", 100.0))


def recurrent(cache: Sequence) -> list[RecurrentCache]:
    return [c for c in cache if isinstance(c, RecurrentCache)]


def evaluated(cache: Sequence) -> None:
    mx.eval([c.state for c in cache])


def prefilled(target: Target, ids: Sequence[int]) -> list:
    """Caches that have consumed ``ids`` but for the last."""
    cache = target.make_cache()
    if len(ids) > 1:
        target.model(mx.array([ids[:-1]]), cache=cache)
        evaluated(cache)
    return cache


def one_commit(target: Target, cache: list, start: list, rows: Sequence[int], kept: int, scheme: str) -> dict:
    """From ``start``: forward ``rows``, commit ``kept`` by ``scheme``; milliseconds between barriers, and what was held."""
    restore(cache, start)
    clock, again = time.perf_counter, None
    if scheme == "replay":
        again = lambda n: target.model(mx.array([rows[:n]]), cache=cache)  # noqa: E731
    with Transaction(cache, scheme, rerun=again) as tx:
        began = clock()
        mx.eval(mx.argmax(target.model(mx.array([rows]), cache=cache)[0], axis=-1))
        evaluated(cache)
        verified = clock()
        tx.commit(kept)
        evaluated(cache)
        done = clock()
    return {"commit_ms": 1000 * (done - verified), "verify_ms": 1000 * (verified - began), "bytes": tx.recorded_bytes, "steps": tx.rewind_steps,
            "fallbacks": tx.rewind_fallbacks, "states": [np.array(c[1]) for c in recurrent(cache)]}


def commit_rows(target: Target, prompts: Sequence[dict], texts: Mapping[str, list[int]], widths: Sequence[int], repeats: int, done: set) -> Iterator[dict]:
    """One row a scheme for each width and count not in ``done`` ((scheme, width, kept)). Repetition r is on prompt r of the suite, taken
    around; schemes follow each other on it in an order that rotates, and a first pass is dropped.

    Args:
        texts: by prompt id, the prompt's ids and its plain continuation; the last prompt token begins the block.
    """
    starts = []
    for p in prompts[:repeats]:
        ids, continuation = texts[p["id"]]
        cache = prefilled(target, ids)
        starts.append((p["id"], cache, snapshot(cache), [ids[-1], *continuation]))
    for width in widths:
        for kept in range(1, width + 1):
            if all((scheme, width, kept) in done for scheme in SCHEMES):
                continue
            found: dict[str, list] = {scheme: [] for scheme in SCHEMES}
            for r in range(-1, repeats):
                name, cache, start, ids = starts[max(0, r) % len(starts)]
                turn = r % len(SCHEMES)
                trial = {scheme: one_commit(target, cache, start, ids[:width], kept, scheme) for scheme in SCHEMES[turn:] + SCHEMES[:turn]}
                if r < 0:
                    continue
                wanted = trial["per_token_states"]["states"]
                for scheme, t in trial.items():
                    gap = max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(t["states"], wanted))
                    found[scheme].append(t | {"id": name, "error": gap, "states": None})
            for scheme, trials in found.items():
                if (scheme, width, kept) not in done:
                    column = lambda key: [t[key] for t in trials]  # noqa: E731
                    yield {"kind": "commit", "scheme": scheme, "width": width, "kept": kept, "prompt_ids": column("id"),
                           "commit_ms": [round(v, 5) for v in column("commit_ms")], "verify_ms": [round(v, 5) for v in column("verify_ms")],
                           "state_error": column("error"), "rewind_fallbacks": column("fallbacks"), "rewind_steps": trials[0]["steps"],
                           "recorded_bytes": trials[0]["bytes"]}


def taped(target: Target, cache: list, rows: Sequence[int]) -> list[Tape]:
    """The tapes of one forward over ``rows``, recorded for rewind."""
    for c in recurrent(cache):
        c.tape = Tape("rewind")
    target.model(mx.array([rows]), cache=cache)
    evaluated(cache)
    tapes = [c.tape for c in recurrent(cache)]
    for c in recurrent(cache):
        c.tape = None
    return tapes


def short(values: np.ndarray) -> list[float]:
    """Flat, to five significant digits."""
    return [float(f"{v:.5g}") for v in values.ravel().tolist()]


def gate_rows(target: Target, prompt: dict, text: tuple[list[int], list[int]]) -> Iterator[dict]:
    """Write strength and decay of every head at every position of the prompt and its continuation, by layer.

    Where float32 has rounded beta to one, 1 - beta counts as half the spacing below one; where it has rounded g to zero, g
    counts as the smallest normal number. Both are counted.
    """
    layers = [i for i, c in enumerate(target.make_cache()) if isinstance(c, RecurrentCache)]
    ids, continuation = text
    for layer, tape in zip(layers, taped(target, target.make_cache(), [*ids, *continuation[:GATE_TOKENS]])):
        beta, g = (np.array(mx.concatenate(a), dtype=np.float64) for a in (tape.betas, tape.decays))
        left, kept = np.maximum(1 - beta, 2.0**-25), np.maximum(g, float(np.finfo(np.float32).tiny))
        yield {"kind": "gates", "prompt_id": prompt["id"], "category": prompt["category"], "layer": layer, "positions": len(beta), "heads": beta.shape[1],
               "write_logit": short(np.log(np.maximum(beta, 1e-30) / left)), "fade": short(np.maximum(0.0, -np.log(kept))),
               "beta_is_one": int((beta == 1).sum()), "decay_is_zero": int((g == 0).sum())}


def by_beta(k, g, beta):
    """Amplification as a guard would see it that looks at the write strength alone."""
    return amplification(k, mx.ones_like(g), beta)


def rewind_rows(target: Target, prompt: dict, text: tuple[list[int], list[int]], widths: Sequence[int]) -> Iterator[dict]:
    """Blocks of the plain continuation rewound from the end to their first row, under each guard."""
    ids, continuation = text
    cache = prefilled(target, ids)
    start = snapshot(cache)
    for width in widths:
        restore(cache, start)
        tapes = taped(target, cache, [ids[-1], *continuation][:width])
        for guard, limit in GUARDS:
            errors, fallbacks = [], 0
            for tape in tapes:
                state, count = rewind(tape, 1, math.inf if limit is None else limit, amplification if guard == "both" else by_beta)
                wanted = np.array(tape.states[0], dtype=np.float64)
                errors.append(np.abs(np.array(state) - wanted).max() / np.abs(wanted).max())
                fallbacks += count.item()
            worst = float(np.max(errors))  # a NaN stays one
            yield {"kind": "rewind", "prompt_id": prompt["id"], "category": prompt["category"], "width": width, "kept": 1, "guard": guard, "limit": limit,
                   "steps": sum((t.rows - 1) * t.betas[0].size for t in tapes), "fallbacks": fallbacks, "relative_error": worst if math.isfinite(worst) else None}


def pair_of(params: Mapping):
    """The target, and the drafter in its published form: the whole draft is dropped. Raises BadInput, also for no drafter."""
    target = load_target(params["target"], params["dtype"])
    options = {} if params["drafter"] in NAMES[1:] else {"keep_seed": False}
    drafter = load_drafter(params["drafter"], target, **options) if params["drafter"] != "none" else None
    if drafter is None:
        raise BadInput("The drafter is None, but this Act measures drafting; choose uno or the path of an adapter file.")
    return target, drafter


def measure(params: dict, journal: Path, progress: Callable[[int, int, str], None] | None = None, resume: bool = False) -> Path:
    """Measure Act IV-U2 and write a row file beside ``journal``; finished rows survive a kill and are not measured again.

    Args:
        params: target, drafter, block_sizes, tokens, repeats, prompts, widths, commits, dtype, quick.
        progress: called with (rows done, rows in all, label).
    Returns:
        The path of the finished row file.
    Raises:
        BadInput: before anything is measured, if an input does not exist or does not fit.
    """
    rules = criteria.load("act4u2")
    target, drafter = pair_of(params)
    prompts = prompt_suite(target, params["prompts"])
    widths, blocks = sorted(params["widths"]), params["block_sizes"]
    arms = plain_arms(target) | {f"{scheme}_k{k}": drafting_arm(target, drafter, k, scheme=scheme) for k in blocks for scheme in SCHEMES}
    needed = max(params["tokens"], *widths, *(k + 1 for k in blocks), GATE_TOKENS)
    check_room(target, prompts, needed, max(blocks))
    config = {key: params[key] for key in ("target", "drafter", "block_sizes", "tokens", "repeats", "widths", "commits", "dtype")}
    config |= {"reduced": params["quick"], "prompts": [p["id"] for p in prompts], "warmup_prompts": WARMUP_PROMPTS, "noise_seed": NOISE_SEED, "arms": list(arms),
               "criteria": rules.rules, "gate_prompts": GATE_PROMPTS, "gate_tokens": GATE_TOKENS}
    layers = len(recurrent(target.make_cache()))
    gated = prompt_suite(target, min(GATE_PROMPTS, len(prompts)))
    total = len(prompts) * (len(arms) * params["repeats"] + len(blocks) * len(GUARDS)) + sum(widths) * len(SCHEMES) + layers * len(gated)
    with journal_of("act4u2", journal, target, drafter, config, resume) as rows:
        keep = keeper(rows, total, progress)
        texts = {p["id"]: (ids := target.encode(p["text"]), generate(target, ids, max_tokens=needed, ignore_eos=True).tokens) for p in prompts}
        keep(commit_rows(target, prompts, texts, widths, params["commits"], {(r["scheme"], r["width"], r["kept"]) for r in rows if r["kind"] == "commit"}))
        keep(decode_rows(target, prompts, arms, params["tokens"], params["repeats"], decoded(rows)))
        seen = {(r["prompt_id"], r["layer"]) for r in rows if r["kind"] == "gates"}
        for p in gated:
            keep(row for row in gate_rows(target, p, texts[p["id"]]) if (row["prompt_id"], row["layer"]) not in seen)
        seen = {(r["prompt_id"], r["width"], r["guard"], r["limit"]) for r in rows if r["kind"] == "rewind"}
        for p in prompts:
            made = rewind_rows(target, p, texts[p["id"]], [k + 1 for k in blocks])
            keep(row for row in made if (row["prompt_id"], row["width"], row["guard"], row["limit"]) not in seen)
    return journal.with_suffix(".json")
