"""The seeded grammar, the tokenizer and the prompt suite."""
from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

from specdecode_nb.train import corpus, prompts, realtext
from specdecode_nb.train.grammar import CATEGORIES, document
from specdecode_nb.train.grammars import world

tokenizers = pytest.importorskip("tokenizers")
ROOT = Path(__file__).resolve().parents[1]
WINDOW = 128
TYPES = [(category, i) for category, kinds in CATEGORIES.items() for i in range(len(kinds))]


@pytest.fixture(scope="module")
def tok():
    return tokenizers.Tokenizer.from_file(str(ROOT / "data" / "models" / "tiny-hybrid" / "tokenizer.json"))


def looped(ids: list[int]) -> float:
    """Share of 8-gram starts whose 8-gram came earlier in the same list: the published measure."""
    seen, again = set(), 0
    for i in range(len(ids) - 7):
        gram = tuple(ids[i : i + 8])
        again += gram in seen
        seen.add(gram)
    return again / (len(ids) - 7)


def reserved(held_out: bool) -> set[str]:
    groups = world._split(world.STEMS, world.ENDINGS, held_out) + world._split(world.TOWN_STEMS, world.TOWN_ENDINGS, held_out)
    return {name for group in groups for name in group}


def test_nine_categories_with_several_types_each():
    assert len(CATEGORIES) == 9
    assert all(len(kinds) >= 3 for kinds in CATEGORIES.values())


@pytest.mark.parametrize("category,kind", TYPES)
def test_documents_repeat_themselves_little_and_are_long(tok, category, kind):
    rng, windows, lengths = random.Random(1), [], []
    for j in range(6):
        ids = tok.encode(document(category, kind + j * len(CATEGORIES[category]), 9)).ids
        lengths.append(len(ids))
        windows += [looped(ids[a : a + WINDOW]) for a in (rng.randrange(len(ids) - WINDOW) for _ in range(8))]
    assert min(lengths) > 2.5 * WINDOW and max(lengths) < 900
    assert sum(share >= 0.05 for share in windows) <= 2


@pytest.mark.parametrize("category,kind", TYPES)
def test_documents_depend_on_seed_number_and_split_alone(category, kind):
    one = document(category, kind, 3)
    random.seed(0)
    assert document(category, kind, 3) == one
    assert len({one, document(category, kind, 4), document(category, kind + len(CATEGORIES[category]), 3), document(category, kind, 3, True)}) == 4


def test_splits_share_no_name_and_no_opening_number():
    train, held = reserved(False), reserved(True)
    assert train and held and not train & held
    text = {out: "\n".join(document(c, n, 11, out) for c in CATEGORIES for n in range(8)) for out in (False, True)}
    lowered = {name.lower() for name in train}, {name.lower() for name in held}
    used = {out: set(re.findall(r"[a-z]+", t.lower())) for out, t in text.items()}
    assert used[False] & lowered[0] and not used[False] & lowered[1]
    assert used[True] & lowered[1] and not used[True] & lowered[0]
    drawn = {out: {world.World(i, out).number(10, 99) for i in range(300)} for out in (False, True)}
    assert not drawn[False] & drawn[True]


def test_arithmetic_of_the_documents_is_right():
    for number in range(30):
        for a, op, b, c in re.findall(r"(\d+) ([-+x]) (\d+) = (\d+)", document("math", number, 2)):
            assert {"+": int(a) + int(b), "-": int(a) - int(b), "x": int(a) * int(b)}[op] == int(c)


def test_structured_and_code_documents_parse():
    for n in range(5):
        for line in document("structured", 4 * n, 2).splitlines():
            json.loads(line)
        for kind in (0, 1):
            compile(document("code", 3 * n + kind, 2), "document", "exec")


@pytest.mark.parametrize("text", ["Mara has 24 apples.", "é ü ß Ω", "日本語 🦊 naïve", "a\n\n\tb  c\r\n", "", "x" * 300])
def test_tokenizer_gives_text_back(tok, text):
    ids = tok.encode(text).ids
    assert tok.decode(ids) == text
    assert all(1 < i < corpus.VOCAB for i in ids)


def test_tokenizer_special_ids_and_digits(tok):
    assert tok.get_vocab_size() == corpus.VOCAB
    assert tok.token_to_id(corpus.EOS) == 0 and tok.token_to_id(corpus.PAD) == 1
    assert tok.encode(corpus.EOS).ids == [0]
    assert len(tok.encode("2048").ids) == 4
    assert not [t for t in tok.get_vocab() if re.search(r"\d", t) and len(t) > 1]


def test_tokenizer_training_is_deterministic_and_loads_from_its_folder(tmp_path):
    texts = [document(c, n, 1) for c in CATEGORIES for n in range(6)]
    first, second = corpus.train_tokenizer(texts), corpus.train_tokenizer(list(texts))
    assert first.to_str() == second.to_str()
    corpus.save_tokenizer(first, tmp_path)
    transformers = pytest.importorskip("transformers")
    loaded = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    assert loaded.eos_token_id == 0 and loaded.pad_token_id == 1
    assert loaded.encode(texts[0]) == first.encode(texts[0]).ids


def test_grammar_documents_end_with_the_end_of_text_token(tok):
    docs = corpus.grammar_documents(tok, "math", 1, 3000)
    assert sum(map(len, docs)) >= 3000 > sum(map(len, docs[:-1]))
    assert all(d[-1] == 0 and 0 not in d[:-1] and 1 not in d for d in docs)


def test_real_text_pieces_take_nothing_twice():
    source = 'def f(x):\n    """A long story.\n\n    More of it.\n    """\n    return x\n'
    docs, code = realtext._pieces(source, True, False), realtext._pieces(source, False, True)
    assert docs == ["A long story.\n\nMore of it."]
    assert code == ["def f(x):\n    return x"]
    long = "\n\n".join(f"Paragraph {i} " + "word " * 60 for i in range(60))
    assert all(realtext.SHORTEST <= len(t) <= realtext.LIMIT for t in realtext._cut(long))


def test_real_split_is_disjoint():
    texts = [str(i) for i in range(200)]
    train, held = corpus.split_real(texts)
    assert not set(train) & set(held) and len(train) + len(held) == 200 and len(held) == 5


def test_prompt_suite_is_the_one_its_script_writes(tok):
    stored = json.loads((ROOT / "data" / "prompts" / "suite.json").read_text(encoding="utf-8"))["prompts"]
    built = prompts.suite()
    assert stored == [{k: p[k] for k in ("id", "category", "text")} for p in built]
    assert len(stored) == 27 and len({p["id"] for p in stored}) == len({p["text"] for p in stored}) == 27
    assert [sum(p["category"] == c for p in stored) for c in CATEGORIES] == [3] * 9
    names = {n.lower() for n in reserved(False)}
    for p in built:
        assert p["text"].strip() == p["text"] and 40 <= len(tok.encode(p["text"]).ids) <= 240
        assert len(tok.encode(p["rest"]).ids) >= 250, "a continuation of 128 tokens must stay inside its document"
        assert not set(re.findall(r"[a-z]+", p["text"].lower())) & names
