"""DFlash, the rest: what the post could not separate. Precision, prompt length, generated length, a modified target, a busy machine.

Every section decodes the same two arms, plain and drafted, next to each other on every prompt; by prompt length there is a
third, the drafter without its window. Where a section changes the
target or the machine, its variants are interleaved on every prompt as well, and a row is audited against plain decoding of
its own variant. The committed target is never changed: quantised and retrained ones are copies in memory.
"""
from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from .. import criteria
from ..decoder import generate
from ..dflash import DFlashDrafter, widened
from ..drafters import load_drafter
from ..errors import BadInput
from ..records import sha256
from ..rows import WHOLE
from ..targets import Target, load_target, mx, quantised
from ..train import modified
from ..train.grammar import document
from . import machine
from .common import (CONTEXT_SEED, WARMUP_PROMPTS, Arm, check_room, context_prompt, decode_rows, drafting_arm, journal_of, prompt_suite,
                     teacher_forced)

ACT, TOKENS, GROUP = "dflash_rest", 64, 64
MACHINE_PROMPTS, MACHINE_TOKENS = 3, 16  # of each condition; a low priority is up to 60 times slower
PRECISIONS = {"8bit": 8, "4bit": 4}
TUNING_STEPS = (0, 4, 12, 36)
CONTEXT_PROMPTS, HELD_OUT_TOKENS, HELD_OUT_SEED = 3, 128, "dflash_rest/held-out"


@dataclass(frozen=True)
class Variant:
    """A target with its two arms. ``fields`` goes into its rows and tells them from those of the other variants."""

    target: Target
    arms: Mapping[str, Arm]
    fields: dict = field(default_factory=dict)


def pair_of_arms(target: Target, drafter: str, block: int, foreign: bool = False) -> dict[str, Arm]:
    """Plain decoding and the drafter of that name at ``block`` rows; ``foreign`` as in :func:`.load_drafter`."""
    return {"ar": drafting_arm(target, None), f"dflash_b{block}": drafting_arm(target, load_drafter(drafter, target, foreign=foreign), block)}


def with_whole_context(target: Target, drafter: str, block: int) -> dict[str, Arm]:
    """The two arms and, where the drafter reads a window, a third: the same weights reading every context row."""
    whole, arms = load_drafter(drafter, target), pair_of_arms(target, drafter, block)
    if whole.model.config.draft_window_size is None:
        return arms
    return arms | {f"dflash_b{block}{WHOLE}": drafting_arm(target, DFlashDrafter(target, widened(whole.model)), block)}


def precisions(target: Target, drafter: str, block: int) -> list[Variant]:
    """The target as it is, in 8 bits and in 4, each with the drafter that was trained on the first."""
    made = {target.dtype: target} | {name: quantised(target, bits, GROUP) for name, bits in PRECISIONS.items()}
    return [Variant(t, pair_of_arms(t, drafter, block, foreign=t is not target), {"precision": name}) for name, t in made.items()]


def retrained(target: Target, drafter: str, block: int) -> list[Variant]:
    """The target after more and more steps on other text, each with the drafter that was trained before the first."""
    return [Variant(t, pair_of_arms(t, drafter, block, foreign=steps > 0), {"tuning_steps": steps, "change": round(change, 6)})
            for steps, change, t in modified.tuned(target, modified.published_text(), TUNING_STEPS)]


def has(row: dict, fields: Mapping) -> bool:
    """Whether ``row`` belongs to a variant; the change of its weights is left aside, since a resumed run computes it again."""
    return all(row.get(name) == value for name, value in fields.items() if name != "change")


def interleaved(name: str, prompts: Iterable[dict], variants: list[Variant], tokens: int, rows: Iterable[dict], warm: list[dict]) -> Generator[dict]:
    """Decode rows of a section that are not among ``rows``; on each prompt the variants in turn, in each the arms."""
    old = [r for r in rows if r.get("section") == name]
    warmed: set[int] = set()
    for p in prompts:
        extra = {key: p[key] for key in ("which",) if key in p}
        for number, v in enumerate(variants):
            done = {(r["arm"], r["prompt_id"], r["repeat"]) for r in old if r["prompt_id"] == p["id"] and r["tokens"] == tokens and has(r, v.fields)}
            if len(done) == len(v.arms):  # else the warm-up would be for nothing
                continue
            yield from decode_rows(v.target, [p], v.arms, tokens, 1, done, warm=[] if number in warmed else warm, section=name, **extra, **v.fields)
            warmed.add(number)


def text_effects(prompts: list[dict], variants: list[Variant], tokens: int, rows: Iterable[dict]) -> Generator[dict]:
    """Rows of kind ``text_effect`` that are not among ``rows``; the first variant is full precision."""
    done = {(r["precision"], r["prompt_id"]) for r in rows if r["kind"] == "text_effect"}
    for p in prompts:
        todo = [v for v in variants if (v.fields["precision"], p["id"]) not in done]
        if not todo:
            continue
        prompt, full = variants[0].target.encode(p["text"]), variants[0].target
        reference = generate(full, prompt, max_tokens=tokens, ignore_eos=True).tokens
        best = teacher_forced(full, prompt, reference).argmax(axis=-1)
        number = int(p["id"].rsplit("-", 1)[1])
        held = full.encode(document(p["category"], number, HELD_OUT_SEED, held_out=True))[:HELD_OUT_TOKENS]
        for v in todo:
            own = teacher_forced(v.target, prompt, reference).argmax(axis=-1)
            # greedy decoding goes along with the reference up to the first position where its best token is another
            same = next((i for i, (a, b) in enumerate(zip(own.tolist(), reference)) if a != b), tokens)
            yield {"kind": "text_effect", **v.fields, "prompt_id": p["id"], "category": p["category"], "tokens": tokens, "agree_with_full": same,
                   "argmax_agreement": float((own == best).mean()), "held_out_tokens": len(held), "nats_per_token": nats(v.target, held)}


def nats(target: Target, ids: list[int]) -> float:
    """Mean surprise in nats of each of ``ids`` but the first, in one forward."""
    logits = mx.array(teacher_forced(target, ids[:1], ids[1:]))
    chosen = mx.take_along_axis(logits, mx.array(ids[1:])[:, None], axis=-1)[:, 0]
    return float(np.mean(np.array(mx.logsumexp(logits, axis=-1) - chosen)))


def under_conditions(setup: dict, prompts: list[dict], tokens: int, arms: int, rows: Iterable[dict]) -> Generator[dict]:
    """Decode rows of the section "machine" that are not among ``rows``, measured by child processes (:mod:`.machine`)."""
    old = [r for r in rows if r.get("section") == "machine"]
    missing = [(p, c) for p in prompts for c in machine.CONDITIONS if sum(r["prompt_id"] == p["id"] and r["condition"] == c for r in old) < arms]
    if not missing:
        return
    warm = prompts[:WARMUP_PROMPTS]
    with machine.conditions(setup) as decode:
        for condition in ("quiet", "low_priority"):  # one of each process
            for _ in decode(condition, {"prompts": [], "tokens": 8, "warm": warm, "fields": {}}):
                pass
        for p, condition in missing:
            done = {r["arm"] for r in old if r["prompt_id"] == p["id"] and r["condition"] == condition}
            fields = {"section": "machine", "condition": condition}
            with closing(decode(condition, {"prompts": [p], "tokens": tokens, "warm": [], "fields": fields})) as answers:
                for row in answers:
                    if row["arm"] not in done:
                        yield row


def measure(params: dict, journal: Path, progress: Callable[[int, int, str], None] | None = None, resume: bool = False) -> Path:
    """Measure the rest of the DFlash Act and write a row file beside ``journal``; finished rows survive a kill and are not measured again.

    Args:
        params: target, dtype, tokens (at most :data:`TOKENS` are decoded where the length is not what varies), block, rest_prompts, contexts,
            lengths, quick (one context prompt of each length instead of :data:`CONTEXT_PROMPTS`), and perhaps drafter, by default "dflash".
        progress: called with (rows done, rows in all, label).
    Returns:
        The path of the finished row file.
    Raises:
        BadInput: before anything is measured, if an input does not exist or does not fit.
    """
    name, block, tokens = params.get("drafter", "dflash"), params["block"], min(params["tokens"], TOKENS)
    lengths, contexts = sorted(params["lengths"]), sorted(params["contexts"])
    target = load_target(params["target"], params["dtype"])
    drafter = load_drafter(name, target)
    if not isinstance(drafter, DFlashDrafter):
        raise BadInput(f"The drafter is {name!r}, but this part is about block diffusion; choose dflash or the folder of such a drafter.")
    if not 2 <= block <= drafter.block_size:
        raise BadInput(f"The block has {block} rows, but {drafter.name!r} drafts blocks of 2 to {drafter.block_size}; choose among those.")
    prompts = prompt_suite(target, params["rest_prompts"])
    long = [context_prompt(target, n, w) | {"which": w} for w in range(1 if params["quick"] else CONTEXT_PROMPTS) for n in contexts]
    check_room(target, prompts, max(tokens, *lengths), block)
    check_room(target, long, tokens, block)
    plain = Variant(target, pair_of_arms(target, name, block))
    far = Variant(target, with_whole_context(target, name, block))
    config = {"target": params["target"], "drafter": name, "tokens": tokens, "dtype": params["dtype"], "reduced": params["quick"], "block": block,
              "lengths": lengths, "contexts": contexts, "prompts": [p["id"] for p in prompts], "context_prompts": [p["id"] for p in long],
              "warmup_prompts": WARMUP_PROMPTS, "context_seed": CONTEXT_SEED, "held_out_seed": HELD_OUT_SEED, "bits": PRECISIONS, "group": GROUP,
              "tuning": {"steps": list(TUNING_STEPS), "rate": modified.RATE, "batch": modified.BATCH, "window": modified.WINDOW, "seed": modified.SEED,
                         "text_sha256": sha256(modified.published_text().encode())},
              "conditions": list(machine.CONDITIONS), "nice": machine.NICE, "criteria": criteria.load(ACT).rules}
    arms, warm = len(plain.arms), prompts[:WARMUP_PROMPTS]
    loaded = prompts[:MACHINE_PROMPTS]
    total = (((1 + len(PRECISIONS)) * (arms + 1) + arms * (len(lengths) + len(TUNING_STEPS))) * len(prompts) + len(far.arms) * len(long)
             + arms * len(machine.CONDITIONS) * len(loaded))
    with journal_of(ACT, journal, target, drafter, config, resume) as rows:
        def keep(new: Generator[dict]) -> None:
            with closing(new):  # an interrupt here must end what the generator has started
                for row in new:
                    rows.append(row)
                    if progress:
                        progress(len(rows), total, f"{row['prompt_id']} {row.get('arm', 'text')}")

        if progress:
            progress(len(rows), total, "warming up")
        variants = precisions(target, name, block)
        # one prompt of warm-up: on a CPU a quantised product takes its rows one after another, so a prompt is slow
        keep(interleaved("precision", prompts, variants, tokens, rows, warm[:1]))
        keep(text_effects(prompts, variants, tokens, rows))
        keep(interleaved("context", long, [far], tokens, rows, long[:1]))
        for n in lengths:
            keep(interleaved("length", prompts, [plain], n, rows, warm))
        if sum(r.get("section") == "modified" for r in rows) < arms * len(TUNING_STEPS) * len(prompts):
            keep(interleaved("modified", prompts, retrained(target, name, block), tokens, rows, warm))
        keep(under_conditions({"target": params["target"], "dtype": params["dtype"], "drafter": name, "block": block}, loaded,
                              min(tokens, MACHINE_TOKENS), arms, rows))
    return journal.with_suffix(".json")
