"""Which part of the training recipe matters: the published one, one change at a time, and all of them.

    python -m specdecode_nb.train.recipes CORPUS_DIR WORK_DIR [--steps 100]

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
from ..records import save_rows, write_atomic
from ..targets import load_target
from .uno import MODULES, Recipe, cached, own_windows, train

WINDOW = 384
PUBLISHED = Recipe(rank=16, modules="published", objective="tv", own_text=False, corruption="uniform", windows=128, blocks=64)
CHANGES = {"modules": {"modules": "all"}, "rank": {"rank": 32}, "objective": {"objective": "ce"}, "text": {"own_text": True},
           "corruption": {"corruption": "full"}}


def arms(steps: int) -> dict[str, Recipe]:
    base = replace(PUBLISHED, steps=steps)
    every = {k: v for change in CHANGES.values() for k, v in change.items()}
    return ({"published": base} | {f"+{name}": replace(base, **change) for name, change in CHANGES.items()}
            | {"all": replace(base, **every)}
            | {f"all -{name}": replace(base, **(every | {k: getattr(PUBLISHED, k) for k in change})) for name, change in CHANGES.items()})


def acceptance(target, adapted, gate, arm: str, tokens: int) -> list[dict]:
    """Free-running acceptance at K=4 on the prompt suite, one row a prompt with its cycles."""
    drafter, rows = UnoDrafter(target, adapted, gate), []
    for p in prompt_suite(target):
        stats = generate(target, p["text"], drafter=drafter, k=4, max_tokens=tokens, ignore_eos=True).stats
        rows.append({"kind": "recipe_decode", "arm": arm, "prompt_id": p["id"], "category": p["category"], "repeat": 0, "tokens": stats.tokens,
                     "accepted_per_cycle": stats.accepted_per_cycle, "offered_per_cycle": stats.offered_per_cycle})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--only", nargs="*", help="arms to run; default all")
    o = parser.parse_args()
    o.work.mkdir(parents=True, exist_ok=True)
    record = provenance()
    target, tokens = load_target("tiny-hybrid"), np.load(o.corpus / "train.npy")
    own = cached(o.work / "own.npy", lambda: own_windows(target, tokens, 544, PUBLISHED.prefix, WINDOW, PUBLISHED.seed))
    n = (len(tokens) - 1) // WINDOW
    text, before = tokens[: n * WINDOW].reshape(n, WINDOW), target.digest()
    rows = acceptance(target, *attach(target.model, PUBLISHED.rank, MODULES["published"]), "untrained", o.tokens)
    for name, recipe in arms(o.steps).items():
        if o.only and name not in o.only:
            continue
        done = o.work / f"{name}.json"
        if not done.exists():
            print(name, recipe, flush=True)
            adapted, gate, log = train(target, own[32:] if recipe.own_text else text, own[:32], recipe, lowest=PUBLISHED.prefix, say=lambda *a, **k: None)
            made = [{"kind": "recipe", "arm": name, "recipe": asdict(recipe), "seconds": log["seconds"], "loss": log["loss"],
                     "agreement": log["agreement"]}, *acceptance(target, adapted, gate, name, o.tokens)]
            print(name, np.mean([a for row in made[1:] for a in row["accepted_per_cycle"]]), f"{log['seconds']} s", flush=True)
            write_atomic(done, json.dumps(made))
        rows += json.loads(done.read_text())
    if target.digest() != before:
        raise RuntimeError("The target's digest changed during training; these rows are void.")
    record |= {"target": {"name": target.name, "digest": before, "parameters": target.parameters(), "dtype": target.dtype}}
    save_rows(paths.data() / "measured" / target.name / "uno_recipes.json", act="uno_recipes", target=target.name, provenance=record,
              config={"steps": o.steps, "tokens": o.tokens, "reduced": False}, rows=rows)


if __name__ == "__main__":
    main()
