"""What tests/test_sharded.py decodes with, and one rank of it: ``mlx.launch -n 2 -- python tests/sharded_run.py OUT FOLDER...``.

A rank writes OUT/rank-R.json and prints nothing that the test reads. With ``SHARDED_DIES=1`` rank 1 ends without a word in the
middle of its second cycle.
"""
import hashlib
import json
import os
import sys
from pathlib import Path

if __name__ == "__main__":
    os.environ |= {"SPECDECODE_BLAS": "reference", "MLX_ENABLE_TF32": "0"}
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from specdecode_nb import load_target, sharded
from specdecode_nb.backend import mx
from specdecode_nb.decoder import generate
from specdecode_nb.drafters import NgramDrafter, RandomDrafter
from specdecode_nb.taps import TappedModel
from toy import ScriptedDrafter, consistent, uno

PROMPT = [5, 9, 200, 33, 7, 8, 9, 5, 9]
BLOCK = [40, 41, 7, 250, 3]
N, K = 20, 4


def arms(target, known, adapter) -> dict:
    """Every drafter by name; ``known`` is the plain continuation, of which one drafter offers 0 to 3 right tokens in turn."""
    found = {"ngram": NgramDrafter(), "random": RandomDrafter(target.vocab_size), "adapter": adapter,
             "scripted": ScriptedDrafter(target, known + [3] * K, len(PROMPT), range(K))}
    if target.name != "hybrid":
        return found
    from tapping import make  # which brings the training code along
    return found | {kind: make(kind, target) for kind in ("dflash", "mtp")}


def rows(target, adapter) -> dict:
    """Logits [T, V] of a block of rows, and of a draft of the adapter, both after nothing."""
    return {"verify": target.model(mx.array([BLOCK]), cache=target.make_cache())[0],
            "draft": adapter.logits(target.make_cache(), BLOCK[0], mx.array(BLOCK[1:]))}


def decoded(target, adapter) -> dict:
    """Tokens and accepted counts of every arm, and whether the caches were left with the bits of plain decoding."""
    plain = generate(target, PROMPT, None, max_tokens=N, ignore_eos=True)
    out = {"plain": {"tokens": plain.tokens}}
    for name, drafter in arms(target, plain.tokens, adapter).items():
        result = generate(target, PROMPT, drafter, k=K, max_tokens=N, ignore_eos=True)
        out[name] = {"tokens": result.tokens, "accepted": result.stats.accepted_per_cycle, "consistent": consistent(result.session, len(PROMPT) - 1)}
    return out


def _rank(out: Path, folders: list[str]) -> None:
    group, report = mx.distributed.init(strict=True), {}
    for folder in folders:
        whole = load_target(folder)
        adapter = uno(whole)
        part = sharded.shard(whole, group)
        cut = sharded.shard_adapter(adapter, part, group)
        ours, theirs = rows(part, cut), rows(whole, adapter)
        report[whole.name] = {
            "arms": decoded(part, cut),
            "far": {name: mx.abs(ours[name] - theirs[name]).max().item() / mx.abs(theirs[name]).max().item() for name in ours},
            "bits": {name: hashlib.sha256(memoryview(ours[name])).hexdigest() for name in ours},
            "share": part.parameters() / whole.parameters(), "digest": part.digest()}
    (out / f"rank-{group.rank()}.json").write_text(json.dumps({"ranks": group.size(), "targets": report}))


if __name__ == "__main__":
    _rank(Path(sys.argv[1]), sys.argv[2:])
