"""Any bytes in place of a weights file: it loads, or one sentence says why not."""
import json
import struct

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlx.utils import tree_flatten
from safetensors.numpy import save as to_bytes
from specdecode_nb import load_drafter, load_target, lora
from specdecode_nb.errors import BadInput
from toy import adapter, config, hybrid, stock

pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")  # of the file's bytes, where an example is printed
few = settings(max_examples=25, derandomize=True, database=None, deadline=None,
               suppress_health_check=[HealthCheck.function_scoped_fixture])
many = settings(few, max_examples=60)


def one_sentence(error):
    text = str(error)
    assert "\n" not in text and text.endswith(".") and len(text) < 500, text


@pytest.fixture(scope="module")
def adapter_file(tmp_path_factory):
    """The bytes of a right adapter, and a place to write wrong ones."""
    path = tmp_path_factory.mktemp("adapters") / "a.safetensors"
    lora.save_adapter(path, adapter(hybrid(), rank=2)[0], {"scale": 16.0})
    return path.read_bytes(), path


@pytest.fixture(scope="module")
def target_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("targets")
    (folder / "config.json").write_text(json.dumps(config()))
    path = folder / "model.safetensors"
    mx.save_safetensors(str(path), {k: v.astype(mx.bfloat16) for k, v in tree_flatten(stock().parameters())})
    return path.read_bytes(), path


def load(path, data):
    """Whether the bytes load, as an adapter or as the weights of a target; any error but BadInput is the test's failure."""
    path.write_bytes(data)
    try:
        if path.name == "a.safetensors":
            load_drafter(str(path), hybrid())
        else:
            load_target(str(path.parent))
        return True
    except BadInput as error:
        one_sentence(error)
        # the weights were right if all that a target lacks is the tokenizer, which this folder never has
        return "tokenizer" in str(error)


def header(data):
    return 8 + struct.unpack("<Q", data[:8])[0]


def test_the_files_are_right_to_begin_with(adapter_file, target_file):
    for data, path in (adapter_file, target_file):
        assert load(path, data)


@many
@given(st.data())
def test_a_truncated_file(adapter_file, target_file, data):
    for whole, path in (adapter_file, target_file):
        at = data.draw(st.one_of(st.integers(0, header(whole) + 8), st.integers(0, len(whole) - 1)))
        assert not load(path, whole[:at])


def flipped(data, whole: bytes, low: int, high: int) -> bytes:
    """One to four bits of the bytes ``low`` to ``high`` turned over."""
    spoiled = bytearray(whole)
    for at in data.draw(st.lists(st.integers(low, high), min_size=1, max_size=4)):
        spoiled[at] ^= 1 << data.draw(st.integers(0, 7))
    return bytes(spoiled)


@many
@given(st.data())
def test_bits_flipped_in_the_header(adapter_file, data):
    whole, path = adapter_file
    load(path, flipped(data, whole, 0, header(whole) - 1))


@few
@given(st.data())
def test_bits_flipped_in_the_header_of_a_target(target_file, data):
    whole, path = target_file
    load(path, flipped(data, whole, 0, header(whole) - 1))


@few
@given(st.data())
def test_bits_flipped_in_the_numbers(adapter_file, data):
    """Nothing in the format can tell; the digest can. Numbers that are not finite are refused."""
    whole, path = adapter_file
    spoiled = flipped(data, whole, header(whole), len(whole) - 1)
    numbers = np.frombuffer(spoiled[header(whole) :], np.float32)
    assert load(path, spoiled) == bool(np.isfinite(numbers).all())


@many
@given(st.one_of(st.binary(max_size=200), st.binary(max_size=40).map(lambda b: struct.pack("<Q", len(b)) + b)))
def test_garbage(adapter_file, target_file, data):
    for _, path in (adapter_file, target_file):
        assert not load(path, data)


@pytest.mark.parametrize("length", [0, 1, 2**31, 2**40, 2**63, 2**64 - 1])
def test_a_header_of_impossible_length(adapter_file, target_file, length):
    for whole, path in (adapter_file, target_file):
        assert not load(path, struct.pack("<Q", length) + whole[8:])


def test_bytes_after_the_end(adapter_file):
    whole, path = adapter_file
    assert not load(path, whole + b"\0")


NAMES = [f"{prefix}layers.{i}.{module}.{end}" for prefix in ("language_model.model.", "model.", "", "x")
         for i in ("0", "3", "4", "-1", "a", "") for module in ("mlp.up_proj", "self_attn.q_proj", "mlp.norm", "linear_attn.out_proj", "mlp", "")
         for end in ("lora_a", "lora_b", "lora_c", "weight", "lora_a.lora_b")]
SHAPES = st.one_of(st.sampled_from([(64, 2), (2, 96), (2, 128), (64, 4), (0, 2), (64, 0), (), (2,), (2, 2, 2)]),
                   st.lists(st.integers(0, 4), max_size=4).map(tuple))
KINDS = st.sampled_from([np.float32, np.float16, np.float64, np.int8, np.int64, np.uint8, np.bool_])


@many
@given(st.dictionaries(st.one_of(st.sampled_from(NAMES), st.text(max_size=6)), st.tuples(SHAPES, KINDS), max_size=5))
def test_other_tensors_under_any_names(adapter_file, tensors):
    _, path = adapter_file
    load(path, to_bytes({k: np.ones(shape, kind) for k, (shape, kind) in tensors.items()}))


@few
@given(st.data())
def test_one_tensor_renamed_dropped_or_reshaped(adapter_file, data):
    whole, path = adapter_file
    path.write_bytes(whole)
    tensors = {k: np.array(v) for k, v in mx.load(str(path)).items()}
    name = data.draw(st.sampled_from(sorted(tensors)))
    value = tensors.pop(name)
    how = data.draw(st.sampled_from(["drop", "rename", "transpose", "flatten", "widen", "pad"]))
    if how == "rename":
        tensors[data.draw(st.sampled_from(NAMES))] = value
    elif how != "drop":
        tensors[name] = {"transpose": np.ascontiguousarray(value.T), "flatten": value.ravel(), "widen": np.concatenate([value] * 2),
                         "pad": value[None]}[how]
    assert not load(path, to_bytes(tensors))


@pytest.mark.parametrize("value", ["", "{", "[]", "3", '"x"', "null", '{"scale": "a"}', '{"scale": null}', '{"scale": -1}', '{"scale": 0}',
                                   '{"scale": NaN}', '{"scale": Infinity}', '{"scale": [1]}', '{"target_digest": "00"}'])
def test_bad_metadata(adapter_file, value):
    whole, path = adapter_file
    path.write_bytes(whole)
    mx.save_safetensors(str(path), dict(mx.load(str(path))), metadata={"adapter": value})
    with pytest.raises(BadInput, match="metadata of 'a.safetensors' cannot be read|trained for another target") as caught:
        load_drafter(str(path), hybrid())
    one_sentence(caught.value)


def test_one_tensor_under_two_prefixes(adapter_file):
    whole, path = adapter_file
    path.write_bytes(whole)
    tensors = dict(mx.load(str(path)))
    name = sorted(tensors)[0]
    mx.save_safetensors(str(path), tensors | {name.replace("language_model.model.", "model."): tensors[name]})
    with pytest.raises(BadInput, match="under two prefixes"):
        load_drafter(str(path), hybrid())


def test_whole_numbers_are_no_adapter(adapter_file):
    whole, path = adapter_file
    path.write_bytes(whole)
    tensors = dict(mx.load(str(path)))
    mx.save_safetensors(str(path), tensors | {sorted(tensors)[0]: tensors[sorted(tensors)[0]].astype(mx.int8)})
    with pytest.raises(BadInput, match="holds mlx.core.int8, not floating-point numbers"):
        load_drafter(str(path), hybrid())


def test_things_that_are_no_files(tmp_path):
    (tmp_path / "folder.safetensors").mkdir()
    with pytest.raises(BadInput):
        load_drafter(str(tmp_path / "folder.safetensors"), hybrid())
    (tmp_path / "adapter.bin").write_bytes(to_bytes({"layers.0.mlp.up_proj.lora_a": np.ones((64, 2), np.float32)}))
    with pytest.raises(BadInput):
        load_drafter(str(tmp_path / "adapter.bin"), hybrid())
