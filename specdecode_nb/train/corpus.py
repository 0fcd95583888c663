"""Assemble the training corpus: grammar and real text, tokenizer, held-out text, digests.

    python -m specdecode_nb.train.corpus OUT [--tokens N] [--seed S]

writes OUT/train.npy, OUT/heldout.npz, OUT/recipe.json and OUT/tokenizer/. Same seed, same package versions: same tokens.
"""
from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ..errors import BadInput
from . import realtext
from .grammar import CATEGORIES, document

SEED, TOKENS = 20261129, 4_500_000
VOCAB, EOS, PAD = 2048, "<|endoftext|>", "<|pad|>"
REAL_SHARE = 0.15
MINIMUM = 10_000
HELDOUT_TOKENS = 4_000  # for each category
TOKENIZER_SAMPLE = 400_000  # characters of each category


def _replace(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file beside ``path``, then put it in place."""
    part = path.with_name(path.name + ".part")
    with open(part, "wb") as file:
        write(file)
    os.replace(part, path)


def train_tokenizer(texts: Iterable[str]):
    """Byte-level BPE of VOCAB entries, digits one by one; id 0 ends a text, id 1 is padding and never occurs in text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=[EOS, PAD], initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False))
    return tok


def save_tokenizer(tok, folder: Path) -> None:
    """Write the files from which ``transformers.AutoTokenizer`` loads."""
    folder.mkdir(parents=True, exist_ok=True)
    named = {"bos_token": EOS, "eos_token": EOS, "pad_token": PAD, "unk_token": EOS}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **named, "model_max_length": 32768, "clean_up_tokenization_spaces": False}
    for name, text in {"tokenizer.json": tok.to_str(pretty=False), "tokenizer_config.json": json.dumps(config, indent=1),
                       "special_tokens_map.json": json.dumps(named, indent=1)}.items():
        _replace(folder / name, lambda file, text=text: file.write((text + "\n").encode()))


def grammar_documents(tok, category: str, seed: int, tokens: int, held_out: bool = False) -> list[list[int]]:
    """Token lists (EOS last) of successive documents until ``tokens`` are reached."""
    out, have, number = [], 0, 0
    while have < tokens:
        batch = [document(category, number + i, seed, held_out) for i in range(4 if held_out else 64)]
        number += len(batch)
        for enc in tok.encode_batch(batch):
            out.append(enc.ids + [0])
            have += len(enc.ids) + 1
            if have >= tokens:
                break
    return out


def windows(target, count: int, rows: int, seed: int | str, held_out: bool = False, apart: int = 1) -> np.ndarray:
    """Windows, int32 [count, rows], of grammar documents, the categories in turn, with the end-of-text id after each (published system 1.5).

    Successive ones, or one in every ``apart``: a few windows then come from many documents.
    """
    ids: list[int] = []
    number = 0
    while len(ids) < count * apart * rows:
        category = list(CATEGORIES)[number % len(CATEGORIES)]
        ids += target.encode(document(category, number // len(CATEGORIES), seed, held_out)) + [min(target.eos_ids)]
        number += 1
    return np.array(ids[: count * apart * rows], dtype=np.int32).reshape(count * apart, rows)[::apart]


def split_real(texts: list[str]) -> tuple[list[str], list[str]]:
    """Training and held-out real texts; one document in forty is held out (they come in the order of their digests)."""
    return [t for i, t in enumerate(texts) if i % 40], texts[::40]


def build_corpus(seed: int = SEED, tokens: int = TOKENS, out: Path | str = "corpus") -> dict:
    """Build everything under ``out`` and return the recipe.

    train.npy: uint16 [about tokens], shuffled documents, id 0 after each. heldout.npz: uint16 arrays by category and
    "real". Raises BadInput when a source package is absent or there is too little real text for its share.
    """
    if tokens < MINIMUM:
        raise BadInput(f"{tokens} is too small a corpus; ask for at least {MINIMUM} tokens.")
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    texts, sources = realtext.documents()
    real, real_held = split_real(texts)
    sample = []
    for category in CATEGORIES:
        size, number = 0, 0
        while size < TOKENIZER_SAMPLE:
            sample.append(document(category, number, seed))
            size, number = size + len(sample[-1]), number + 1
    rng = random.Random(f"{seed}/order")
    rng.shuffle(real)
    size = 0
    for text in real:
        sample.append(text)
        size += len(text)
        if size > 2 * TOKENIZER_SAMPLE:
            break
    tok = train_tokenizer(sample)
    save_tokenizer(tok, out / "tokenizer")

    have, kept = 0, []
    for enc in tok.encode_batch(real):
        if have >= tokens * REAL_SHARE:
            break
        kept.append(enc.ids + [0])
        have += len(kept[-1])
    if have < tokens * REAL_SHARE:
        raise BadInput(f"{tokens} tokens would need more than the {have} tokens of real text there are; ask for at most {int(have / REAL_SHARE)}.")
    quota = int(tokens * (1 - REAL_SHARE) / len(CATEGORIES))
    docs, counts = [], {}
    for category in CATEGORIES:
        part = grammar_documents(tok, category, seed, quota)
        counts[category] = {"documents": len(part), "tokens": sum(map(len, part))}
        docs += part
    counts["real"] = {"documents": len(kept), "tokens": have}
    docs += kept
    rng.shuffle(docs)
    train = np.fromiter((t for d in docs for t in d), dtype=np.uint16)
    held = {c: np.array(sum(grammar_documents(tok, c, seed, HELDOUT_TOKENS, held_out=True), []), dtype=np.uint16) for c in CATEGORIES}
    held["real"] = np.array([t for e in tok.encode_batch(real_held) for t in e.ids + [0]][: 3 * HELDOUT_TOKENS], dtype=np.uint16)
    _replace(out / "train.npy", lambda file: np.save(file, train))
    _replace(out / "heldout.npz", lambda file: np.savez(file, **held))

    recipe = {
        "seed": seed, "tokens": int(train.size), "categories": counts, "heldout_tokens": {c: int(v.size) for c, v in held.items()},
        "real_text": sources, "note": "Real text comes from the installed packages: with other versions every digest below differs.",
        "sha256": {
            "train_tokens": hashlib.sha256(train.astype("<u2").tobytes()).hexdigest(),
            "train_text": hashlib.sha256(tok.decode(train.tolist(), skip_special_tokens=False).encode()).hexdigest(),
            "heldout_tokens": hashlib.sha256(b"".join(held[c].astype("<u2").tobytes() for c in sorted(held))).hexdigest(),
            "tokenizer": hashlib.sha256((out / "tokenizer" / "tokenizer.json").read_bytes()).hexdigest(),
        },
    }
    _replace(out / "recipe.json", lambda file: file.write((json.dumps(recipe, indent=1, allow_nan=False) + "\n").encode()))
    return recipe


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the training corpus and tokenizer of tiny-hybrid.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--seed", type=int, default=SEED)
    args = parser.parse_args()
    try:
        print(json.dumps(build_corpus(args.seed, args.tokens, args.out), indent=1))
    except BadInput as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
