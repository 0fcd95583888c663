"""Which part of the training recipe matters: the published one, one change at a time, and all of them.

    python -m specdecode_nb.train.recipes CORPUS_DIR WORK_DIR [--steps 150]

Every arm gets the same steps, blocks, rate and seed. Judged by acceptance while decoding the prompt suite, not by a
loss. Writes data/measured/<target>/uno_recipes.json; an arm that is finished in WORK_DIR is not trained again.
"""
from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from .. import paths
from ..decoder import generate
from ..drafters import UnoDrafter
from ..environment import provenance
from ..lora import attach
from ..protocols.common import prompt_suite
from ..records import save_rows
from ..targets import load_target
from .uno import MODULES, Recipe, own_windows, train

PUBLISHED = Recipe(rank=16, modules="published", objective="tv", own_text=False, corruption="uniform")
CHANGES = {"modules": {"modules": "all"}, "rank": {"rank": 32}, "objective": {"objective": "ce"}, "text": {"own_text": True},
           "corruption": {"corruption": "full"}}


def arms(steps: int) -> dict[str, Recipe]:
    base = replace(PUBLISHED, steps=steps)
    every = {k: v for change in CHANGES.values() for k, v in change.items()}
    return ({"published": base} | {f"+{name}": replace(base, **change) for name, change in CHANGES.items()}
            | {"all": replace(base, **every)}
            | {f"all -{name}": replace(base, **(every | {k: getattr(PUBLISHED, k) for k in change})) for name, change in CHANGES.items()})


def acceptance(target, adapted, gate, k: int, tokens: int) -> dict:
    """Free-running acceptance on the prompt suite: accepted prefix per cycle, in rows that statistics can pool."""
    drafter, accepted, offered = UnoDrafter(target, adapted, gate), [], []
    for p in prompt_suite():
        stats = generate(target, p["text"], drafter=drafter, k=k, max_tokens=tokens, ignore_eos=True).stats
        accepted += stats.accepted_per_cycle
        offered += stats.offered_per_cycle
    return {"k": k, "tokens": tokens, "accepted_per_cycle": accepted, "offered_per_cycle": offered}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--only", nargs="*", help="arms to run; default all")
    o = parser.parse_args()
    o.work.mkdir(parents=True, exist_ok=True)
    target, tokens = load_target("tiny-hybrid"), np.load(o.corpus / "train.npy")
    cached = o.work / "own.npy"
    if not cached.exists():
        np.save(cached, own_windows(target, tokens, 544, 128, 384, PUBLISHED.seed))
    own, n = np.load(cached), (len(tokens) - 1) // 384
    text, before = tokens[: n * 384].reshape(n, 384), target.digest()
    rows = [{"kind": "recipe", "arm": "untrained", "recipe": None, "seconds": 0.0, "agreement": None,
             **acceptance(target, *attach(target.model, PUBLISHED.rank, MODULES["published"]), 4, o.tokens)}]
    for name, recipe in arms(o.steps).items():
        if o.only and name not in o.only:
            continue
        done = o.work / f"{name}.json"
        if not done.exists():
            print(name, recipe, flush=True)
            adapted, gate, log = train(target, own[32:] if recipe.own_text else text, own[:32], recipe, lowest=128)
            row = {"kind": "recipe", "arm": name, "recipe": asdict(recipe), "seconds": log["seconds"],
                   "agreement": log["agreement"][-1][1], **acceptance(target, adapted, gate, 4, o.tokens)}
            print(name, np.mean(row["accepted_per_cycle"]), flush=True)
            done.write_text(json.dumps(row))
        rows.append(json.loads(done.read_text()))
    if target.digest() != before:
        raise RuntimeError("The target's digest changed during training; these rows are void.")
    record = provenance() | {"target": {"name": target.name, "digest": before, "parameters": target.parameters(), "dtype": target.dtype}}
    save_rows(paths.data() / "measured" / target.name / "uno_recipes.json", act="uno_recipes", target=target.name, provenance=record,
              config={"steps": o.steps, "tokens": o.tokens, "reduced": False}, rows=rows)


if __name__ == "__main__":
    main()
