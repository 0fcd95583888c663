"""The runtime of the package dflash-mlx with this package's block drafter, in a process of its own: it patches mlx-lm's classes.

It is no dependency; :mod:`.peers` starts this child where the package is importable. Read in version 0.1.8: its registry and command
load their own target, so the same calls are made here on a target that is cast as ours is, with the drafter's window and a fixed block.
"""
from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from mlx.utils import tree_map

from ..checkpoints import find
from ..drafters import place
from ..targets import DTYPES, Target, load_target, mx
from . import machine
from .common import decode_rows, drafting_arm


def published_folder(drafter: Path, context: int, scratch: Path) -> Path:
    """A copy of the drafter's folder whose configuration also states ``max_position_embeddings``, which that runtime will not load without."""
    config = json.loads((drafter / "config.json").read_text())
    (scratch / "config.json").write_text(json.dumps({"max_position_embeddings": context} | config))
    shutil.copy(drafter / "model.safetensors", scratch)
    return scratch


def cast(model, dtype) -> None:
    model.update(tree_map(lambda v: v.astype(dtype) if mx.issubdtype(v.dtype, mx.floating) else v, model.parameters()))
    mx.eval(model.parameters())


def runtime_arm(target: Target, folder: Path, drafter: Path, block: int):
    """An arm of the common protocol around ``stream_dflash_generate``; drafting and verifying are its own timings where it tells them."""
    from dflash_mlx.runtime import stream_dflash_generate
    from dflash_mlx.runtime.bundle import load_runtime_bundle
    from dflash_mlx.runtime.context import build_offline_runtime_context

    window = json.loads((drafter / "config.json").read_text())["dflash_config"].get("draft_window_size") or target.context
    # its default mode narrows the block by a rule of its own; "dflash" keeps it
    context = build_offline_runtime_context(draft_sink_size=0, draft_window_size=window, verify_mode="dflash")
    with tempfile.TemporaryDirectory() as scratch:
        bundle = load_runtime_bundle(model_ref=str(folder), draft_ref=str(published_folder(drafter, target.context, Path(scratch))), verify_config=context.verify)
        for model in (bundle.target_model, bundle.draft_model):
            cast(model, DTYPES[target.dtype])

    def decode(prompt: list[int], tokens: int):
        began = time.perf_counter()
        *_, summary = stream_dflash_generate(
            target_model=bundle.target_model, target_ops=bundle.target_ops, tokenizer=bundle.tokenizer, draft_model=bundle.draft_model,
            draft_backend=bundle.draft_backend, prompt_tokens_override=list(prompt), max_new_tokens=tokens, block_tokens=block, stop_token_ids=[],
            runtime_context=context)
        wall, out = time.perf_counter() - began, [int(t) for t in summary.generated_token_ids]
        accepted, offered, committed = by_cycle(summary.acceptance_history, len(out), block)
        spent = {name: us / 1e6 for name, us in summary.phase_timings_us.items()}
        prefill, draft, commit = spent["prefill"], spent["draft"], spent["replay"] + spent["commit"]
        # what it calls verify is the time to build the forward; the forward itself runs when its result is read
        return out, {"prompt_tokens": len(prompt), "tokens": len(out), "wall_seconds": wall, "prefill_seconds": prefill, "draft_seconds": draft,
                     "verify_seconds": max(0.0, wall - prefill - draft - commit), "commit_seconds": commit, "overhead_seconds": 0.0,
                     "forwards": 1 + len(accepted) + sum(o > 0 for o in offered), "forward_tokens": len(prompt) + 2 * sum(o + 1 for o in offered), "cycles": len(accepted),
                     "accepted_per_cycle": accepted, "offered_per_cycle": offered, "committed_per_cycle": committed, "finish_reason": "length"}

    return decode


def by_cycle(history, tokens: int, block: int) -> tuple[list[int], list[int], list[int]]:
    """Accepted, offered and committed tokens of each cycle, from the accepted counts that the runtime lists. A cycle emits its anchor and
    what was accepted after it, and its block never reaches beyond the budget."""
    offered, committed, left = [], [], tokens
    for kept in history:
        offered.append(min(block, left) - 1)
        committed.append(min(kept + 1, left))
        left -= committed[-1]
    return list(map(int, history)), offered, committed


def prepare(setup: dict) -> Callable[[dict], Iterator[dict]]:
    """What answers requests: plain decoding by this package, and the runtime."""
    target = load_target(setup["target"], setup["dtype"])
    arms = {"ar": drafting_arm(target, None), "dflash_mlx": runtime_arm(target, find(setup["target"])[0], place("dflash", target.name), setup["block"])}
    return lambda r: decode_rows(target, r["prompts"], arms, r["tokens"], 1, warm=r["warm"])


if __name__ == "__main__":
    machine.main(prepare)
