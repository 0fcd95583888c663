"""Hub ids: the local cache is enough, the network is touched only when asked, and a refusal says how to ask."""
import socket

import pytest
from specdecode_nb import checkpoints, cli, load_target, released
from specdecode_nb.errors import BadInput
from toy_checkpoints import write


@pytest.fixture(autouse=True)
def hub(tmp_path, monkeypatch):
    """An empty cache, and no network: whoever opens a socket fails the test."""
    def refuse(*_, **__):
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def cached(hub, name, commit, ref=None):
    storage = hub / f"models--{name.replace('/', '--')}"
    write(storage / "snapshots" / commit, "llama")
    if ref:
        (storage / "refs").mkdir(parents=True, exist_ok=True)
        (storage / "refs" / ref).write_text(commit)


def test_a_hub_id_in_the_cache(hub):
    cached(hub, "org/toy", "0" * 40, "main")
    target = load_target("org/toy")
    assert target.name == "toy" and target.card().startswith("toy: 0.1 M parameters")
    assert load_target("org/toy", revision="0" * 40).digest() == target.digest()


@pytest.mark.parametrize("revision", [None, "v2"])
def test_a_hub_id_that_is_not_here(hub, revision):
    cached(hub, "org/toy", "0" * 40, "other")
    at = f" at revision {revision}" if revision else ""
    with pytest.raises(BadInput, match=rf"There is no whole copy of 'org/toy'{at} on this machine; allow the download with download=True .--download., or"):
        load_target("org/toy", revision=revision)


def asked_of(monkeypatch, answer):
    asked = []

    def download(name, **options):
        asked.append((name, options))
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    monkeypatch.setattr(checkpoints, "snapshot_download", download)
    return asked


def test_what_is_asked_of_the_hub(tmp_path, monkeypatch):
    """Only weights, settings and tokenizer, never code; the network only with download; the published target at its revision."""
    folder = write(tmp_path / "snapshot", "llama")
    asked = asked_of(monkeypatch, folder)
    load_target("org/toy"), load_target("org/toy", download=True, revision="v2"), load_target(released.TARGET, download=True)
    assert [(n, o["revision"], o["local_files_only"]) for n, o in asked] == [("org/toy", None, True), ("org/toy", "v2", False),
                                                                             (released.TARGET, released.REVISION, False)]
    assert all("model*.safetensors" in o["allow_patterns"] and not any(p.endswith(".py") for p in o["allow_patterns"]) for _, o in asked)


def test_a_download_that_fails_is_one_sentence(monkeypatch):
    asked_of(monkeypatch, ConnectionError("no route\nto anywhere"))
    with pytest.raises(BadInput, match=r"'org/toy' could not be downloaded \(no route\); check the id, the revision and the network."):
        load_target("org/toy", download=True)


def test_the_commands(tmp_path, monkeypatch, capsys):
    asked = asked_of(monkeypatch, write(tmp_path / "snapshot", "llama"))
    assert cli.main(["card", "org/toy", "--download", "--digest", "--dtype", "bfloat16", "--revision", "v2"]) == 0
    out = capsys.readouterr().out
    assert asked[-1][1]["local_files_only"] is False and asked[-1][1]["revision"] == "v2"
    assert out.count("\n") == 4 and "in bfloat16" in out and "drafters: ngram, random, uno, dflash, mtp" in out and "not the published 7cd0f5a9" in out
    assert cli.main(["generate", "abc", "--target", "org/toy", "--drafter", "ngram", "--max-tokens", "3"]) == 0
    assert asked[-1][1]["local_files_only"] is True and "toy with ngram_2" in capsys.readouterr().out
    monkeypatch.undo()
    assert cli.main(["run", "act4s", "--download"]) == 2 and "add -p measure=true" in capsys.readouterr().err


def test_a_refusal_of_the_commands(capsys):
    assert cli.main(["generate", "abc", "--target", "org/toy"]) == 2
    assert "allow the download with download=True (--download)" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["a/b/c", "org/", "/org/toy", "org toy", "https://org/toy", "../toy"])
def test_what_is_no_hub_id(name):
    with pytest.raises(BadInput, match="There is no target"):
        load_target(name)


def test_a_folder_goes_before_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = asked_of(monkeypatch, OSError())
    write(tmp_path / "org" / "toy", "llama")
    assert load_target("org/toy").name == "toy" and not asked
    (tmp_path / "org" / "empty").mkdir()
    with pytest.raises(BadInput, match="There is no target 'org/empty'"):
        load_target("org/empty")
    assert not asked
