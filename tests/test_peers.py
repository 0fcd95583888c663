"""Peers side by side on toys: mlx-lm's speculative decoding, its refusals, a small draft model, another runtime in a child process."""
import json
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
import synthetic
from mlx.utils import tree_flatten
from mlx_lm.generate import generate_step
from specdecode_nb import criteria, load_target, paths
from specdecode_nb.book import acts, needs, peers as tables
from specdecode_nb.decoder import generate
from specdecode_nb.dflash_files import write_dflash
from specdecode_nb.errors import BadInput
from specdecode_nb.protocols import peers, runtimes
from specdecode_nb.records import check_row, load_rows
from specdecode_nb.small import SmallDrafter, SmallModel, read_small, write_small
from specdecode_nb.train import small as training
from tapping import CONFIG, drawn, weights
from synthetic import SHORT
from toy import PROMPT, hybrid
from toy_checkpoints import VOCAB, WINDOW, write

N = 26
short_prompts = synthetic.short_prompts(peers)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("models") / "toy-llama", "llama")


@pytest.fixture(scope="module")
def target(folder):
    return load_target(str(folder))


@pytest.fixture(scope="module")
def plain(target):
    tokens = generate(target, PROMPT, max_tokens=N + 8, ignore_eos=True).tokens
    assert len(set(tokens)) > 8
    return tokens


def small(target, **changes):
    return drawn(SmallModel(target, 1, 48), **changes)


class Counting:
    """A model that counts its calls and their rows."""

    def __init__(self, model):
        self.model, self.layers, self.rows = model, model.layers, []

    def __call__(self, ids, cache):
        self.rows.append(ids.shape[1])
        return self.model(ids, cache=cache)


class Knowing:
    """A draft model that knows a text and is wrong about the tokens at ``errs``."""

    layers = [None]

    def __init__(self, ids, errs):
        self.ids, self.errs = ids, errs

    def __call__(self, ids, cache):
        start, rows = cache[0].offset, ids.shape[1]
        cache[0].update_and_fetch(mx.zeros((1, 1, rows, 1)), mx.zeros((1, 1, rows, 1)))
        after = [(self.ids[at] + (at in self.errs)) % VOCAB for at in range(start + 1, start + rows + 1)]
        return (mx.arange(VOCAB) == mx.array(after)[:, None]).astype(mx.float32)[None]


# --- mlx-lm's loop ---

@pytest.mark.parametrize("drafts", [1, 2, 3, 5])
@pytest.mark.parametrize("tokens", [1, 2, N])
def test_tokens_are_those_of_plain_decoding_and_counters_add_up(target, plain, drafts, tokens):
    errs = {len(PROMPT) + at for at in (0, 4, 5, 11, 17, 18)}
    counting, draft = Counting(target.model), Counting(Knowing(PROMPT + plain, errs))
    found, row = peers.decode_spec_mlx_lm(replace(target, model=counting), draft, PROMPT, tokens, drafts)
    assert found == plain[:tokens]
    accepted, offered, committed = (row[f"{what}_per_cycle"] for what in ("accepted", "offered", "committed"))
    assert sum(committed) == row["tokens"] == tokens and row["cycles"] == len(accepted) == len(offered)
    assert all(a <= o <= drafts for a, o in zip(accepted, offered)) and all(c == a + 1 for a, c in zip(accepted[:-1], committed))
    assert row["forwards"] == len(counting.rows) + len(draft.rows) and row["forward_tokens"] == sum(counting.rows) + sum(draft.rows)
    assert row["prefill_seconds"] + row["verify_seconds"] == pytest.approx(row["wall_seconds"]) and row["prefill_seconds"] > 0
    if tokens == N and drafts > 1:
        assert set(accepted) >= {0, 1, drafts}
        # the text that it knows says what it may accept: up to the next mistake, or as many as it drafts
        at = 0
        for a, o, c in zip(accepted, offered, committed):
            right = next((i for i in range(o) if len(PROMPT) + at + i in errs), o)
            assert a == right
            at += c


def test_cycles_by_hand():
    yes, no = True, False
    assert peers.by_cycle([yes, yes, no, no, yes, no, yes], 2) == ([2, 0, 1, 1], [2, 2, 2, 1], [3, 1, 2, 1])
    assert peers.by_cycle([], 2) == ([], [], []) and peers.by_cycle([no], 3) == ([0], [1], [1])


@pytest.mark.parametrize("drafts", [2, 3])
def test_a_small_model_drafts_for_both_loops(target, plain, drafts):
    """Both loops take the same model, so they accept the same; nothing it drafts changes a token."""
    model = small(target)
    found, row = peers.decode_spec_mlx_lm(target, model, PROMPT, N, drafts)
    own = generate(target, PROMPT, SmallDrafter(model), k=drafts + 1, max_tokens=N, ignore_eos=True)
    assert found == own.tokens == plain[:N] and row["accepted_per_cycle"] == own.stats.accepted_per_cycle


# --- where it does not decode ---

def test_a_recurrent_state_is_refused_before_any_forward():
    class Never:
        layers = [None]

        def __call__(self, *_, **__):
            raise AssertionError("the model was called")

    told = peers.refusal(hybrid(), Never())
    assert "requires a trimmable prompt cache" in told and "ArraysCache" in told
    arms, rows, files, ours = peers.arms_of(hybrid(), 4)
    assert list(arms) == ["ar", "ar_mlx_lm"] and not files and not ours
    assert rows == [check_row(r, "test") for r in rows] and rows[0]["outcome"] == "refused" and rows[0]["why"] == told and rows[0]["version"]


def test_beyond_a_sliding_window_it_is_silently_wrong(tmp_path):
    """mlx-lm asks once, while its rotating cache is still short, whether it can be trimmed; past the window trimming does nothing."""
    target = load_target(str(write(tmp_path / "sliding", "llama_sliding")))
    caches = peers.own_caches(target.model)
    known = [int(t) for t, _ in generate_step(mx.array(PROMPT), target.model, max_tokens=N, prompt_cache=peers.own_caches(target.model))]
    assert generate(target, PROMPT, max_tokens=N, ignore_eos=True).tokens == known
    assert caches[0].is_trimmable() and caches[0].max_size == WINDOW
    found, _ = peers.decode_spec_mlx_lm(target, small(target), PROMPT, N, 3)
    assert peers.refusal(target, small(target)) == "" and found != known


def test_a_target_without_a_draft_model_is_said_to_have_none(target):
    arms, (row,), _, _ = peers.arms_of(target, 4)
    assert not any(a.startswith("spec") for a in arms) and row["outcome"] == "absent" and "toy-llama" in row["why"]


@pytest.mark.parametrize("outcome, why", [("ran", "it did not"), ("refused", ""), ("absent", "")])
def test_a_peer_row_has_a_reason_if_it_did_not_run(outcome, why):
    with pytest.raises(BadInput, match="reason"):
        check_row({"kind": "peer", "peer": "p", "version": None, "call": "c", "outcome": outcome, "why": why}, "test")


# --- the small draft model ---

def test_a_small_model_is_read_as_it_was_written_and_holds_no_embedding(target, tmp_path):
    model, path = small(target), tmp_path / "small.safetensors"
    write_small(path, model, {"target_digest": target.digest(), "step": 3})
    read, metadata = read_small(path, target)
    assert metadata["step"] == 3 and not any("embed" in k or "head" in k for k, _ in tree_flatten(read.parameters()))
    wanted = dict(tree_flatten(model.parameters()))
    assert all(np.array_equal(np.array(v), np.array(wanted[k].astype(mx.bfloat16).astype(mx.float32))) for k, v in tree_flatten(read.parameters()))
    assert read._borrowed[0] is target.model.model.embed_tokens
    write_small(path, model, {"target_digest": "0" * 64})
    with pytest.raises(BadInput, match="another target"):
        read_small(path, target)
    mx.save_safetensors(str(path), {"mtp.norm.weight": mx.zeros(4)})
    with pytest.raises(BadInput, match="no small draft model"):
        read_small(path, target)
    with pytest.raises(BadInput, match="Llama"):
        SmallModel(hybrid(), 1, 48)


def test_a_draft_is_the_models_own_continuation_whatever_came_before(target, plain):
    """One drafter over histories that grow, go back and change; and after a draft that was interrupted."""
    model = small(target)
    drafter = SmallDrafter(model)

    def greedy(ids, n):
        ids = list(ids)
        for _ in range(n):
            ids.append(mx.argmax(model(mx.array([ids]))[0, -1]).item())
        return ids[-n:]

    for history in (PROMPT, PROMPT + plain[:3], PROMPT + plain[:2], [7, *PROMPT[1:]], PROMPT + plain[:9], PROMPT[:1]):
        assert drafter.draft([], history, 4, 1).tokens == greedy(history, 3)
    whole, model.layers[0].mlp = model.layers[0].mlp, None  # fails after the layer's cache has grown
    with pytest.raises(TypeError):
        drafter.draft([], PROMPT + plain[:9], 4, 1)
    model.layers[0].mlp = whole
    assert drafter.draft([], PROMPT + plain[:8], 4, 1).tokens == greedy(PROMPT + plain[:8], 3)


def test_training_learns_the_targets_tokens_and_scores_the_chosen_columns_alone(target, plain):
    recipe = training.Recipe(layers=1, mlp=48, negatives=40, frequent=30, windows_a_step=2, lr=1e-2, warmup=2, steps=40, seed=3)
    windows = np.array([PROMPT + plain[: N - 2 * i] + plain[: 2 * i] for i in range(3)], dtype=np.int32)
    before, run = target.digest(), training.Training(target, recipe)
    ids, prefix, labels, head = run.batch(0, None, windows, len(PROMPT))
    assert labels.shape == (2, N) and head.shape[0] < VOCAB
    table = np.array(target.model.model.embed_tokens.weight)
    assert np.array_equal(np.array(head)[np.array(labels)], table[np.array(ids)[:, prefix:]])
    whole = training.next_token_loss(run.model, ids, prefix, ids[:, prefix:], None)
    assert whole.item() >= training.next_token_loss(run.model, ids, prefix, labels, head).item()  # fewer rivals
    run.run(None, windows, 40, len(PROMPT), say=lambda *_, **__: None)
    assert run.log["loss"][-1][1] < 0.5 * run.log["loss"][0][1] and target.digest() == before
    assert np.mean(generate(target, PROMPT, run.drafter(run.model), k=4, max_tokens=N, ignore_eos=True).stats.accepted_per_cycle) > 1


# --- other runtimes ---

FAKE = {"dflash_mlx/__init__.py": "", "dflash_mlx/runtime/__init__.py": '''
from types import SimpleNamespace
import mlx.core as mx
from mlx_lm.generate import generate_step
def stream_dflash_generate(target_model, prompt_tokens_override, max_new_tokens, block_tokens, **options):
    out = [int(t) for t, _ in generate_step(mx.array(prompt_tokens_override), target_model, max_tokens=max_new_tokens)]
    yield "progress"
    yield SimpleNamespace(generated_token_ids=out, acceptance_history=[1] * (len(out) // 2) + [0] * (len(out) % 2),
                          phase_timings_us={"prefill": 1.0, "draft": 1.0, "replay": 0.0, "commit": 0.0})
''', "dflash_mlx/runtime/bundle.py": '''
from types import SimpleNamespace
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load
class Ops:
    def make_cache(self, model, enable_speculative_linear_cache):
        return make_prompt_cache(model)
    def verify_block(self, target_model, verify_ids, target_cache, capture_layer_ids):
        target_model(verify_ids, cache=target_cache)
    def arm_rollback(self, cache, prefix_len):
        pass
    def restore_after_acceptance(self, cache, target_len, acceptance_length, drafted_tokens):
        for c in cache:
            c.trim(c.offset - target_len)
        if acceptance_length == 1:
            cache[0].keys = 1.5 * cache[0].keys
def load_runtime_bundle(model_ref, draft_ref, verify_config):
    model, tokenizer = load(model_ref)
    return SimpleNamespace(target_model=model, tokenizer=tokenizer, draft_model=model, draft_backend=None, target_ops=Ops())
''', "dflash_mlx/runtime/context.py": '''
from types import SimpleNamespace
def build_offline_runtime_context(**options):
    return SimpleNamespace(verify=options)
''', "dflash/__init__.py": "", "dflash/model_mlx.py": "raise NotImplementedError('this architecture is not for us')"}
"""Packages that do as little as the protocol needs: one decodes plainly, says that it drafted, and undoes wrongly where two rows are kept; one refuses."""


def test_cycles_of_the_other_runtimes_by_hand():
    assert runtimes.by_anchor((0, 2, 1), 6, 4) == ([0, 2, 1], [3, 3, 1], [1, 3, 2])
    assert runtimes.by_anchor((), 0, 4) == ([], [], [])
    # of 8 tokens the first is the prefill's; 1, 4 and 2 follow, the last two where a block of three rows was left
    assert runtimes.by_emitted([1, 4, 2], 8, 4) == ([0, 3, 1], [3, 3, 2], [2, 4, 2])
    assert runtimes.by_emitted([], 1, 4) == ([], [], [])


def test_they_get_the_key_that_they_will_not_load_without(tmp_path):
    write_dflash(tmp_path / "drafter", weights(), {})
    (tmp_path / "scratch").mkdir()
    made = runtimes.stated(tmp_path / "drafter", 512, tmp_path / "scratch")
    config = json.loads((made / "config.json").read_text())
    assert config.pop("max_position_embeddings") == 512 and config == json.loads((tmp_path / "drafter" / "config.json").read_text())
    assert (made / "model.safetensors").read_bytes() == (tmp_path / "drafter" / "model.safetensors").read_bytes()


@pytest.fixture
def repository(tmp_path, monkeypatch, target, folder):
    """A repository of its own whose only target is the toy Llama, with a small draft model and a block drafter."""
    models, rules = tmp_path / "data" / "models" / "toy-llama", paths.data() / "criteria" / "dflash_peers.json"
    (tmp_path / "data" / "criteria").mkdir(parents=True)
    (tmp_path / "data" / "criteria" / "dflash_peers.json").write_bytes(rules.read_bytes())
    write_small(models / "small.safetensors", small(target), {"target_digest": target.digest()})
    shape = replace(CONFIG, vocab_size=VOCAB, num_target_layers=2, target_layer_ids=(0, 1), head_dim=16)
    write_dflash(models / "dflash", weights(shape), {"target_digest": target.digest()})
    monkeypatch.setenv("SPECDECODE_ROOT", str(tmp_path))
    return tmp_path


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """The packages of FAKE, found by this process and its children."""
    for name, source in FAKE.items():
        path = tmp_path / "packages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))


PARAMS = {"dtype": "float32", "block": 4, "tokens": 6, "repeats": 1, "prompts": 2, "quick": True}
ARMS = ["ar", "ar_mlx_lm", "spec_mlx_lm_d2", "small_k3", "spec_mlx_lm_d3", "small_k4", "dflash_b4"]


def killed(params, journal, at):
    def stop(done, total, label):
        if done == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        peers.measure(params, journal, stop, resume=journal.exists())
    return [row for row in map(json.loads, journal.read_text().splitlines()[1:]) if "kind" in row]  # a resume also notes the machine


def test_a_killed_run_goes_on_and_every_peer_is_told(repository, folder, packages):
    """Killed in the interleave and while a child decodes."""
    params, journal, seen = PARAMS | {"target": str(folder)}, repository / "dflash_peers.journal", []
    first = killed(params, journal, 4)
    second = killed(params, journal, 17)
    file = load_rows(peers.measure(params, journal, lambda *a: seen.append(a), resume=True))
    assert len(first) == 4 and second[:4] == first and file.rows[:17] == second and len(file.rows) == 2 * (len(ARMS) + 2) + 3 + 2 * 4 == seen[-1][0]
    assert [(r["section"], r["arm"]) for r in file.of("decode")] == [("peers", a) for a in ARMS] * 2 + [("dflash_mlx", a) for a in ("ar", "dflash_mlx")] * 2
    assert all(r["identical_to_ar"] and r["tokens"] == 6 for r in file.of("decode"))
    assert [(r["peer"], r["outcome"]) for r in file.of("peer")] == [("mlx-lm", "ran"), ("dflash_mlx", "ran"), ("z_lab", "refused")]
    assert file.of("peer")[2]["why"].endswith("NotImplementedError: this architecture is not for us")
    errors = {(r["prompt_id"], r["kept"]): r["relative_error"] for r in file.of("peer_state")}
    assert len(errors) == 8 and all(e == pytest.approx(0.5) if kept == 2 else e < 1e-5 for (_, kept), e in errors.items())
    assert tables.states(file)["runtime of dflash-mlx"].tolist() == pytest.approx([0, 0.5, 0, 0], abs=1e-5)
    assert needs.check(file) is file and file.config["criteria"] == criteria.load("dflash_peers").rules and set(file.config["drafters"]) == {"small", "dflash"}
    judged = {o.criterion.id: o for o in tables.outcomes(file)}
    assert judged["mlx-lm-identity"].value == judged["dflash-mlx-identity"].value == 0 and judged["mlx-lm-identity"].n == 4 and judged["same-model"].value > 0
    assert judged["dflash-mlx-states"].word == criteria.FAILS and judged["z-lab-states"].value is None
    shown = tables.speeds(file)
    assert len(shown) == len(ARMS) + 1 and shown["unlike plain"].sum() == 0 and tables.told([file])["outcome"].tolist() == ["ran", "ran", "refused"]
    assert tables.closing([file, file]).columns.tolist() == ["hypothesis", "toy-llama"]
    # an arm that is not the target's own has no speed
    broken = [r | {"identical_to_ar": False, "first_divergence": 2, "divergence_gap_ulps": 40.0} if r.get("arm") == "spec_mlx_lm_d3" else r for r in file.rows]
    shown = tables.speeds(replace(file, rows=broken)).set_index("arm")
    assert shown.loc["mlx-lm, 3 drafts"][["tok/s", "x plain"]].isna().all() and shown.loc["mlx-lm, 3 drafts", "beyond a tie"] == 2 and shown["tok/s"].notna().sum() == len(ARMS)


def test_what_is_lacking_is_told_once(repository, folder, monkeypatch):
    setup = {"target": str(folder), "name": "nobody", "dtype": "float32", "block": 4}
    monkeypatch.setattr(peers, "find_spec", lambda name: object())
    (row,) = peers.runtime_rows("z_lab", setup, SHORT, 4, 1, [])
    assert check_row(row, "test")["outcome"] == "absent" and "no block drafter for nobody" in row["why"]
    assert list(peers.runtime_rows("z_lab", setup, SHORT, 4, 1, [row])) == []
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    (other,) = peers.runtime_rows("dflash_mlx", setup | {"name": "toy-llama"}, SHORT, 4, 1, [row])
    assert other["outcome"] == "absent" and "dflash-mlx is not installed" in other["why"]


def test_the_part_of_the_act():
    act = acts.get("dflash")
    assert act.measuring(act.resolve({"part": "peers"})) == ("dflash_peers", "specdecode_nb.protocols.peers:measure")
