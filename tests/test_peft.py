"""Adapters in PEFT's layout: names, orientation and scale, read back to the same bits and the same gate; what would change the arithmetic is refused."""
import json

import mlx.core as mx
import numpy as np
import pytest
from specdecode_nb import load_drafter, lora
from specdecode_nb.decoder import generate
from specdecode_nb.errors import BadInput
from specdecode_nb.peft import CONFIG, GATE, WEIGHTS, read_peft, write_peft
from toy import PROMPT, adapter, hybrid, plain


@pytest.fixture
def exported(tmp_path):
    target = hybrid()
    adapted, gate = adapter(target, rank=4, modules=lora.PUBLISHED)
    write_peft(tmp_path / "peft", adapted, "org/toy", {"target_digest": target.digest()})
    return target, adapted, tmp_path / "peft"


def test_names_layout_and_settings(exported):
    target, adapted, folder = exported
    assert sorted(p.name for p in folder.iterdir()) == [CONFIG, WEIGHTS]
    config, (tensors, metadata) = json.loads((folder / CONFIG).read_text()), mx.load(str(folder / WEIGHTS), return_metadata=True)
    assert (config["peft_type"], config["r"], config["lora_alpha"], config["lora_dropout"]) == ("LORA", 4, 64.0, 0.0)
    assert config["base_model_name_or_path"] == "org/toy" and config["target_modules"] == sorted(lora.PUBLISHED)
    ours = lora.adapter_weights(adapted)
    assert len(tensors) == len(ours) == 2 * (3 * 4 + 4)
    a, b = (tensors[f"base_model.model.model.layers.3.self_attn.q_proj.lora_{end}.weight"] for end in "AB")
    assert a.shape == (4, 64) and b.shape == (128, 4)
    stem = "language_model.model.layers.3.self_attn.q_proj.lora_"
    assert np.array_equal(np.array(a), np.array(ours[stem + "a"]).T) and np.array_equal(np.array(b), np.array(ours[stem + "b"]).T)
    # the update of one row, as PEFT computes it
    x = np.random.default_rng(0).normal(size=64).astype(np.float32)
    wanted = config["lora_alpha"] / config["r"] * (np.array(b) @ (np.array(a) @ x))
    layer = adapted.layers[3].self_attn.q_proj
    layer._gate.rows([[1]])
    update = np.array(layer(mx.array(x)[None, None]) - layer.base(mx.array(x)[None, None]))[0, 0]
    np.testing.assert_allclose(update, wanted, rtol=1e-4, atol=1e-4)
    assert json.loads(metadata["adapter"]) == {"target_digest": target.digest(), "scale": 16.0, "gate": GATE}


def test_it_reads_back_to_the_same_bits_and_gate(exported):
    target, adapted, folder = exported
    loaded, gate, metadata = read_peft(folder, target.model)
    ours, theirs = lora.adapter_weights(adapted), lora.adapter_weights(loaded)
    assert all(np.array_equal(np.array(v), np.array(ours[k])) for k, v in theirs.items()) and gate.scale == 16.0 and metadata["gate"] == GATE
    for g in (gate, adapted.layers[0].mlp.up_proj._gate):
        g.rows([[0, 1, 1]])
    a, b, wanted = (np.array(m(mx.array([PROMPT[:3]]), cache=target.make_cache())) for m in (adapted, loaded, target.model))
    assert a.tobytes() == b.tobytes() and a[0, 0].tobytes() == wanted[0, 0].tobytes() and not np.array_equal(a[0, 1:], wanted[0, 1:])


def test_it_is_a_drafter(exported):
    target, adapted, folder = exported
    drafter = load_drafter(str(folder), target)
    assert drafter.name == "peft" and drafter.metadata["target_digest"] == target.digest()
    assert generate(target, PROMPT, drafter, k=4, max_tokens=12, ignore_eos=True).tokens == plain(target)[:12]
    with pytest.raises(BadInput, match="adapter 'peft' was trained for another target"):
        load_drafter(str(folder), hybrid(seed=1))


def test_another_program_s_export(exported):
    """Float16, no metadata, the names of a model that can also see."""
    target, adapted, folder = exported
    tensors = {k.replace("model.layers", "model.language_model.layers"): v.astype(mx.float16) for k, v in mx.load(str(folder / WEIGHTS)).items()}
    mx.save_safetensors(str(folder / WEIGHTS), tensors)
    config = json.loads((folder / CONFIG).read_text()) | {"r": 4, "lora_alpha": 8, "lora_dropout": 0.1, "init_lora_weights": True, "use_qalora": False}
    (folder / CONFIG).write_text(json.dumps(config))
    loaded, gate, metadata = read_peft(folder, target.model)
    assert gate.scale == 2.0 and metadata == {"scale": 2.0}
    ours = lora.adapter_weights(adapted)
    assert all(v.dtype == mx.float32 and np.array_equal(np.array(v), np.array(ours[k].astype(mx.float16).astype(mx.float32)))
               for k, v in lora.adapter_weights(loaded).items())


@pytest.mark.parametrize("change, message", [
    ({"peft_type": "IA3"}, "does not describe a LoRA adapter"), ({"use_dora": True}, "sets use_dora to True"), ({"use_rslora": True}, "sets use_rslora"),
    ({"rank_pattern": {"q_proj": 8}}, "sets rank_pattern"), ({"bias": "all"}, "sets bias to 'all'"), ({"modules_to_save": ["lm_head"]}, "sets modules_to_save"),
    ({"trainable_token_indices": [3]}, "sets trainable_token_indices"), ({"r": 0}, "gives r as 0"), ({"lora_alpha": None}, "lora_alpha as None"),
    ({"lora_alpha": "x"}, "lora_alpha as 'x'"),
    ({"lora_alpha": 1e308}, "has the scale .*beyond 10000 it is damaged")])
def test_settings_that_change_the_arithmetic(exported, change, message):
    target, _, folder = exported
    (folder / CONFIG).write_text(json.dumps(json.loads((folder / CONFIG).read_text()) | change))
    with pytest.raises(BadInput, match=message):
        load_drafter(str(folder), target)


@pytest.mark.parametrize("spoil, message", [
    (lambda t: {k: v for k, v in t.items() if "layers.2.mlp.up_proj.lora_B" not in k}, "lacks tensor"),
    (lambda t: t | {"base_model.model.lm_head.weight": mx.zeros((2, 2))}, "lm_head.weight"),
    (lambda t: {k: v.T for k, v in t.items()}, "has shape"), (lambda t: {k: v * float("nan") for k, v in t.items()}, "not finite"),
    (lambda t: {k.replace("layers.", "blocks."): v for k, v in t.items()}, "is not an adapter"), (lambda t: {}, "is not an adapter")])
def test_tensors_that_do_not_fit(exported, spoil, message):
    target, _, folder = exported
    mx.save_safetensors(str(folder / WEIGHTS), spoil(dict(mx.load(str(folder / WEIGHTS)))))
    with pytest.raises(BadInput, match=message):
        load_drafter(str(folder), target)


def test_missing_and_broken_files(exported):
    target, _, folder = exported
    (folder / WEIGHTS).rename(folder / "elsewhere")
    with pytest.raises(BadInput, match="There is no file 'adapter_model.safetensors'"):
        load_drafter(str(folder), target)
    (folder / CONFIG).write_text("{")
    with pytest.raises(BadInput, match="adapter_config.json of adapter 'peft' is not JSON"):
        load_drafter(str(folder), target)


def test_merging_is_refused_with_the_reason(exported):
    """By the name that mlx-lm's own fuse looks for, on every adapted layer."""
    _, adapted, _ = exported
    layers = [module for _, module in adapted.named_modules() if hasattr(module, "fuse")]
    assert len(layers) == 3 * 4 + 4
    for layer in layers:
        with pytest.raises(BadInput, match="cannot be merged into its base: its gate is off on the seed row and on every row that is verified"):
            layer.fuse(dequantize=False)
