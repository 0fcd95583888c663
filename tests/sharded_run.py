"""What tests/test_sharded.py decodes with, and one rank of it: ``mlx.launch -n 2 -- python tests/sharded_run.py OUT FOLDER...``.

A rank writes OUT/rank-R.json at its end. With ``SHARDED_DIES`` in the environment rank 1 ends in the middle of its first text, without a word.
"""
import hashlib
import json
import os
import sys
from pathlib import Path

if __name__ == "__main__":
    # the launcher's own temporary files go elsewhere; MLX keeps compiled kernels here
    os.environ |= {"SPECDECODE_BLAS": "reference", "MLX_ENABLE_TF32": "0", "TMPDIR": os.environ.get("KERNELS", "/tmp")}
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from specdecode_nb import load_target
from specdecode_nb.backend import mx
from specdecode_nb.decoder import generate, stream
from specdecode_nb.drafters import NgramDrafter, RandomDrafter
from specdecode_nb.families import embed_and_head
from specdecode_nb.sharded import shard
from specdecode_nb.sharded_lora import shard_adapter
from toy import ScriptedDrafter, consistent, uno

PROMPT = [5, 9, 200, 33, 7, 8, 9, 5, 9]
BLOCK = [40, 41, 7, 250, 3]
N, K = 12, 4


def arms(target, known, adapter) -> dict:
    """Drafters by name; ``known`` is the plain continuation, of which one drafter offers 0 to 3 right tokens in turn."""
    found = {"scripted": ScriptedDrafter(target, known + [3] * K, len(PROMPT), range(K)), "adapter": adapter}
    if target.name != "hybrid":
        return found
    from tapping import make  # which brings the training code along
    return found | {"ngram": NgramDrafter(), "random": RandomDrafter(target.vocab_size)} | {kind: make(kind, target) for kind in ("dflash", "mtp")}


def rows(target, adapter) -> dict:
    """Logits [T, V] of a block of rows, of a draft of the adapter, both after nothing, and of the head that DFlash and MTP drafters read with."""
    embed, head = embed_and_head(target)
    return {"head": head(embed(mx.array(BLOCK))), "verify": target.model(mx.array([BLOCK]), cache=target.make_cache())[0],
            "draft": adapter.logits(target.make_cache(), BLOCK[0], mx.array(BLOCK[1:]))}


def decoded(target, adapter) -> dict:
    """Tokens and accepted counts of every arm; of the one that is cut at every place, whether the caches have the bits of plain decoding."""
    plain = generate(target, PROMPT, None, max_tokens=N, ignore_eos=True)
    out = {"plain": {"tokens": plain.tokens}}
    for name, drafter in arms(target, plain.tokens, adapter).items():
        result = generate(target, PROMPT, drafter, k=K, max_tokens=N, ignore_eos=True)
        out[name] = {"tokens": result.tokens, "accepted": result.stats.accepted_per_cycle}
        if name == "scripted":
            out[name]["consistent"] = consistent(result.session, len(PROMPT) - 1)
        print(target.name, name, result.tokens, file=sys.stderr, flush=True)
    return out


def _rank(out: Path, folders: list[str]) -> None:
    group, report = mx.distributed.init(strict=True), {}
    for folder in folders:
        whole = load_target(folder)
        adapter = uno(whole)
        part = shard(whole, group)
        cut = shard_adapter(adapter, part, group)
        if "SHARDED_DIES" in os.environ:
            for i, _ in enumerate(stream(part, PROMPT, cut, k=K, max_tokens=N, ignore_eos=True)):
                if i == 3 and group.rank() == 1:
                    os._exit(3)
        ours, theirs = rows(part, cut), rows(whole, adapter)
        report[whole.name] = {
            "arms": decoded(part, cut),
            "far": {name: mx.abs(ours[name] - theirs[name]).max().item() / mx.abs(theirs[name]).max().item() for name in ours},
            "bits": {name: hashlib.sha256(memoryview(ours[name])).hexdigest() for name in ours},
            "share": part.parameters() / whole.parameters(), "digest": part.digest()}
    (out / f"rank-{group.rank()}.json").write_text(json.dumps({"ranks": group.size(), "targets": report}))


if __name__ == "__main__":
    _rank(Path(sys.argv[1]), sys.argv[2:])
