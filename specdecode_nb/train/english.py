"""Windows of an English target's own text, for training drafters of targets whose corpus is not ours.

    python -m specdecode_nb.train.english OUT.npy --target smollm2-135m [--windows N] [--seed S]

Half of the windows begin with text that ships in pinned packages (:mod:`.realtext`), half with an opening made here, in the
categories of the English prompt suite but with other words. An opening goes on with tokens that the target samples, so that no
two windows are alike; from ``prefix`` on every token is the target's own greedy choice, which is what a drafter has to foresee.
Windows that mostly repeat themselves are left out, since a loop teaches nothing but the loop.
"""
from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

from ..backend import mx  # isort: skip

import numpy as np

from ..ending import guarded, take_away
from ..statistics import looped_fraction
from ..streams import DATA_SAMPLING, stream_seed
from ..targets import Target, load_target
from .realtext import documents

OPENINGS = {
    "prose": ("The {a} {b} had not been opened since the {c} winter,", "{n} walked along the {b} with a {a} lantern and", "Nobody in the village spoke of the {a} {b} until",
              "On the last day of autumn {n} found a {a} {b} under the", "It was raining when the {b} came back to the {a} house."),
    "factual": ("The history of the {b} begins in", "{c} is a country in which", "A {b} is made of several parts. The first", "The river {n} rises in the",
                "Scientists who study the {b} have found that", "The {a} {b} is a species of", "During the {c} century, people used the {b} to"),
    "code": ("def count_{b}(items):\n", "class {N}{b}:\n    def __init__(self,", "# Read the {b} from a file and print", "import json\n\ndef load_{b}(path):\n",
             "for {b} in {b}s:\n    if", "function {b}List(items) {{\n", "SELECT {b}, COUNT(*) FROM", "```python\n# a program that sorts {b}s\n"),
    "math": ("{n} has {i} {b}s and buys {j} more.", "Question: A {b} costs {i} dollars and a box costs {j} dollars. How much", "Compute {i} + {j} step by step.",
             "To find the area of a {b} with sides {i} and {j}, we", "If x = {i} and y = {j}, then", "The sum of the first {i} numbers is"),
    "structured": ('{{"name": "{n}", "{b}": {i}, "items": [', "| {b} | price | count |\n|---|---|---|\n", "name,{b},{c}\n{n},{i},{j}\n", "- {b}: {i}\n- {a}: {j}\n",
                   "<ul>\n  <li>{b}</li>\n", "1. {N}\n2. {b}\n3."),
    "technical": ("To install the {b}, first", "The {b} controller has {i} inputs. Each input", "Warning: do not open the {a} {b} while", "This section describes how the {b} module",
                  "The {a} motor runs at {i} volts and", "How does a {b} work? A {b} works by"),
    "dialogue": ('"Where is the {b}?" asked {n}.\n"', "{n}: Did you see the {a} {b}?\n{m}:", '{m} looked up. "I never liked the {b}," she said.', "Interviewer: Tell me about the {b}.\n{n}:",
                 "Customer: My {b} is {a}.\nClerk:"),
    "reasoning": ("If every {b} is {a}, and this is a {b}, then", "{n} is older than {m}. {m} is older than", "There are three boxes. The first holds a {b}. The second",
                  "Why do {b}s become {a}? There are several reasons.", "The advantages of a {a} {b} are"),
    "instruction": ("<|im_start|>user\nWrite a short story about a {a} {b}.<|im_end|>\n<|im_start|>assistant\n", "<|im_start|>user\nExplain what a {b} is.<|im_end|>\n<|im_start|>assistant\n",
                    "<|im_start|>user\nGive me three tips about a {b}.<|im_end|>\n<|im_start|>assistant\n", "Here is a list of things to do with a {a} {b}:\n"),
    "high_entropy": ("{b} {i} {n} {a} {j} {m}", "{i}{j} {b}-{c} {a}/", "Random words: {b}, {a}, {c},", "{N}{j}x{i} {c} {b} ;"),
}
ADJECTIVES = "old green silent broken heavy golden narrow strange warm empty bright hidden cold useful wooden rusty wild soft distant famous".split()
NOUNS = ("bridge garden engine letter clock bird forest market ship window battery planet island teacher machine key tree river camera book horse bottle piano "
         "mountain table kitchen museum road doctor rocket flower spider volcano library computer train school castle robot cloud").split()
NAMES = "Anna Peter Mira Tom Elena Jack Nora Samuel Ruth David Clara Hugo Grace Oscar Ivy Leo Maria Ben Alice Henry".split()
PERIODS = "first second nineteenth Norway Egypt long early Japan twelfth Brazil modern Roman".split()


def openings(target: Target, count: int, rng: random.Random) -> list[list[int]]:
    """Ids of ``count`` openings, the categories in turn."""
    made = []
    for i in range(count):
        form = rng.choice(OPENINGS[list(OPENINGS)[i % len(OPENINGS)]])
        first, second = rng.sample(NAMES, 2)
        noun = rng.choice(NOUNS)
        made.append(target.encode(form.format(a=rng.choice(ADJECTIVES), b=noun, c=rng.choice(PERIODS), n=first, m=second, N=noun.title(),
                                              i=rng.randint(2, 99), j=rng.randint(2, 999))))
    return made


def excerpts(target: Target, count: int, prefix: int, rng: random.Random) -> list[list[int]]:
    """``prefix`` ids from a line's beginning of a packaged text each, or fewer where the text ends."""
    texts = documents()[0]
    made = []
    while len(made) < count:
        text = rng.choice(texts)
        lines = text.splitlines(keepends=True)
        rest = "".join(lines[rng.randrange(max(1, len(lines) // 2)):])
        if len(ids := target.encode(rest[: prefix * 8])) >= 8:
            made.append(ids[:prefix])
    return made


def own_text(target: Target, begun: list[list[int]], prefix: int, length: int, key, temperature: float = 0.9, batch: int = 128, say=print) -> np.ndarray:
    """Windows int32 [n, length]: given ids, then sampled ones up to ``prefix``, then greedy ones."""
    made = []
    for first in range(0, len(begun), batch):
        rows = begun[first : first + batch]
        given = np.full((len(rows), prefix), -1, np.int32)
        for row, ids in zip(given, rows):
            row[: len(ids)] = ids[:prefix]
        known = int((given >= 0).all(0).sum())  # columns that are given in every row
        cache, out = target.make_cache(), [mx.array(given[:, :known])]
        logits = target.model(out[0], cache=cache)[:, -1]
        for at in range(known, length):
            y = mx.argmax(logits, axis=-1)
            if at < prefix:
                key, sub = mx.random.split(key)
                forced = mx.array(given[:, at])
                y = mx.where(forced >= 0, forced, mx.random.categorical(logits / temperature, key=sub))
            out.append(y[:, None].astype(mx.int32))
            logits = target.model(out[-1], cache=cache)[:, -1]
            mx.eval(logits, out[-1])
        made.append(np.concatenate([np.array(o) for o in out], axis=1))
        say(len(made) * batch, "of", len(begun), "windows; looped", round(float(np.mean([looped_fraction(r[prefix:].tolist()) for r in made[-1]])), 3), flush=True)
    return np.concatenate(made)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--windows", type=int, default=2048)
    parser.add_argument("--prefix", type=int, default=40)
    parser.add_argument("--window", type=int, default=168)
    parser.add_argument("--seed", type=int, default=20261130)
    parser.add_argument("--looped", type=float, default=0.5, help="leave out windows of whose greedy part this share or more repeats itself")
    o = parser.parse_args()
    take_away(o.out.parent)
    target, rng = load_target(o.target), random.Random(o.seed)
    half = o.windows // 2
    begun = openings(target, o.windows - half, rng) + excerpts(target, half, o.prefix - 8, rng)
    rng.shuffle(begun)
    windows = own_text(target, begun, o.prefix, o.window, mx.random.key(stream_seed(o.seed, DATA_SAMPLING, 0)))
    windows = windows[[looped_fraction(row[o.prefix :].tolist()) < o.looped for row in windows]]
    part = o.out.with_suffix(".part")
    with open(part, "wb") as file:
        np.save(file, windows)
    part.replace(o.out)


if __name__ == "__main__":
    sys.exit(guarded(main))
