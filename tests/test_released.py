"""The published pair: constants, digests, and a file of the released adapter's layout at full shape, with invented numbers."""
import hashlib
import json
import random
import struct

import mlx.core as mx
import numpy as np
import pytest
import synthetic
from mlx.utils import tree_flatten, tree_map
from specdecode_nb import load_drafter, load_target, lora, released
from specdecode_nb.decoder import generate
from specdecode_nb.errors import BadInput
from specdecode_nb.families import take_over
from specdecode_nb.targets import digest_of
from specdecode_nb.protocols import act4s
from specdecode_nb.records import load_rows
from toy import PROMPT, adapter, hybrid, plain
from toy_checkpoints import build, write, write_tokenizer

short_prompts = synthetic.short_prompts(act4s)

SHAPE = dict(hidden_size=2560, intermediate_size=9216, num_hidden_layers=32, num_attention_heads=16, num_key_value_heads=4, head_dim=256,
             rms_norm_eps=1e-6, vocab_size=248320, linear_num_value_heads=32, linear_num_key_heads=16, linear_key_head_dim=128, linear_value_head_dim=128,
             linear_conv_kernel_dim=4, tie_word_embeddings=True, full_attention_interval=4, max_position_embeddings=262144,
             rope_parameters=dict(type="default", rope_theta=1e7, partial_rotary_factor=0.25))
ORDER = 1  # a seed of the order of tensors that gives the header the released length


def published_shapes():
    """Names and shapes of the released file (system of the report, section 2), written out without the code that reads them."""
    wanted = {}
    for i in range(32):
        modules = {"mlp.gate_proj": (2560, 9216), "mlp.up_proj": (2560, 9216), "mlp.down_proj": (9216, 2560)}
        if i in (3, 7, 11, 15, 19, 23, 27, 31):
            modules |= {"self_attn.q_proj": (2560, 8192), "self_attn.k_proj": (2560, 1024), "self_attn.v_proj": (2560, 1024), "self_attn.o_proj": (4096, 2560)}
        for module, (inner, out) in modules.items():
            name = f"language_model.model.layers.{i}.{module}"
            wanted |= {f"{name}.lora_a": (inner, 16), f"{name}.lora_b": (16, out)}
    return wanted


def header_of(shapes, seed):
    """(header as MLX writes it, byte range of each tensor): sorted names, no metadata, tensors in an order of their own, no padding."""
    names, at, ranges = list(shapes), 0, {}
    random.Random(seed).shuffle(names)
    for name in names:
        ranges[name] = [at, at := at + 4 * int(np.prod(shapes[name]))]
    header = {"__metadata__": None} | {n: {"data_offsets": ranges[n], "dtype": "F32", "shape": list(shapes[n])} for n in sorted(shapes)}
    return json.dumps(header, separators=(",", ":")).encode(), ranges


def marks(shapes):
    """The first and last number of every tensor, all different."""
    return {name: (1e-3 * (i + 1), -1e-3 * (i + 1)) for i, name in enumerate(sorted(shapes))}


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """A sparse file of the released length, and its shapes: zeros but for a mark at both ends of every tensor."""
    path, shapes = tmp_path_factory.mktemp("released") / "synthetic.safetensors", published_shapes()
    header, ranges = header_of(shapes, ORDER)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + sum(end - start for start, end in ranges.values()))
        for name, (first, last) in marks(shapes).items():
            start, end = (8 + len(header) + at for at in ranges[name])
            file.seek(start), file.write(struct.pack("<f", first))
            file.seek(end - 4), file.write(struct.pack("<f", last))
    return path, shapes


@pytest.fixture(scope="module")
def model():
    """The published shape; its arrays are never computed."""
    model, _ = build("qwen3_5", **SHAPE)
    take_over(model)
    return model


def test_the_target_s_constants(model):
    found = tree_flatten(model.parameters())
    assert len(found) == released.TENSORS and sum(v.size for _, v in found) == released.PARAMETERS
    assert [i for i, layer in enumerate(model.layers) if not layer.is_linear] == list(range(3, 32, 4)) and len(model.layers) == 32
    assert model.layers[3].self_attn.q_proj.weight.shape == (8192, 2560) and model.layers[0].linear_attn.conv_dim == 8192
    assert [len(text) for text in (released.REVISION, released.BACKBONE, released.ADAPTER_SHA256)] == [40, 64, 64] and released.PINS == {released.TARGET: released.REVISION}


def test_the_layout_is_the_released_one(full):
    path, shapes = full
    with path.open("rb") as file:
        data = 8 + struct.unpack("<Q", file.read(8))[0]
    assert path.stat().st_size == released.ADAPTER_BYTES and data == 31_438 and data % 4 == 2
    assert len(shapes) == 256 and sum(a * b for a, b in shapes.values()) == 21_233_664


def test_the_full_shape_loads(full, model):
    """Every tensor is read from its own unaligned place, at scale 16, and decides the projection of gated rows alone."""
    path, shapes = full
    adapted, gate, metadata = lora.load_adapter(path, model)
    assert metadata == {"scale": 16.0} and gate.scale == 16.0
    weights = lora.adapter_weights(adapted)
    assert {k: v.shape for k, v in weights.items()} == shapes and {v.dtype for v in weights.values()} == {mx.float32}
    for name, (first, last) in marks(shapes).items():
        flat = weights[name].reshape(-1)
        assert np.allclose([flat[0].item(), flat[-1].item()], [first, last], rtol=1e-6), name
        assert not flat[1:-1].any().item(), name
    layer = adapted.layers[31].self_attn.k_proj
    x = mx.random.normal((1, 2, 2560), key=mx.random.key(1))
    gate.rows([[0, 1]])
    with_it = np.array(layer(x))
    gate.rows(None)
    without = np.array(layer(x))
    first = {end: marks(shapes)[f"language_model.model.layers.31.self_attn.k_proj.{end}"] for end in ("lora_a", "lora_b")}
    x = np.array(x)[0, 1]
    wanted = 16.0 * np.array([x[0] * first["lora_a"][0] * first["lora_b"][0], x[-1] * first["lora_a"][1] * first["lora_b"][1]])
    assert np.array_equal(with_it[0, 0], without[0, 0])
    np.testing.assert_allclose((with_it - without)[0, 1, [0, -1]], wanted, atol=2e-5)


@pytest.mark.parametrize("spoil, message", [("drop", "lacks tensor"), ("rename", "does not know|lacks tensor"), ("reshape", "has shape|does not fit")])
def test_strict_names_and_shapes_at_full_shape(tmp_path, model, spoil, message):
    shapes = published_shapes()
    name = "language_model.model.layers.17.mlp.up_proj.lora_b"
    shape = shapes.pop(name)
    if spoil != "drop":
        shapes[name.replace("17", "32") if spoil == "rename" else name] = shape if spoil == "rename" else (16, 9215)
    header, ranges = header_of(shapes, 0)
    path = tmp_path / "a.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + max(end for _, end in ranges.values()))
    with pytest.raises(BadInput, match=message):
        lora.load_adapter(path, model)


def test_the_digest_of_the_released_name(tmp_path, full, model):
    """A file of that name must be that file, to the byte."""
    path = tmp_path / released.ADAPTER
    path.symlink_to(full[0])
    with pytest.raises(BadInput, match="has the sha256 .*, not the released adapter's 8200c339d3d4; download it again"):
        released.check_adapter(path)
    path.unlink()
    path.write_bytes(b"short")
    with pytest.raises(BadInput, match="has 5 bytes, not the 84966094 of the released adapter"):
        released.check_adapter(path)
    assert released.check_adapter(full[0]) == {}


@pytest.mark.parametrize("shift", range(4))
def test_the_same_names_on_a_toy(tmp_path, monkeypatch, shift):
    """Scaled down, at every alignment of the data: the digest is checked, the tensors are those of the file, and decoding is plain decoding."""
    target, path = hybrid(), tmp_path / released.ADAPTER
    weights = lora.adapter_weights(adapter(target, rank=16, modules=lora.PUBLISHED)[0])
    header, ranges = header_of({k: v.shape for k, v in weights.items()}, shift)
    header += b" " * ((shift - 8 - len(header)) % 4)
    body = bytearray(max(end for _, end in ranges.values()))
    for name, (start, end) in ranges.items():
        body[start:end] = np.array(weights[name]).tobytes()
    path.write_bytes(struct.pack("<Q", len(header)) + header + body)
    monkeypatch.setattr(released, "ADAPTER_BYTES", path.stat().st_size)
    with pytest.raises(BadInput, match="has the sha256"):
        load_drafter(str(path), target)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setattr(released, "ADAPTER_SHA256", digest)
    drafter = load_drafter(str(path), target)
    assert (8 + len(header)) % 4 == shift and drafter.metadata == {"released": "u4b1 step 16000", "sha256": digest, "scale": 16.0}
    assert all(np.array_equal(np.array(v), np.array(weights[k])) for k, v in lora.adapter_weights(drafter._model).items())
    result = generate(target, PROMPT, drafter, k=4, max_tokens=12, ignore_eos=True)
    assert result.tokens == plain(target)[:12] and result.stats.accepted_per_cycle


def test_act4s_on_the_pair(tmp_path, monkeypatch):
    """The recipe of environment.md at toy size: hub id at its revision from the cache, bfloat16, the adapter by its name."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    folder = tmp_path / "hub" / f"models--{released.TARGET.replace('/', '--')}" / "snapshots" / released.REVISION
    target = load_target(str(write(folder, "qwen3_5", dtype=mx.bfloat16)), "bfloat16")
    path = tmp_path / released.ADAPTER
    mx.save_safetensors(str(path), lora.adapter_weights(adapter(target, rank=16, modules=lora.PUBLISHED)[0]))
    monkeypatch.setattr(released, "ADAPTER_BYTES", path.stat().st_size)
    monkeypatch.setattr(released, "ADAPTER_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    params = {"target": released.TARGET, "drafter": str(path), "block_sizes": [2, 4], "tokens": 6, "repeats": 1, "prompts": 1,
              "dtype": "bfloat16", "quick": True}
    rows = load_rows(act4s.measure(params, tmp_path / "act4s.journal"))
    assert rows.target == rows.provenance["target"]["name"] == "Qwen3.5-4B-Base" and rows.provenance["target"]["digest"] == target.digest()
    assert rows.provenance["drafter"]["sha256"] == released.ADAPTER_SHA256
    assert {r["arm"]: r["identical_to_ar"] for r in rows.rows if r["kind"] == "decode"} == {arm: True for arm in ("ar", "ar_mlx_lm", "uno_k2", "uno_k4")}


def test_the_backbone_digest_by_hand():
    """All tensors but the adapter's, by canonical name: name, shape, dtype and raw bytes; the same before, with and after an adapter."""
    target = hybrid(dtype="bfloat16")
    adapted, _ = adapter(target)
    h, found = hashlib.blake2b(digest_size=32), {k.replace(".base.", "."): v for k, v in tree_flatten(adapted.parameters()) if "lora_" not in k}
    for name in sorted(found):
        value = found[name]
        raw = np.array(value.view(mx.uint16) if value.dtype == mx.bfloat16 else value)
        for part in (name.encode(), str(value.shape).encode(), str(value.dtype).encode(), raw.tobytes()):
            h.update(part)
    assert h.hexdigest() == target.digest()


def test_a_checkpoint_is_left_as_it_is_stored(tmp_path):
    """In its own type no tensor is cast, so the digest is that of the files; in another all are."""
    model, config = build("qwen3_5")
    keep = ("A_log", "linear_attn.norm.weight")
    stored = {k: v if k.endswith(keep) else v.astype(mx.bfloat16) for k, v in tree_flatten(model.parameters())}
    mx.save_safetensors(str(tmp_path / "model.safetensors"), stored)
    (tmp_path / "config.json").write_text(json.dumps(config))
    write_tokenizer(tmp_path)
    model.load_weights(list(stored.items()))
    target = load_target(str(tmp_path), "bfloat16")
    assert target.digest() == digest_of(model) and target.dtype == "bfloat16"
    wide = load_target(str(tmp_path))
    assert {v.dtype for _, v in tree_flatten(wide.model.parameters())} == {mx.float32} and wide.digest() != target.digest()
    assert released.backbone_line(target).startswith(f"backbone digest {target.digest()}: not the published 7cd0f5a9bce5")


def test_the_published_digest_is_recognised(monkeypatch):
    monkeypatch.setattr(released, "BACKBONE", hybrid().digest())
    assert released.backbone_line(hybrid()) == f"backbone digest {hybrid().digest()}: the published one"


def test_the_hub_s_own_layout(tmp_path):
    """As it is published: a text model inside one that can also see, in two files, with tensors of the eye and of MTP, stock convolutions and norms."""
    model, config = build("qwen3_5")
    stored = {"model.visual.patch_embed.weight": mx.zeros((2, 2)), "mtp.fc.weight": mx.zeros((2, 2))}
    for name, value in tree_flatten(model.parameters()):
        norm = name.endswith((".input_layernorm.weight", ".post_attention_layernorm.weight", "model.norm.weight", "q_norm.weight", "k_norm.weight"))
        value = value.moveaxis(1, 2) if "conv1d" in name else value - 1 if norm else value
        stored[name.replace("language_model.model", "model.language_model")] = value.astype(mx.bfloat16)
    for i, part in enumerate((sorted(stored)[::2], sorted(stored)[1::2]), start=1):
        mx.save_safetensors(str(tmp_path / f"model-0000{i}-of-00002.safetensors"), {name: stored[name] for name in part})
    text = {k: v for k, v in config.items() if k not in ("model_type", "eos_token_id")} | {"model_type": "qwen3_5_text", "eos_token_id": 0}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_5", "text_config": text, "vision_config": {"depth": 2}, "image_token_id": 7}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 3]}))
    write_tokenizer(tmp_path)
    target = load_target(str(tmp_path), "bfloat16")
    model.update(tree_map(lambda v: v.astype(mx.bfloat16), model.parameters()))
    assert target.digest() == digest_of(model) and target.context == 512 and target.eos_ids == {0, 3} and target.card().count("1 Gated DeltaNet + 1") == 1


def test_prompts_are_raw(tmp_path):
    """No chat template and no special token, whatever the tokenizer's configuration asks for."""
    model, config = build("qwen3_5")
    mx.save_safetensors(str(tmp_path / "model.safetensors"), dict(tree_flatten(model.parameters())))
    (tmp_path / "config.json").write_text(json.dumps(config))
    write_tokenizer(tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    settings |= {"chat_template": "<|stop|>{{ messages[0]['content'] }}", "bos_token": "<|stop|>", "add_bos_token": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    target = load_target(str(tmp_path))
    ids = target.encode("Step 1.")
    assert len(ids) == 7 and not {0, 1} & set(ids) and target.decode(ids) == "Step 1."
