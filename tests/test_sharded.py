"""Two ranks on one machine by ``mlx.launch``: the tokens of the whole target with every drafter, the same bits on both ranks, nothing left behind."""
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import mlx.core as mx
import pytest
from sharded_run import K, N, decoded
from specdecode_nb import load_target
from specdecode_nb.drafters import NgramDrafter
from specdecode_nb.errors import BadInput
from specdecode_nb.families import take_over
from specdecode_nb.sharded import TESTED, ShardedTarget, shard
from specdecode_nb.sharded_lora import shard_adapter
from specdecode_nb.targets import Target
from toy import ByteTokenizer, hybrid, uno
from toy_checkpoints import VOCAB, build, write

LAUNCH = Path(sys.executable).with_name("mlx.launch")
TARGETS = {"hybrid": ("qwen3_5", dict(num_hidden_layers=4, full_attention_interval=4, vocab_size=256, tie_word_embeddings=False)),
           "qwen3_5": ("qwen3_5", {}), "llama": ("llama", {}), "qwen3": ("qwen3", dict(bits=4, intermediate_size=128, seed=3)), "qwen3_moe": ("qwen3_moe", {})}


class Rank:
    """Stands for a group where nothing is sent."""

    def __init__(self, ranks, rank=0):
        self.size, self.rank = lambda: ranks, lambda: rank


def free_ports() -> int:
    """The first of two neighbouring ports that nobody listens at."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as one:
            port = one.getsockname()[1]
            try:
                socket.create_server(("127.0.0.1", port + 1)).close()
                return port
            except OSError:
                continue


def launch(out: Path, folders, bound: float, **env) -> str:
    """Run two ranks to their end, which must come within ``bound`` seconds; what they printed. No process and no listener may be left."""
    assert LAUNCH.is_file(), "mlx.launch is not installed beside this interpreter"
    port, log = free_ports(), out / "log"
    script = Path(__file__).with_name("sharded_run.py")
    command = [LAUNCH, "-n", "2", "--backend", "ring", "--starting-port", str(port), "--", sys.executable, script, out, *folders]
    with open(log, "w") as to:
        # at the end of its input the launcher would spin, so the pipe stays open
        run = subprocess.Popen([str(word) for word in command], stdin=subprocess.PIPE, stdout=to, stderr=to, start_new_session=True,
                               env=os.environ | {"TMPDIR": str(out), "KERNELS": tempfile.gettempdir()} | env)
        try:
            run.wait(bound)
        finally:
            try:
                os.killpg(run.pid, 0)
                left = True
                os.killpg(run.pid, signal.SIGKILL)
            except ProcessLookupError:
                left = False
            run.stdin.close()
            run.wait()
    said = log.read_text()
    assert not left, said
    for p in (port, port + 1):
        with socket.socket() as s:
            assert s.connect_ex(("127.0.0.1", p)) != 0
    return said


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    home = tmp_path_factory.mktemp("targets")
    return {name: write(home / name, family, **changes) for name, (family, changes) in TARGETS.items()}


@pytest.fixture(scope="module")
def ranks(folders, tmp_path_factory):
    """What each of the two ranks reports."""
    out = tmp_path_factory.mktemp("ranks")
    said = launch(out, folders.values(), 180)
    files = sorted(out.glob("rank-*.json"))
    assert len(files) == 2, said
    return [json.loads(file.read_text()) for file in files]


def test_both_ranks_say_the_same_to_the_bit(ranks):
    """Tokens, accepted counts, and the bits of the logits of a verify and of a draft forward."""
    assert ranks[0]["ranks"] == 2 and set(ranks[0]["targets"]) == set(TARGETS) and ranks[0] == ranks[1]


@pytest.mark.parametrize("name", TARGETS)
def test_the_tokens_are_those_of_the_whole_target(name, folders, ranks):
    """Sums over halves are added in another order, so this is up to ties: on these targets there was none."""
    whole = load_target(str(folders[name]))
    wanted, report = decoded(whole, uno(whole)), ranks[0]["targets"][name]
    tokens = wanted["plain"]["tokens"]
    assert len(tokens) == N and len(set(tokens)) >= 6
    for arm, found in report["arms"].items():
        assert found["tokens"] == tokens and found == wanted[arm], arm
    assert report["arms"]["scripted"]["consistent"] and set(range(K - 1)) <= set(report["arms"]["scripted"]["accepted"])
    assert len(report["arms"]) == (7 if name == "hybrid" else 3)


@pytest.mark.parametrize("name", TARGETS)
def test_a_part_computes_what_the_whole_does(name, folders, ranks):
    """Also the adapter's part, which a wrong cut would not show in the tokens; and a rank holds no more than its part and what is not split."""
    report = ranks[0]["targets"][name]
    head, *others = (report["far"][what] for what in ("head", "verify", "draft"))
    assert head < 1e-5 and all(0 < far < 1e-5 for far in others), report["far"]
    assert 0.5 < report["share"] < 0.75 and report["digest"] == load_target(str(folders[name])).digest()


def test_a_rank_that_dies_ends_the_run(folders, tmp_path):
    began = time.monotonic()
    said = launch(tmp_path, [folders["llama"]], 120, SHARDED_DIES="1")
    assert "rank 1 exited with code 3" in said and "rank 0" in said and not list(tmp_path.glob("rank-*.json")), said
    assert time.monotonic() - began < 120


# what is refused, where no second rank is needed


def toy(name, **changes):
    model, _ = build(name, **changes)
    take_over(model)
    return Target(model, ByteTokenizer(), name, "float32", 512, VOCAB)


@pytest.mark.parametrize("name, changes, ranks, words", [
    ("gemma", {}, 2, "does not split this family"), ("qwen3_next", {}, 2, "does not split this family"),
    ("llama", {}, 3, "3 ranks do not divide"), ("qwen3", {"num_key_value_heads": 1}, 2, "1 heads"),
    ("llama", {"intermediate_size": 97}, 2, "97"), ("qwen3_5", {"vocab_size": 263, "tie_word_embeddings": False}, 2, "vocab_size 263")])
def test_what_cannot_be_split_is_refused_by_name(name, changes, ranks, words):
    target = toy(name, **changes)
    before = target.digest()
    with pytest.raises(BadInput) as caught:
        shard(target, Rank(ranks))
    assert words in str(caught.value) and repr(name) in str(caught.value) and "\n" not in str(caught.value)
    assert target.digest() == before


def test_the_parts_make_up_the_adapter():
    target = hybrid()
    whole = uno(target)
    parts = [shard_adapter(whole, shard(target, Rank(2, r)), Rank(2, r))._model for r in range(2)]
    for layer, *halves in zip(whole._model.layers, *(p.layers for p in parts)):
        for path, axis in (("mlp.up_proj", "b"), ("mlp.down_proj", "a"), ("linear_attn.in_proj_z", "b"), ("self_attn.k_proj", "b")):
            owner, name = path.split(".")
            if owner not in layer:
                continue
            one, two = (half[owner][name] for half in halves)
            own = layer[owner][name]
            assert mx.array_equal(mx.concatenate([one.lora_b, two.lora_b], axis=1) if axis == "b" else one.lora_b, own.lora_b)
            assert mx.array_equal(mx.concatenate([one.lora_a, two.lora_a]) if axis == "a" else one.lora_a, own.lora_a)


def test_a_group_of_one_and_foreign_drafters():
    target = hybrid()
    drafter = uno(target)
    assert shard(target) is target and shard_adapter(drafter, target) is drafter  # no launcher: one rank
    part = shard(target, Rank(2))
    assert isinstance(part, ShardedTarget) and part.digest() == target.digest() and part.parameters() < target.parameters()
    for other in (NgramDrafter(), uno(hybrid(7))):
        with pytest.raises(BadInput, match="not an adapter of the target"):
            shard_adapter(other, part, Rank(2))


def test_the_families_are_those_decoded_here():
    assert {family for family, _ in TARGETS.values()} == set(TESTED)
