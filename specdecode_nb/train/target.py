"""Train the embedded target ``tiny-hybrid``: mlx-lm's Qwen3.5 class at a size that two CPU cores can train in an hour.

    python -m specdecode_nb.train.target CORPUS_DIR WORK_DIR [--steps N] [--export MODEL_DIR]

The run is restartable: it goes on from the newest checkpoint in WORK_DIR. The learning rate warms up, stays, and falls
to zero at the end of the last phase, so a run may be continued with more steps from any checkpoint of the flat part.
"""
from __future__ import annotations

import argparse
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from ..backend import mx, nn  # isort: skip

import numpy as np
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models import qwen3_5

from ..gdn import adopt
from .fast import adopt_mlp
from .loop import Loop

CONFIG = {
    "model_type": "qwen3_5", "architectures": ["Qwen3_5ForCausalLM"],
    "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 4, "full_attention_interval": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "attn_output_gate": True,
    "linear_num_value_heads": 4, "linear_num_key_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4, "rms_norm_eps": 1e-6, "vocab_size": 2048, "max_position_embeddings": 32768,
    "tie_word_embeddings": True, "eos_token_id": 0, "bos_token_id": 0, "dtype": "bfloat16",
    "rope_parameters": {"type": "default", "rope_theta": 100000.0, "partial_rotary_factor": 0.25},
}
# The second phase was added when the loss had stopped falling at the first rate (see the curve in training.json).
RECIPE = {"seed": 20261129, "window": 512, "warmup": 50, "decay_share": 0.3, "weight_decay": 0.1, "betas": [0.9, 0.95], "clip": 1.0,
          "phases": [{"until": 850, "batch": 4, "lr": 2e-3}, {"until": 2000, "batch": 2, "lr": 6e-4}]}
CHECKPOINT = "checkpoint.safetensors"


def build(seed: int) -> qwen3_5.Model:
    """A fresh model in training form: normal(0, 0.02) matrices, residual outputs scaled down by depth."""
    mx.random.seed(seed)
    model = qwen3_5.Model(qwen3_5.ModelArgs.from_dict(dict(CONFIG)))
    key = mx.random.key(seed)
    drawn = []
    for name, value in sorted(tree_flatten(model.parameters())):
        if value.ndim == 2:
            key, sub = mx.random.split(key)
            scale = 0.02 if not name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")) else 0.02 / 8**0.5
            drawn.append((name, scale * mx.random.normal(value.shape, key=sub)))
        elif name.endswith("A_log"):
            # decays from 0.999 to about 0.6 a token: slow memory must exist from the start
            drawn.append((name, mx.log(mx.array(np.geomspace(0.002, 0.5, value.size), dtype=mx.float32))))
    model.update(tree_unflatten(drawn))
    for layer in model.layers:
        layer.mlp = adopt_mlp(layer.mlp)
        if layer.is_linear:
            layer.linear_attn = adopt(layer.linear_attn)
    return model.train()


def phase(step: int, steps: int) -> tuple[int, float, int]:
    """(batch, learning rate, windows read before) at ``step`` of a run of ``steps``; the last phase falls to zero."""
    began, read = 0, 0
    for p in RECIPE["phases"]:
        last = p is RECIPE["phases"][-1]
        until = steps if last else p["until"]
        if step < until or last:
            fall = int((steps - began) * RECIPE["decay_share"])
            rate = p["lr"] * min(1.0, (step + 1) / RECIPE["warmup"], max(0.02, (steps - step) / max(1, fall)) if last else 1.0)
            return p["batch"], rate, read + (step - began) * p["batch"]
        began, read = until, read + (until - began) * p["batch"]
    raise AssertionError("RECIPE has no phase")


def loss_of(model, ids):
    """Mean next-token cross-entropy in nats; ids [B, T+1]."""
    return nn.losses.cross_entropy(model(ids[:, :-1]), ids[:, 1:]).mean()


def heldout_loss(model, heldout: dict, window: int, limit: int = 4) -> dict:
    """Nats per token by category over at most ``limit`` windows each, with the training form of the model."""
    result = {}
    for name, ids in heldout.items():
        n = min(limit, (len(ids) - 1) // window)
        batch = np.stack([ids[i * window : i * window + window + 1] for i in range(n)]).astype(np.int32)
        result[name] = round(loss_of(model, mx.array(batch)).item(), 4)
    return result


@dataclass(frozen=True)
class Recipe:
    """What the loop reads; the rates and batches of the phases are in ``RECIPE``."""

    steps: int
    lr: float = 1e-3
    seed: int = RECIPE["seed"]
    weight_decay: float = RECIPE["weight_decay"]
    betas: tuple[float, ...] = tuple(RECIPE["betas"])


def started(corpus: Path, work: Path, steps: int) -> Loop:
    """The run over the corpus, at the step of the checkpoint in ``work`` (0 if there is none)."""
    tokens, window = np.load(corpus / "train.npy"), RECIPE["window"]
    # windows begin where documents do: what a document announces at its top decides the rest of it
    starts = np.concatenate([[0], np.flatnonzero(tokens == CONFIG["eos_token_id"]) + 1])
    starts = np.random.default_rng(RECIPE["seed"]).permutation(starts[starts + window < len(tokens)])

    def batch(step: int) -> tuple:
        size, _, read = phase(step, steps)
        rows = starts[np.arange(read, read + size) % len(starts)]
        return (mx.array(np.stack([tokens[r : r + window + 1] for r in rows]).astype(np.int32)),)

    run = Loop(build(RECIPE["seed"]), loss_of, batch, Recipe(steps), rate=lambda step: phase(step, steps)[1])
    run.log["heldout"] = []
    if (work / CHECKPOINT).exists():
        run.resume(work / CHECKPOINT)
    return run


def train(corpus: Path, work: Path, steps: int, save_every: int = 50, eval_every: int = 250) -> Loop:
    """Train to ``steps``; every checkpoint holds weights, moments, step and the log so far."""
    heldout, run = dict(np.load(corpus / "heldout.npz")), started(corpus, work, steps)
    work.mkdir(parents=True, exist_ok=True)
    while run.step < steps:
        run.run(min(steps, *((run.step // n + 1) * n for n in (save_every, eval_every))))
        if run.step % eval_every == 0 or run.step == steps:
            run.log["heldout"].append([run.step, heldout_loss(run.model, heldout, RECIPE["window"])])
            print(run.log["heldout"][-1], flush=True)
        run.save(work / CHECKPOINT)
    return run


def export(corpus: Path, work: Path, folder: Path, steps: int = RECIPE["phases"][-1]["until"]) -> None:
    """Write the checkpoint as bf16 safetensors with config and provenance, in the layout mlx-lm loads."""
    from ..environment import provenance

    run = started(corpus, work, steps)
    if not run.step:
        raise FileNotFoundError("There is no checkpoint to export; train first.")
    weights = {k: v.astype(mx.bfloat16) if v.ndim > 1 else v for k, v in tree_flatten(run.model.parameters())}
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    recipe = json.loads((corpus / "recipe.json").read_text())
    record = {"recipe": RECIPE, "steps": run.step, "tokens_seen": phase(run.step, run.step)[2] * RECIPE["window"],
              "wall_seconds": round(run.seconds), "parameters": sum(v.size for v in weights.values()), "corpus": recipe,
              "weights_sha256": hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest(),
              "provenance": provenance(), "loss_curve": run.log["loss"], "heldout_nats": run.log["heldout"]}
    (folder / "training.json").write_text(json.dumps(record, indent=1, allow_nan=False) + "\n")
    (folder / "README.md").write_text(model_card(record))


def model_card(record: dict) -> str:
    """The model card, every figure taken from the training record."""
    rows = "\n".join(f"| {name} | {nats:.3f} |" for name, nats in record["heldout_nats"][-1][1].items())
    version, machine = record["provenance"]["versions"], record["provenance"]["machine"]
    return f"""# tiny-hybrid

A language model small enough to measure speculative decoding on any laptop: mlx-lm's Qwen3.5 class with three Gated
DeltaNet layers and one attention layer (output gate, partial rotary embedding, tied embeddings).

- {record["parameters"]:,} parameters, hidden {CONFIG["hidden_size"]}, MLP {CONFIG["intermediate_size"]}, vocabulary {CONFIG["vocab_size"]}; stored in bfloat16, decoded in float32 by default
- weights sha256 `{record["weights_sha256"]}`
- trained from seed {record["recipe"]["seed"]} on {record["tokens_seen"]:,} tokens in {record["steps"]} steps of windows of {RECIPE["window"]}, {record["wall_seconds"] / 60:.0f} minutes of wall time on {machine["class"]} while other work shared the machine
- MLX {version["mlx"]}, mlx-lm {version["mlx_lm"]}; loss curve, held-out curve, corpus recipe and digest in `training.json`

It knows the documents of a seeded grammar in nine categories and a little real technical prose and code. It is a
measuring object, not an assistant: outside these forms it writes nothing of use.

| held-out text | nats per token |
|---|---|
{rows}

## Training it again

    python -m specdecode_nb.train.corpus CORPUS
    python -m specdecode_nb.train.target CORPUS WORK
    python -m specdecode_nb.train.target CORPUS WORK --export data/models/tiny-hybrid

A killed run goes on from its last checkpoint. From the same seed the corpus, the initial weights, the order of windows
and the schedule come out the same. The grammar part of the corpus is the same everywhere; the real text comes from
installed packages, so other versions of them give another digest, which the recipe names. The weights after training
are not promised to be bit-equal on another processor or BLAS, since matrix products sum in another order there.
"""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--steps", type=int, default=RECIPE["phases"][-1]["until"])
    parser.add_argument("--export", type=Path)
    options = parser.parse_args()
    if options.export:
        export(options.corpus, options.work, options.export, options.steps)
    else:
        train(options.corpus, options.work, options.steps)
