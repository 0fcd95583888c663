"""Other runtimes of block drafters with this package's drafter, each in a process of its own, since they patch mlx-lm's classes.

Neither is a dependency; :mod:`.peers` starts this child for one that is importable. Their commands load a target and a drafter of
their own choice, so the same calls are made here on a target and a drafter that are cast as ours are. Read in dflash-mlx 0.1.8 and dflash 0.1.0.
"""
from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from mlx.utils import tree_map
from mlx_lm.models.cache import can_trim_prompt_cache, make_prompt_cache

from ..checkpoints import find
from ..decoder import generate
from ..drafters import place
from ..targets import DTYPES, Target, load_target, mx
from . import machine
from .common import Arm, decode_rows, drafting_arm
from .toy import bits


def stated(drafter: Path, context: int, scratch: Path) -> Path:
    """A copy of the drafter's folder whose configuration states ``max_position_embeddings``, which both will not load without."""
    config = json.loads((drafter / "config.json").read_text())
    (scratch / "config.json").write_text(json.dumps({"max_position_embeddings": context} | config))
    shutil.copy(drafter / "model.safetensors", scratch)
    return scratch


def cast(model, dtype) -> None:
    model.update(tree_map(lambda v: v.astype(dtype) if mx.issubdtype(v.dtype, mx.floating) else v, model.parameters()))
    mx.eval(model.parameters())


def counters(prompt: list[int], out: list[int], accepted: list[int], offered: list[int], committed: list[int], wall: float, prefill: float,
             draft: float = 0.0, commit: float = 0.0) -> dict:
    """The fields of a decode row; what is neither prefill nor drafting nor undoing counts as verifying."""
    return {"prompt_tokens": len(prompt), "tokens": len(out), "wall_seconds": wall, "prefill_seconds": prefill, "draft_seconds": draft,
            "verify_seconds": max(0.0, wall - prefill - draft - commit), "commit_seconds": commit, "overhead_seconds": 0.0,
            "forwards": 1 + len(accepted) + sum(o > 0 for o in offered), "forward_tokens": len(prompt) + sum(o + 1 + (o + 1) * (o > 0) for o in offered),
            "cycles": len(accepted), "accepted_per_cycle": accepted, "offered_per_cycle": offered, "committed_per_cycle": committed, "finish_reason": "length"}


def by_anchor(history: Sequence[int], tokens: int, block: int) -> tuple[list[int], list[int], list[int]]:
    """Accepted, offered and committed tokens of each cycle from listed accepted counts, where a cycle emits its anchor and what was
    accepted after it and its block never reaches beyond the budget."""
    offered, committed, left = [], [], tokens
    for kept in history:
        offered.append(min(block, left) - 1)
        committed.append(min(int(kept) + 1, left))
        left -= committed[-1]
    return [int(kept) for kept in history], offered, committed


def by_emitted(emitted: Sequence[int], tokens: int, block: int) -> tuple[list[int], list[int], list[int]]:
    """As :func:`by_anchor` from the tokens that each cycle emitted, the last of which is the target's own. The first token of all comes
    from the prefill and is counted to the first cycle; where the budget cut the last cycle, its last token counts as the target's."""
    offered, left = [], tokens - 1
    for n in emitted:
        offered.append(min(block, left + 1) - 1)
        left -= n
    return [n - 1 for n in emitted], offered, [n + (i == 0) for i, n in enumerate(emitted)]


@dataclass(frozen=True)
class Loaded:
    """A runtime with its target: an arm, and ``undo(cached prompt, rows, kept)`` that verifies ``rows`` and returns its caches
    once all but the first ``kept`` are undone."""

    model: Callable
    decode: Arm
    undo: Callable[[list[int], list[int], int], list]


def dflash_mlx(target: Target, folder: Path, drafter: Path, block: int) -> Loaded:
    """Its ``stream_dflash_generate``, with a fixed block: its default mode narrows it by a rule of its own."""
    from dflash_mlx.runtime import stream_dflash_generate
    from dflash_mlx.runtime.bundle import load_runtime_bundle
    from dflash_mlx.runtime.context import build_offline_runtime_context

    window = json.loads((drafter / "config.json").read_text())["dflash_config"].get("draft_window_size") or target.context
    context = build_offline_runtime_context(draft_sink_size=0, draft_window_size=window, verify_mode="dflash")
    bundle = load_runtime_bundle(model_ref=str(folder), draft_ref=str(drafter), verify_config=context.verify)
    for model in (bundle.target_model, bundle.draft_model):
        cast(model, DTYPES[target.dtype])

    def decode(prompt: list[int], tokens: int):
        began = time.perf_counter()
        *_, summary = stream_dflash_generate(
            target_model=bundle.target_model, target_ops=bundle.target_ops, tokenizer=bundle.tokenizer, draft_model=bundle.draft_model,
            draft_backend=bundle.draft_backend, prompt_tokens_override=list(prompt), max_new_tokens=tokens, block_tokens=block, stop_token_ids=[],
            runtime_context=context)
        wall, out = time.perf_counter() - began, [int(t) for t in summary.generated_token_ids]
        spent = {name: us / 1e6 for name, us in summary.phase_timings_us.items()}
        # what it calls verify is the time to build the forward, which runs when its result is read
        return out, counters(prompt, out, *by_anchor(summary.acceptance_history, len(out), block), wall, spent["prefill"], spent["draft"], spent["replay"] + spent["commit"])

    def undo(past: list[int], rows: list[int], kept: int) -> list:
        ops, model = bundle.target_ops, bundle.target_model
        cache = ops.make_cache(model, enable_speculative_linear_cache=True)
        ops.verify_block(target_model=model, verify_ids=mx.array([past]), target_cache=cache, capture_layer_ids=set())
        mx.eval([c.state for c in cache])
        ops.arm_rollback(cache, prefix_len=len(past))
        ops.verify_block(target_model=model, verify_ids=mx.array([rows]), target_cache=cache, capture_layer_ids=set())
        ops.restore_after_acceptance(cache, target_len=len(past) + kept, acceptance_length=kept - 1, drafted_tokens=len(rows) - 1)
        return cache

    return Loaded(bundle.target_model, decode, undo)


def z_lab(target: Target, folder: Path, drafter: Path, block: int) -> Loaded:
    """The ``stream_generate`` of the drafters' authors. It knows no window, so a draft reads the whole context."""
    from dflash import model_mlx

    model_mlx.snapshot_download = lambda path, **_: path  # its loader takes hub ids alone
    draft = model_mlx.load_draft(str(drafter))
    model, tokenizer = model_mlx.load(str(folder))
    tokenizer.eos_token_ids = set()  # ends are ordinary tokens here, as in every arm
    for each in (model, draft):
        cast(each, DTYPES[target.dtype])

    def decode(prompt: list[int], tokens: int):
        began = time.perf_counter()
        first, *later = [r for r in model_mlx.stream_generate(model, draft, tokenizer, mx.array(prompt), block_size=block, max_tokens=tokens) if r.tokens]
        wall, out = time.perf_counter() - began, [int(t) for r in (first, *later) for t in r.tokens]
        return out, counters(prompt, out, *by_emitted([len(r.tokens) for r in later], len(out), block), wall, len(prompt) / first.prompt_tps)

    def undo(past: list[int], rows: list[int], kept: int) -> list:
        cache = make_prompt_cache(model)
        model(mx.array([past]), cache=cache)
        mx.eval([c.state for c in cache])
        capture = None if can_trim_prompt_cache(cache) else model_mlx._GDNStateCapture()
        try:
            model(mx.array([rows]), cache=cache)
            if kept < len(rows) and capture is not None:
                capture.rollback(cache, kept - 1, len(rows) - kept)
            elif kept < len(rows):
                model_mlx._trim_recent_cache(cache, len(rows) - kept)
        finally:
            if capture is not None:
                capture.close()
        return cache

    return Loaded(model, decode, undo)


@dataclass(frozen=True)
class Runtime:
    """A peer by its name in rows: its distribution, the module that has to be importable, what is called, and what loads it."""

    package: str
    module: str
    call: str
    load: Callable[[Target, Path, Path, int], Loaded]


RUNTIMES = {"dflash_mlx": Runtime("dflash-mlx", "dflash_mlx", "dflash_mlx.runtime.stream_dflash_generate", dflash_mlx),
            "z_lab": Runtime("dflash", "dflash", "dflash.model_mlx.stream_generate", z_lab)}


def state_rows(target: Target, name: str, loaded: Loaded, prompt: dict, width: int) -> Iterator[dict]:
    """One ``peer_state`` row for each count of rows kept: how far all caches are from those of one row at a time on the same model."""
    ids = target.encode(prompt["text"])
    rows, cache = ids[-1:] + generate(target, ids, max_tokens=width - 1, ignore_eos=True).tokens, make_prompt_cache(loaded.model)
    loaded.model(mx.array([ids[:-1]]), cache=cache)
    for kept in range(1, width + 1):
        loaded.model(mx.array([rows[kept - 1 : kept]]), cache=cache)
        pairs = zip(bits(loaded.undo(ids[:-1], rows, kept)), bits(cache), strict=True)
        yield {"kind": "peer_state", "peer": name, "prompt_id": prompt["id"], "width": width, "kept": kept, "relative_error": max(apart(a, b) for a, b in pairs)}


def apart(found: np.ndarray, right: np.ndarray) -> float:
    """The largest difference, relative to the largest entry; 1 where another number of rows is held."""
    if found.shape != right.shape:
        return 1.0
    return float(np.abs(found - right).max() / max(np.abs(right).max(), np.finfo(np.float32).tiny))


def prepare(setup: dict) -> Callable[[dict], Iterator[dict]]:
    """What answers requests: decode rows of plain decoding by this package and of the runtime that ``setup`` names, or its ``peer_state`` rows."""
    target, name = load_target(setup["target"], setup["dtype"]), setup["runtime"]
    with tempfile.TemporaryDirectory() as scratch:
        drafter = stated(place("dflash", target.name), target.context, Path(scratch))
        loaded = RUNTIMES[name].load(target, find(setup["target"])[0], drafter, setup["block"])
    arms = {"ar": drafting_arm(target, None), name: loaded.decode}

    def answer(r: dict) -> Iterator[dict]:
        if "undo" in r:
            return state_rows(target, name, loaded, r["undo"], setup["block"])
        return decode_rows(target, r["prompts"], arms, r["tokens"], 1, warm=r["warm"])

    return answer


if __name__ == "__main__":
    machine.main(prepare)
