"""Targets and adapters from files: a right file loads, any other gives one sentence, and nothing is shared by accident."""
import json
import shutil

import mlx.core as mx
import numpy as np
import pytest
import toy_checkpoints
from mlx.utils import tree_flatten, tree_unflatten
from specdecode_nb import load_drafter, load_target, lora
from specdecode_nb.decoder import generate
from specdecode_nb.drafters import UnoDrafter
from specdecode_nb.errors import BadInput
from specdecode_nb.targets import digest_of, take_over
from toy import PROMPT, adapter, config, hybrid, plain, stock
from toy_checkpoints import VOCAB, write_tokenizer


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A whole model folder; tests copy it before they spoil it."""
    folder = tmp_path_factory.mktemp("models") / "toy-model"
    folder.mkdir()
    model = stock(seed=4, vocab=VOCAB)
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())), metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config(vocab=VOCAB)))
    write_tokenizer(folder)
    return folder


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made, tmp_path / "toy-model")


@pytest.fixture(scope="session")
def target(made):
    return load_target(str(made))


def test_a_target_from_a_folder(made, target):
    model = stock(seed=4, vocab=VOCAB)
    assert (target.name, target.dtype, target.vocab_size, target.context, target.eos_ids) == ("toy-model", "float32", VOCAB, 4096, {0})
    wanted = dict(tree_flatten(model.parameters()))
    assert all(np.array_equal(np.array(v), np.array(wanted[k])) for k, v in tree_flatten(target.model.parameters()))
    text = "naïve → 🙂"
    assert target.decode(target.encode(text)) == text and target.decode([0, *target.encode("a b"), 1]) == "a b"
    result = generate(target, text, None, max_tokens=12, ignore_eos=True)
    assert len(set(result.tokens)) >= 5 and target.card().startswith("toy-model: 0.2 M parameters in float32, 3 Gated DeltaNet + 1 attention layers")


def test_bfloat16(made):
    target = load_target(str(made), "bfloat16")
    assert target.dtype == "bfloat16" and all(
        v.dtype == (mx.float32 if name.endswith("A_log") else mx.bfloat16) for name, v in tree_flatten(target.model.parameters()))
    assert len(generate(target, "abc", None, max_tokens=4, ignore_eos=True).tokens) == 4


def test_several_end_ids_come_from_the_configuration(folder):
    (folder / "config.json").write_text(json.dumps(config(vocab=VOCAB) | {"eos_token_id": [1, 5]}))
    assert load_target(str(folder)).eos_ids == {0, 1, 5}
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config(vocab=VOCAB).items() if k != "eos_token_id"}))
    assert load_target(str(folder)).eos_ids == {0}


def test_weights_in_several_files(folder):
    weights = mx.load(str(folder / "model.safetensors"))
    names = sorted(weights)
    (folder / "model.safetensors").unlink()
    for i, part in enumerate((names[::2], names[1::2]), start=1):
        mx.save_safetensors(str(folder / f"model-0000{i}-of-00002.safetensors"), {n: weights[n] for n in part})
    assert load_target(str(folder)).digest() == digest_of(stock(seed=4, vocab=VOCAB))
    mx.save_safetensors(str(folder / "model.safetensors"), {names[0]: weights[names[0]]})
    with pytest.raises(BadInput, match="Both 'model-00001-of-00002.safetensors' and 'model.safetensors' of target .* hold the tensor .*; remove"):
        load_target(str(folder))


def test_the_digest_is_stable_and_sees_everything(made, target):
    assert target.digest() == load_target(str(made)).digest() == digest_of(stock(seed=4, vocab=VOCAB)) and len(target.digest()) == 64
    model = stock(seed=4, vocab=VOCAB)
    before = digest_of(model)
    for name, value in tree_flatten(model.parameters()):
        if name.endswith(("dt_bias", "norm.weight", "q_proj.weight")):
            flat = value.reshape(-1)
            for other in (mx.concatenate([flat[:-1], flat[-1:] * 1.0000002]).reshape(value.shape), value.astype(mx.bfloat16), value[None]):
                model.update(tree_unflatten([(name, other)]))
                assert digest_of(model) != before, name
            model.update(tree_unflatten([(name, value)]))
    assert digest_of(model) == before


@pytest.mark.parametrize("name, dtype, message", [
    ("tiny-hybrit", None, "There is no target 'tiny-hybrit' .did you mean 'tiny-hybrid'.*; give a name"),
    ("", None, "There is no target ''"), ("/nowhere/at/all", None, "There is no target"),
    ("~nosuchuser/model", None, "There is no target"), ("/" + "a" * 300, None, "There is no target"), ("a" * 300 + "/b", None, "There is no "),
    ("tiny-hybrid", "float16", "There is no dtype 'float16'.*choose float32 or bfloat16")])
def test_unknown_targets(name, dtype, message):
    with pytest.raises(BadInput, match=message):
        load_target(name, dtype)


@pytest.mark.parametrize("text, message", [
    ("", "is not JSON"), ("{", "is not JSON"), ("[]", "config.json"), ("null", "config.json"), ('"x"', "config.json"), ("{}", "model type None"),
    ('{"model_type": "lama"}', "model type 'lama', which mlx-lm does not know"), ('{"model_type": "../x"}', "which mlx-lm does not know"),
    ('{"model_type": "cache"}', "which mlx-lm does not know"), ('{"model_type": "llama"}', "does not describe a llama model"),
    ('{"model_type": "qwen3_5", "model_file": "mine.py"}', "asks to run its own code .'mine.py'., which is never done"),
    (b"\xff\xfe\x00", "cannot be read"), ('{"model_type": "qwen3_5", "text_config": 3}', "does not describe a qwen3_5 model")])
def test_a_broken_configuration(folder, text, message):
    (folder / "config.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(BadInput, match=message):
        load_target(str(folder))


@pytest.mark.parametrize("key", [k for k in config() if k != "model_type"])
def test_a_wrong_value_in_the_configuration(folder, key):
    """Either it still describes these weights, or one sentence says that it does not."""
    for value in (None, "abc", -1, 0, 7, 1.5, [], {}, True):
        (folder / "config.json").write_text(json.dumps(config(vocab=VOCAB) | {key: value}))
        try:
            load_target(str(folder))
        except BadInput as error:
            assert "\n" not in str(error) and str(error).endswith("."), error


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("spoil", ["missing", "empty", "garbage", "other"])
def test_a_broken_tokenizer(folder, name, spoil):
    path = folder / name
    if spoil == "missing":
        path.unlink()
    else:
        path.write_bytes({"empty": b"", "garbage": b"\xff{{", "other": b"[1, 2]"}[spoil])
    if (name, spoil) == ("tokenizer_config.json", "missing"):
        return
    with pytest.raises(BadInput, match="tokenizer of target"):
        load_target(str(folder))


def test_missing_weights(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(BadInput, match="has no model.safetensors; restore"):
        load_target(str(folder))


def test_missing_odd_and_misshapen_tensors(folder):
    weights = mx.load(str(folder / "model.safetensors"))
    name = "language_model.model.layers.1.linear_attn.conv1d.weight"
    for spoil, message in [({name: weights[name][..., 0]}, "not those of a qwen3_5"), ({name: mx.zeros((3,))}, "not those of"), ({name: mx.array(1.0)}, "not those of"),
                           ({name: mx.zeros((5, 4, 1))}, "has shape"),
                           ({"language_model.extra.weight": mx.zeros((2,))}, "unknown tensor 'language_model.extra.weight'")]:
        mx.save_safetensors(str(folder / "model.safetensors"), weights | spoil)
        with pytest.raises(BadInput, match=message):
            load_target(str(folder))
    mx.save_safetensors(str(folder / "model.safetensors"), {k: v for k, v in weights.items() if k != name})
    with pytest.raises(BadInput, match=f"lacks tensor '{name}'"):
        load_target(str(folder))


# adapters

PREFIXES = ("language_model.model.", "model.language_model.", "model.", "")


@pytest.mark.parametrize("prefix", PREFIXES)
def test_published_names(tmp_path, prefix):
    """The released file has no metadata, rank-16 float32 pairs and scale 16; exports differ in the prefix alone."""
    target = hybrid()
    adapted, _ = adapter(target, rank=16, modules=lora.PUBLISHED)
    weights = lora.adapter_weights(adapted)
    assert len(weights) == 2 * (3 * 4 + 4)
    assert weights["language_model.model.layers.2.mlp.down_proj.lora_a"].shape == (96, 16)
    assert weights["language_model.model.layers.3.self_attn.q_proj.lora_b"].shape == (16, 128)
    path = tmp_path / "released.safetensors"
    mx.save_safetensors(str(path), {k.replace("language_model.model.", prefix): v for k, v in weights.items()})
    loaded, gate, metadata = lora.load_adapter(path, target.model)
    assert metadata == {"scale": 16.0} and loaded.layers[0].mlp.up_proj._gate.scale == 16.0
    assert all(np.array_equal(np.array(v), np.array(weights[k])) for k, v in lora.adapter_weights(loaded).items())
    drafter = load_drafter(str(path), target)
    assert drafter.name == "released" and generate(target, PROMPT, drafter, k=4, max_tokens=12, ignore_eos=True).tokens == plain(target)[:12]


def test_save_and_load(tmp_path):
    target, path = hybrid(), tmp_path / "a.safetensors"
    adapted, gate = adapter(target, rank=3)
    lora.save_adapter(path, adapted, {"scale": 4.0, "target_digest": target.digest(), "recipe": {"rank": 3}})
    assert list(tmp_path.iterdir()) == [path]
    loaded, other, metadata = lora.load_adapter(path, target.model)
    assert metadata["recipe"] == {"rank": 3} and loaded.layers[3].self_attn.o_proj._gate.scale == 4.0
    assert load_drafter(str(path), target).metadata == metadata
    with pytest.raises(BadInput, match="trained for another target"):
        load_drafter(str(path), hybrid(seed=1))
    with pytest.raises(BadInput, match="has shape"):
        load_drafter(str(path), hybrid(value_heads=2, key_heads=2))
    lora.save_adapter(path, adapted, {"target_digest": 5})
    with pytest.raises(BadInput, match="trained for another target"):
        load_drafter(str(path), target)


def test_tokenizers_are_compared_by_their_map_and_not_by_size(folder, tmp_path):
    """Two ids exchanged: the same size, the same weights, another map; whatever else is taken on purpose, that is not."""
    target, path = load_target(str(folder)), tmp_path / "a.safetensors"
    adapted, _ = adapter(target)
    lora.save_adapter(path, adapted, {"target_digest": target.digest(), "tokenizer_digest": target.tokenizer_digest()})
    assert load_drafter(str(path), target).target is target
    file = folder / "tokenizer.json"
    file.write_text(file.read_text().replace('"A":', '"?!":', 1).replace('"B":', '"A":', 1).replace('"?!":', '"B":', 1))
    other = load_target(str(folder))
    assert len(other.tokenizer.get_vocab()) == len(target.tokenizer.get_vocab()) and other.digest() == target.digest()
    assert other.encode("AB") == target.encode("BA") and other.tokenizer_digest() != target.tokenizer_digest()
    for foreign in (False, True):
        with pytest.raises(BadInput, match="trained with another tokenizer"):
            load_drafter(str(path), other, foreign=foreign)
    assert load_target(str(shutil.copytree(folder, tmp_path / "again"))).tokenizer_digest() == other.tokenizer_digest()


def test_numbers_that_would_overflow_are_refused(tmp_path):
    """An infinite update times a gate of 0 is no number, in the row of the seed too, whose token nothing verifies."""
    target, path = hybrid(), tmp_path / "a.safetensors"
    adapted, _ = adapter(target, rank=3)
    for value, fine in ((lora.LARGEST, True), (1e38, False)):
        layer = adapted.layers[0].mlp.gate_proj
        layer.lora_a = mx.array(np.full(layer.lora_a.shape, value, np.float32))
        lora.save_adapter(path, adapted, {})
        if fine:
            assert generate(target, PROMPT, load_drafter(str(path), target), k=4, max_tokens=9, ignore_eos=True).tokens == plain(target)[:9]
        else:
            with pytest.raises(BadInput, match="beyond 10000"):
                load_drafter(str(path), target)


@pytest.mark.parametrize("name, options, message", [
    ("uno", {}, "no uno drafter for target 'toy0'"), ("unno", {}, "no drafter 'unno' .did you mean 'uno'"), ("/nowhere.safetensors", {}, "no drafter"),
    ("", {}, "no drafter ''"), ("ngram", {"size": 2}, "does not take these options"), ("random", {"order": 2}, "does not take"),
    ("ngram", {"order": 0}, "order is 0"), ("ngram", {"order": "2"}, "order is '2'"), ("random", {"seed": None}, "seed is None")])
def test_unknown_drafters(name, options, message):
    with pytest.raises(BadInput, match=message):
        load_drafter(name, hybrid(), **options)


def test_drafters_by_name():
    assert load_drafter(None, hybrid()) is load_drafter("none", hybrid()) is None
    assert load_drafter("ngram", hybrid(), order=3).name == "ngram_3" and load_drafter("random", hybrid(), seed=4).name == "random"


def logits(model, ids, target):
    return np.array(model(mx.array([ids]), cache=target.make_cache()))[0]


def test_rows_with_gate_0_are_the_target_s_own():
    target = hybrid()
    adapted, gate = adapter(target)
    wanted = logits(target.model, PROMPT, target)
    for mask in (None, [[0.0] * len(PROMPT)]):
        gate.rows(mask)
        assert logits(adapted, PROMPT, target).tobytes() == wanted.tobytes()
    gate.rows([[0, 0, 0, 1, 0, 1, 1]])
    mixed = logits(adapted, PROMPT, target)
    assert mixed[:3].tobytes() == wanted[:3].tobytes() and all(not np.array_equal(a, b) for a, b in zip(mixed[3:], wanted[3:]))
    assert logits(target.model, PROMPT, target).tobytes() == wanted.tobytes()


def test_one_layer_by_hand():
    target = hybrid()
    adapted, gate = adapter(target)
    layer, base = adapted.layers[1].mlp.up_proj, target.model.layers[1].mlp.up_proj
    x = mx.random.normal((1, 4, 64), key=mx.random.key(2))
    gate.rows([[0, 1, 1, 0]])
    update = 16.0 * (x @ layer.lora_a) @ layer.lora_b * mx.array([0, 1, 1, 0])[None, :, None]
    np.testing.assert_allclose(np.array(layer(x)), np.array(base(x) + update), rtol=1e-5, atol=1e-5)
    for mask in ([[1, 1]], [[1, 1, 1, 1]] * 2, [[1]]):
        gate.rows(mask)
        with pytest.raises(ValueError, match="row gate has shape"):
            layer(x)


def test_attaching_leaves_the_target_alone():
    model = stock(seed=6)
    take_over(model)
    digest, trainable = digest_of(model), len(tree_flatten(model.trainable_parameters()))
    adapted, gate = lora.attach(model, 4, lora.PUBLISHED + lora.DELTANET)
    assert digest_of(model) == digest and not any("lora" in k for k, _ in tree_flatten(model.parameters()))
    assert len(tree_flatten(model.trainable_parameters())) == trainable  # not frozen by its adapted view
    assert {k.rsplit(".", 1)[1] for k, _ in tree_flatten(adapted.trainable_parameters())} == {"lora_a", "lora_b"}
    ours = dict(tree_flatten(model.parameters()))
    assert all(v is ours[k.replace(".base", "")] for k, v in tree_flatten(adapted.parameters()) if "lora" not in k)
    view = lora.share(model)
    view.layers[0].mlp = None
    view.layers[1].linear_attn.in_proj_z.weight = mx.zeros((1,))
    view.train()
    assert digest_of(model) == digest and not model.layers[2].mlp.training


def test_two_adapters_on_one_target():
    target = hybrid()
    (one, gate_one), (two, gate_two) = adapter(target, seed=1), adapter(target, seed=2, rank=2, modules=lora.PUBLISHED)
    mask = [[0] + [1] * (len(PROMPT) - 1)]
    gate_one.rows(mask)
    alone = logits(one, PROMPT, target)
    assert logits(two, PROMPT, target).tobytes() == logits(target.model, PROMPT, target).tobytes()  # its gate is off
    gate_two.rows(mask)
    assert not np.array_equal(logits(two, PROMPT, target), alone) and logits(one, PROMPT, target).tobytes() == alone.tobytes()
    for model, gate in ((one, gate_one), (two, gate_two)):
        assert generate(target, PROMPT, UnoDrafter(target, model, gate), k=3, max_tokens=8, ignore_eos=True).tokens == plain(target)[:8]


@pytest.mark.parametrize("change, message", [
    (lambda weights, config: weights.update({k: v.astype(mx.int32) for k, v in weights.items()}), "none of them are floating-point"),
    (lambda weights, config: config.update(rope_theta="1e5"), "cannot be computed with"), (lambda weights, config: config.update(rope_theta=None), "cannot be computed with")])
def test_weights_that_nothing_can_be_computed_with_are_named(tmp_path, change, message):
    toy_checkpoints.write(tmp_path / "toy", "llama")
    file, settings = tmp_path / "toy" / "model.safetensors", tmp_path / "toy" / "config.json"
    weights, config = mx.load(str(file)), json.loads(settings.read_text())
    mx.eval(weights)
    change(weights, config)
    mx.save_safetensors(str(file), weights, {"format": "mlx"})
    settings.write_text(json.dumps(config))
    with pytest.raises(BadInput, match=message):
        load_target(tmp_path / "toy")
