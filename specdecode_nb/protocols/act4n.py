"""Act IV-N taken up again: Stage 0 (checks), Stage 1 (every condition can learn one batch), Stage 2 (structured against permuted states, held out).

A seed is a whole replicate: alphabet, permutation, first adapter, order of the text, noise and held-out windows of its own. Within a seed
every launch shares all of these, so that E less D is a number for each window, and the seeds are independent of each other.
Of the original only the stages, 11 runs and "E against D" are known. Our 11 runs are five conditions with and without the second pass, and E
with a shuffled one. The first ``full`` seeds run all of them, the others the five that the decision needs.
Rows: ``alphabet``, ``state_check``, ``state_told`` (before training), and for each launch its ``state_score`` rows and then ``state_launch``.
``part=bare`` makes the launches that the decision needs again without the timestep conditioner, beside a table of the states (``state_table`` rows).
"""
from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from .. import criteria
from ..errors import BadInput
from ..families import tower
from ..targets import Target, load_target, mx
from ..train import alphabet as symbols
from ..train.alphabet import CONDITIONS, STATES, Alphabet
from ..train.corpus import windows
from ..train.states import ARMS, CANVAS, GATE, LEVELS, PREFIX, Recipe, by_table, nats, score, told, training
from . import act4n_checks as checks
from .common import journal_of, keeper

ACT, BARE = "act4n", "act4n_bare"
TEXT = f"denoise/{ACT}"  # what its documents are drawn by
FIRST_SEED = 20260901  # the day on which the Act was paused
DECISIVE = (("D", "causal"), ("E", "causal"), ("D", "aligned"), ("E", "aligned"), ("E", "shuffled"))
OTHERS = tuple((condition, arm) for condition in "ABC" for arm in ("causal", "aligned"))
BY_HEART = 2  # windows of the one batch of Stage 1, as in Act I
CHECK_WINDOWS = 16
APART = 4  # one held-out window in so many, so that a few come from many documents
EXAMPLES = 6
QUIET = {"say": lambda *_, **__: None}


def runs(params: dict) -> list[tuple[str, str, int]]:
    """(condition, arm, seed) of the launches of Stage 2, in order."""
    return [(*run, seed) for i, seed in enumerate(seeds_of(params)) for run in DECISIVE + (OTHERS if i < params["full"] else ())]


def seeds_of(params: dict) -> list[int]:
    return [FIRST_SEED + i for i in range(params["seeds"])]


def alphabet_of(target: Target, text: np.ndarray, seed: int) -> Alphabet:
    """The alphabet of one seed: buckets of the target's own token embeddings, frequencies of the training text."""
    vectors = tower(target.model).embed_tokens(mx.arange(target.vocab_size)).astype(mx.float32)
    return symbols.build(np.array(vectors), np.bincount(text.ravel(), minlength=target.vocab_size), seed)


def alphabet_row(target: Target, alphabet: Alphabet, seed: int) -> dict:
    both = {c: alphabet.labels(c) for c in "DE"}
    common = np.argsort(-alphabet.frequencies, kind="stable")
    return {"kind": "alphabet", "seed": seed, "states": alphabet.states, "vocabulary": alphabet.vocab,
            "entropy": {c: symbols.entropy_bits(v) for c, v in both.items()},
            "text_entropy": {c: symbols.entropy_bits(v, alphabet.frequencies) for c, v in both.items()},
            "sizes": np.bincount(both["E"], minlength=alphabet.states).tolist(), "shares": [round(v, 6) for v in alphabet.shares().tolist()],
            "kept": float(alphabet.frequencies[both["D"] == both["E"]].sum() / alphabet.frequencies.sum()),
            "examples": [[target.tokenizer.decode([int(i)]) for i in common[both["E"][common] == s][:EXAMPLES]] for s in range(alphabet.states)]}


def launch(target: Target, alphabet: Alphabet, stage: int, condition: str, arm: str, recipe: Recipe, text: np.ndarray,
           held_out: np.ndarray | None) -> Iterator[dict]:
    """One training run: its score rows (Stage 2), then its launch row. Stage 1 sees one batch again and again and is asked for that batch."""
    loop, canvas = training(target, alphabet, condition, arm, recipe, text)
    batch = loop.batches(0)
    if stage == 1:
        loop.batches = lambda step: (step, *batch[1:])
    stopped, hidden, right = None, 0, 0
    try:
        loop.run(recipe.steps, **QUIET)
    except FloatingPointError as error:
        stopped = str(error)
    if stopped is None and stage == 1:
        _, ids, clean, hit, t = batch
        hidden, right = int(hit.sum()), int((nats(loop.model, ids, clean, t)[1] & hit).sum())
    if stopped is None and stage == 2:
        for level in LEVELS:
            yield {"kind": "state_score", "condition": condition, "arm": arm, "seed": recipe.seed,
                   **score(loop.model, canvas, alphabet, condition, recipe.seed, held_out, level)}
    kept = [entry for entry in loop.log["loss"] if np.isfinite(entry[1:]).all()]
    yield {"kind": "state_launch", "stage": stage, "condition": condition, "arm": arm, "seed": recipe.seed, "steps": recipe.steps,
           "trained": sum(v.size for v in loop.model.trainable().values()), "losses": [e[1] for e in kept], "norms": [e[2] for e in kept],
           "hidden": hidden, "right": right, "seconds": loop.seconds, "digest": loop.model.fingerprint(), "target_digest": target.digest(), "stopped": stopped}


def key(row: dict) -> tuple:
    """What tells the rows of a run apart."""
    return tuple(row.get(name) for name in ("kind", "stage", "check", "condition", "arm", "seed", "level"))


def bench(act: str, params: dict, launches: list[tuple[str, str, int]]) -> tuple:
    """What both parts begin with: target, training text, held-out windows by seed, seeds, recipe of the first seed, and what the row file says of them."""
    target, seeds = load_target(params["target"], "float32"), seeds_of(params)
    text = windows(target, params["train_windows"], PREFIX + CANVAS, TEXT)
    held_out = {seed: windows(target, params["windows"], PREFIX + CANVAS, f"{TEXT}/{seed}", held_out=True, apart=APART) for seed in seeds}
    recipe = Recipe(FIRST_SEED, *(params[name] for name in ("steps", "batch", "lr")), conditioner=act == ACT)
    digest = lambda ids: hashlib.sha256(ids.astype("<i4").tobytes()).hexdigest()  # noqa: E731
    return target, text, held_out, seeds, recipe, {name: params[name] for name in ("target", "windows", "train_windows")} | {
        "reduced": params["quick"], "dtype": "float32", "seeds": seeds, "runs": [list(run) for run in launches], "conditions": dict(CONDITIONS),
        "arms": list(ARMS), "gate": GATE, "levels": list(LEVELS), "states": STATES, "near": symbols.NEAR, "prefix": PREFIX, "canvas": CANVAS, "apart": APART,
        "recipe": {k: v for k, v in asdict(recipe).items() if k != "seed"}, "loss": "corrupted positions of the canvas",
        "text": {"train": digest(text), **{f"held_out/{seed}": digest(ids) for seed, ids in held_out.items()}}, "criteria": criteria.load(act).rules}


def bare(params: dict, journal: Path, progress: Callable[[int, int, str], None] | None = None, resume: bool = False) -> Path:
    """The decisive launches of Stage 2 without a timestep conditioner, and what a table of the states reads out; otherwise as :func:`measure`."""
    launches = [(*run, seed) for seed in seeds_of(params) for run in DECISIVE]
    target, text, held_out, seeds, recipe, config = bench(BARE, params, launches)
    with journal_of(BARE, journal, target, SimpleNamespace(name="none"), config, resume) as rows:
        keep, have = keeper(rows, len(seeds) * 2 * len(LEVELS) + len(launches) * (len(LEVELS) + 1), progress), {key(r) for r in rows}
        new = lambda found: keep(r for r in found if key(r) not in have)  # noqa: E731
        alphabets = {seed: alphabet_of(target, text, seed) for seed in seeds}
        new({"kind": "state_table", "condition": c, "seed": seed, **by_table(alphabets[seed].labels(c), text, seed, held_out[seed], level)}
            for seed in seeds for c in "DE" for level in LEVELS)
        for condition, arm, seed in launches:
            if ("state_launch", 2, None, condition, arm, seed, None) not in have:
                new(launch(target, alphabets[seed], 2, condition, arm, replace(recipe, seed=seed), text, held_out[seed]))
    return journal.with_suffix(".json")


def measure(params: dict, journal: Path, progress: Callable[[int, int, str], None] | None = None, resume: bool = False) -> Path:
    """Measure Act IV-N and write a row file beside ``journal``; a launch that was finished is not trained again.

    Args:
        params: target, seeds (number), full (seeds that run every condition), steps, batch, lr, heart_steps, windows (held out, a seed),
            train_windows, quick.
        progress: called with (rows done, rows in all, label).
    Returns:
        The path of the finished row file.
    Raises:
        BadInput: before anything is trained, if an input does not fit.
        RuntimeError: a check of Stage 0 fails; its row is in the journal, and nothing is trained.
    """
    if params["full"] > params["seeds"]:
        raise BadInput(f"full is {params['full']}, but there are only {params['seeds']} seeds; give as many seeds or fewer full ones.")
    target, text, held_out, seeds, recipe, config = bench(ACT, params, runs(params))
    config |= {name: params[name] for name in ("full", "heart_steps")} | {"checks": list(checks.CHECKS)}
    total = len(checks.CHECKS) + len(CONDITIONS) + 3 * len(seeds) + len(runs(params)) * (len(LEVELS) + 1)
    with journal_of(ACT, journal, target, SimpleNamespace(name="none"), config, resume) as rows:
        keep, have = keeper(rows, total, progress), {key(r) for r in rows}
        new = lambda found: keep(r for r in found if key(r) not in have)  # noqa: E731
        alphabets = {seed: alphabet_of(target, text, seed) for seed in seeds}
        new(alphabet_row(target, alphabets[seed], seed) for seed in seeds)
        first = alphabets[seeds[0]]
        keep(checks.run(checks.Bench(target, first, text[:CHECK_WINDOWS], recipe), {r["check"] for r in rows if r["kind"] == "state_check"}))
        if failed := [r["check"] for r in rows if r["kind"] == "state_check" and not r["passed"]]:
            raise RuntimeError(f"Stage 0 fails: {'; '.join(failed)}. Nothing is trained with an alphabet or a model that is not as it should be.")
        new({"kind": "state_told", "condition": c, "seed": seed, **told(target, alphabets[seed].labels(c), STATES, held_out[seed])} for seed in seeds for c in "DE"
            if ("state_told", None, None, c, None, seed, None) not in have)
        for stage, condition, arm, seed in [(1, c, "aligned", seeds[0]) for c in CONDITIONS] + [(2, *run) for run in runs(params)]:
            if ("state_launch", stage, None, condition, arm, seed, None) not in have:  # its scores may be there already: they come out the same again
                chosen = replace(recipe, seed=seed) if stage == 2 else replace(recipe, steps=params["heart_steps"], batch=BY_HEART)
                new(launch(target, alphabets[seed], stage, condition, arm, chosen, text, held_out[seed] if stage == 2 else None))
    return journal.with_suffix(".json")
