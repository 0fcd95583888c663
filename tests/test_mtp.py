"""The MTP drafter: its arithmetic, its training, its file. How its context follows a session is in test_tap_drafters."""
import json
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from specdecode_nb.decoder import Session, generate
from specdecode_nb.drafters import load_drafter
from specdecode_nb.errors import BadInput
from specdecode_nb.mtp import MTPDrafter, MTPModel, write_mtp
from specdecode_nb.taps import embed_and_head
from specdecode_nb.train import mtp
from tapping import LENGTH, PREFIX, drawn, residuals, toy_rows, toy_windows
from toy import PROMPT, VOCAB, hybrid, plain

RECIPE = mtp.Recipe(mlp=48, depth=3, lr=1e-2, warmup=2, steps=40, windows_a_step=3, probe_every=10, probe_tokens=12, patience=2, seed=5)


def model(width=48, **options):
    return drawn(MTPModel(hybrid(), width), **options)


def by_hand(weights, target, history, k):
    """Proposals and logits of a chain: after each link the whole sequence of rows runs again, without a cache."""
    embed, head = embed_and_head(target)
    hidden = target.model.model.norm(residuals(target, history[:-1])[0][-1])
    tokens, logits = list(history[1:]), []
    for _ in range(k - 1):
        x = weights.rows(hidden, embed(mx.array([tokens])))
        mask = mx.where(mx.tril(mx.ones((x.shape[1],) * 2)) > 0, 0.0, -mx.inf)
        out = weights.norm(weights.layers[0](x, mask))[:, -1:]
        logits.append(np.array(head(out))[0, 0])
        tokens.append(int(logits[-1].argmax()))
        hidden = mx.concatenate([hidden, out], axis=1)
    return tokens[len(history) - 1 :], np.stack(logits)


@pytest.mark.parametrize("history", [[5, 77], PROMPT, PROMPT * 3])
@pytest.mark.parametrize("k", (2, 4, 6))
def test_the_draft_by_hand(history, k):
    target, drafter = hybrid(), MTPDrafter(hybrid(), model(), 5)
    session = Session(target)
    session.feed(history, drafter.verifier)
    tokens, logits = by_hand(drafter.model, target, history, k)
    top = np.sort(logits, axis=1)
    assert (top[:, -1] - top[:, -2]).min() > 1e-3  # no ties
    for _ in range(2):  # the rows of a draft leave nothing behind
        draft = drafter.draft(session.cache, history, k, 1)
        assert draft.tokens == tokens and draft.exact == 0 and not draft.seed_kept and draft.forwards == k - 1


def test_a_prompt_of_one_token_starts_plainly():
    target, drafter = hybrid(), MTPDrafter(hybrid(), model(), 3)
    result = generate(target, [77], drafter, k=4, max_tokens=9, ignore_eos=True)
    assert result.tokens == plain(target, [77], 9) and result.stats.offered_per_cycle[:2] == [0, 3]


def test_chains_longer_than_trained_are_refused():
    with pytest.raises(BadInput, match="at most 4"):
        generate(hybrid(), PROMPT, MTPDrafter(hybrid(), model(), 3), k=5, max_tokens=9)


# training


@pytest.fixture
def windows():
    return toy_windows()


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return toy_rows(tmp_path_factory.mktemp("taps"), RECIPE.taps)


@pytest.mark.parametrize("depth", (1, 2, 4))
def test_a_chain_in_training_is_the_chain_of_decoding(windows, depth):
    """Where the window goes on as the chain does, every link gives the row that decoding gives."""
    target, weights = hybrid(), model()
    embed, head = embed_and_head(target)
    start = 17
    history = windows[0, : start + 1].tolist()
    tokens, wanted = by_hand(weights, target, history, depth + 1)
    ids = mx.array([history + tokens + [3] * 5])
    hidden = target.model.model.norm(residuals(target, ids[0].tolist())[0][-1])
    outputs = mtp.chain_hidden(weights, target, hidden, ids, depth)
    for d, out in enumerate(outputs):
        np.testing.assert_allclose(np.array(head(out))[0, start - 1 + d], wanted[d], rtol=1e-3, atol=1e-3)


def test_a_link_sees_nothing_that_decoding_would_not_know(windows):
    target, weights, ids = hybrid(), model(), windows[:1].astype(np.int32)
    hidden = np.array(target.model.model.norm(residuals(target, ids[0].tolist())[0][-1]))
    run = lambda h, i: [np.array(o) for o in mtp.chain_hidden(weights, target, mx.array(h), mx.array(i), 3)]  # noqa: E731
    base = run(hidden, ids)
    for changed in (11, 12):
        other, words = hidden.copy(), ids.copy()
        other[:, changed] += 1
        words[:, changed + 1] = 3
        for d, (a, b) in enumerate(zip(base, run(other, ids)), 1):
            # row r of link d reads the target's rows up to r - d + 1
            differs = np.flatnonzero((a != b).any(axis=-1)[0])
            assert differs[0] == changed + d - 1
        assert np.flatnonzero((base[0] != run(hidden, words)[0]).any(axis=-1)[0])[0] == changed


def test_the_loss_by_hand(windows):
    target, weights, ids = hybrid(), model(), mx.array(windows[:2].astype(np.int32))
    taps = mx.concatenate([residuals(target, row)[0][-1] for row in ids.tolist()])
    outputs = mtp.chain_hidden(weights, target, target.model.model.norm(taps), ids, 2)
    total, n = 0.0, 0
    for out in outputs:
        logits = np.array(embed_and_head(target)[1](out)).astype(np.float64)
        for w in range(2):
            for r in range(PREFIX - 1, LENGTH - 2):
                row = logits[w, r]
                total, n = total + np.log(np.exp(row - row.max()).sum()) + row.max() - row[windows[w, r + 2]], n + 1
    assert mtp.chain_loss(weights, target, taps, ids, PREFIX, 2).item() == pytest.approx(total / n, rel=1e-4)


def test_training_lowers_the_loss_and_goes_on_bit_for_bit(windows, rows, tmp_path):
    quiet = lambda *_, **__: None  # noqa: E731
    before = hybrid().digest()
    whole, first, second = (mtp.Training(hybrid(), RECIPE) for _ in range(3))
    whole.run(rows, windows[2:], 16, PREFIX, quiet)
    first.run(rows, windows[2:], 7, PREFIX, quiet)
    first.save(tmp_path / "c.safetensors")
    second.resume(tmp_path / "c.safetensors")
    second.run(rows, windows[2:], 16, PREFIX, quiet)
    for (name, a), (_, b) in zip(tree_flatten(whole.model.parameters()), tree_flatten(second.model.parameters()), strict=True):
        assert np.array(a).tobytes() == np.array(b).tobytes(), name
    assert hybrid().digest() == before
    batch = whole.batch(998, rows, windows[2:], PREFIX)
    assert whole.loss(whole.model, *batch).item() < 0.9 * whole.loss(mtp.Training(hybrid(), RECIPE).model, *batch).item()
    found, best = whole.probe([w[:PREFIX].tolist() for w in windows[:2]])
    assert best and found["block"] == 4 and len(found["reach"]) == 3


# the file


@pytest.fixture
def file(tmp_path):
    write_mtp(tmp_path / "mine.safetensors", model(), {"target_digest": hybrid().digest(), "depth": 3})
    return tmp_path / "mine.safetensors"


def rewrite(file, change, **metadata):
    tensors, found = mx.load(str(file), return_metadata=True)
    tensors = change({k: mx.array(np.array(v.astype(mx.float32))) for k, v in tensors.items()})
    mx.save_safetensors(str(file), tensors, metadata=found | metadata)


def test_a_drafter_comes_back_as_it_was_written(file):
    drafter = load_drafter(str(file), hybrid())
    assert drafter.name == "mine" and drafter.block_size == 4
    for (name, ours), (_, theirs) in zip(tree_flatten(drafter.model.parameters()), tree_flatten(model().parameters()), strict=True):
        assert np.array_equal(np.array(ours), np.array(theirs.astype(mx.bfloat16).astype(mx.float32))), name
    assert generate(hybrid(), PROMPT, drafter, k=4, max_tokens=9, ignore_eos=True).tokens == plain(hybrid())[:9]
    assert {n.split(".")[1] for n in mx.load(str(file))} == {"fc", "norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "layers"}


@pytest.mark.parametrize("change, metadata, message", [
    (lambda t: t | {"lm_head.weight": mx.zeros((VOCAB, 64))}, {}, "lm_head"),
    (lambda t: t | {"mtp.extra.weight": mx.zeros(4)}, {}, "extra"),
    (lambda t: {k: v for k, v in t.items() if "gate_proj" not in k}, {}, "gate_proj"),
    (lambda t: {k: v for k, v in t.items() if k != "mtp.norm.weight"}, {}, "norm"),
    (lambda t: t | {"mtp.fc.weight": mx.zeros((64, 64))}, {}, "fc.weight"),
    (lambda t: t | {"mtp.norm.weight": mx.full(64, float("inf"))}, {}, "not finite"),
    (lambda t: t, {"drafter": "{"}, "how deep"),
    (lambda t: t, {"drafter": "{}"}, "how deep"),
    (lambda t: t, {"drafter": json.dumps({"depth": 0})}, "depth 0"),
    (lambda t: t, {"drafter": json.dumps({"depth": 3, "target_digest": "0" * 64})}, "another target"),
])
def test_a_file_that_does_not_fit_is_refused(file, change, metadata, message):
    rewrite(file, change, **metadata)
    with pytest.raises(BadInput, match=message):
        load_drafter(str(file), hybrid())


def test_names_and_options(file):
    with pytest.raises(BadInput, match="no mtp drafter for target 'toy0'"):
        load_drafter("mtp", hybrid())
    with pytest.raises(BadInput, match="does not take"):
        load_drafter(str(file), hybrid(), order=2)
    with pytest.raises(BadInput, match="takes no mtp drafter"):
        load_drafter(str(file), replace(hybrid(), model=object()))
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(BadInput, match="mine.safetensors"):
        load_drafter(str(file), hybrid())
