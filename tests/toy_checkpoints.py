"""Checkpoints of every family at toy size, in the layout of mlx-lm: random weights, a tokenizer of bytes, nothing trained."""
import io
import json
from contextlib import redirect_stdout

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map_with_path
from mlx_lm.utils import _get_classes, quantize_model
from specdecode_nb.families import family
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

VOCAB = 264
WINDOW = 8
DENSE = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=32, rms_norm_eps=1e-6,
             vocab_size=VOCAB, max_position_embeddings=512, eos_token_id=0)
EXPERTS = dict(num_experts=4, num_experts_per_tok=2, decoder_sparse_step=1, mlp_only_layers=[], moe_intermediate_size=32, shared_expert_intermediate_size=32,
               norm_topk_prob=True)
DELTANET = dict(linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=16, linear_value_head_dim=16, linear_conv_kernel_dim=4,
                full_attention_interval=2)
ROPE = dict(rope_parameters=dict(type="default", rope_theta=1e5, partial_rotary_factor=0.5))
GEMMA3 = dict(sliding_window=WINDOW, sliding_window_pattern=2, query_pre_attn_scalar=32)
FAMILIES = {
    "llama": DENSE | dict(rope_theta=1e5),
    "llama_sliding": DENSE | dict(model_type="llama", tie_word_embeddings=False, layer_types=["sliding_attention", "full_attention"], sliding_window=WINDOW),
    "qwen3": DENSE | dict(rope_theta=1e6, tie_word_embeddings=True),
    "qwen3_moe": DENSE | EXPERTS | dict(rope_theta=1e6, tie_word_embeddings=False),
    "qwen3_next": DENSE | EXPERTS | DELTANET | dict(rope_theta=1e6, partial_rotary_factor=0.5, mlp_only_layers=[1]),
    "qwen3_5": DENSE | DELTANET | ROPE | dict(tie_word_embeddings=True),
    "qwen3_5_moe": DENSE | DELTANET | EXPERTS | ROPE,
    "gemma": DENSE,
    "gemma2": DENSE | dict(query_pre_attn_scalar=32, attn_logit_softcapping=50.0, final_logit_softcapping=30.0),
    "gemma3_text": DENSE | GEMMA3,
    "gemma3": dict(vocab_size=VOCAB, eos_token_id=0, text_config=DENSE | GEMMA3 | dict(model_type="gemma3_text")),
}


def write_tokenizer(folder):
    """Id 0 ends a text, 1 is special, the others are bytes."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({"<|end|>": 0, "<|stop|>": 1} | {c: i for i, c in enumerate(letters, start=2)}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>", "<|stop|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"}))


def build(name: str, seed: int = 1, **changes):
    """(mlx-lm's own model with random weights of some size, its configuration)."""
    config = dict(FAMILIES.get(name, {}))
    config = {"model_type": name} | config | changes
    model_class, args_class = _get_classes(config)
    mx.random.seed(seed)
    model = model_class(args_class.from_dict(json.loads(json.dumps(config))))
    tied = 0.5 if family(model).startswith("gemma") else 3.0  # its embedding is scaled up by the model
    model.update(tree_map_with_path(lambda path, v: v * (tied if "embed" in path else 3.0) if v.ndim >= 2 else v, model.parameters()))  # logits with gaps
    for layer in model.layers:
        if "linear_attn" in layer:
            layer.linear_attn.A_log = mx.log(mx.linspace(0.002, 0.5, layer.linear_attn.num_v_heads))
    model.eval()
    return model, config


def write(folder, name: str, bits: int | None = None, dtype=mx.float32, **changes):
    """A whole model folder of the family ``name``; matrices in ``bits`` by mlx-lm's own quantiser, in groups of 32."""
    folder.mkdir(parents=True)
    model, config = build(name, **changes)
    if bits:
        with redirect_stdout(io.StringIO()):
            model, config = quantize_model(model, config, 32, bits)
    weights = {k: v.astype(dtype) if mx.issubdtype(v.dtype, mx.floating) else v for k, v in tree_flatten(model.parameters())}
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder)
    return folder
