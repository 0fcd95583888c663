"""The rest of the DFlash Act on a toy target: sections, variants of target and machine, resume; metrics on rows written by hand."""
import json
import os
import subprocess
import sys
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten, tree_unflatten
from specdecode_nb import criteria, load_drafter, load_target
from specdecode_nb.book import regimes
from specdecode_nb.decoder import Session, generate
from specdecode_nb.dflash_files import write_dflash
from specdecode_nb.errors import BadInput, RunFailed
from specdecode_nb.protocols import common, dflash_rest, machine
from specdecode_nb.records import RowFile, check_row, load_rows
from specdecode_nb.targets import quantised
from specdecode_nb.train import modified
from tapping import CONFIG, make, scripted, weights
from test_loading import VOCAB, made  # noqa: F401
from toy import PROMPT, consistent, hybrid, plain, uno

PROMPTS = [{"id": "prose-1", "category": "prose", "text": "Step 1."}, {"id": "code-2", "category": "code", "text": "Day 2, Monday."}]
PARAMS = {"tokens": 6, "dtype": "float32", "block": 4, "contexts": [24, 16], "lengths": [5, 9], "rest_prompts": 2, "quick": True}


# --- quantised targets ---

@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("kind", ["dflash", "mtp"])
def test_every_accepted_count_on_a_quantised_target(kind, bits):
    target = quantised(hybrid(), bits, 32)
    known = plain(target)
    session = Session(target)
    found = generate(target, PROMPT, scripted(kind, target, known=known), k=6, max_tokens=24, ignore_eos=True, session=session)
    assert found.tokens == known[:24] and set(found.stats.accepted_per_cycle) > {0, 1, 2} and consistent(session)


@pytest.mark.parametrize("bits", [8, 4])
def test_drafters_decode_a_quantised_target_as_it_decodes_alone(bits):
    target = quantised(hybrid(), bits, 32)
    known = plain(target)
    assert known != plain(hybrid())
    for drafter, scheme in ((make("dflash", target), "per_token_states"), (make("mtp", target), "replay"), (uno(target), "tape")):
        assert generate(target, PROMPT, drafter, k=5, max_tokens=12, ignore_eos=True, scheme=scheme).tokens == known[:12]


@pytest.mark.parametrize("bits", [8, 4])
def test_the_embedded_target_quantised(bits):
    whole = load_target("tiny-hybrid")
    target = quantised(whole, bits)
    prompt = target.encode("Day 2, Monday.")
    drafter = load_drafter("uno", target, foreign=True)
    wanted = generate(target, prompt, max_tokens=12, ignore_eos=True).tokens
    assert generate(target, prompt, drafter, k=4, max_tokens=12, ignore_eos=True).tokens == wanted
    sizes = dict(tree_flatten(target.model.parameters()))
    assert sizes["language_model.model.embed_tokens.weight"].dtype == mx.uint32 and f"with {bits}-bit matrices" in target.card()
    assert all(name.endswith(("norm.weight", "conv1d.weight", "A_log", "dt_bias", "scales", "biases")) or v.dtype == mx.uint32 for name, v in sizes.items())
    assert target.parameters() == whole.parameters()


def test_a_quantised_copy_shares_nothing_and_leaves_the_original():
    target = hybrid()
    before, kinds = target.digest(), [type(layer.mlp.gate_proj) for layer in target.model.layers]
    copy = quantised(target, 4, 32)
    assert not {id(v) for _, v in tree_flatten(target.model.parameters())} & {id(v) for _, v in tree_flatten(copy.model.parameters())}
    assert not {id(m) for m in target.model.modules()} & {id(m) for m in copy.model.modules()}
    assert target.digest() == before != copy.digest() and [type(layer.mlp.gate_proj) for layer in target.model.layers] == kinds


def test_what_cannot_be_quantised():
    for target, bits, group, words in ((hybrid(), 3, 32, "4 or 8 bits"), (hybrid(), 4, 48, "groups of 32"), (hybrid(), 4, 128, "do not divide"),
                                       (quantised(hybrid(), 8, 32), 4, 32, "already")):
        with pytest.raises(BadInput, match=words):
            quantised(target, bits, group)


# --- a target trained further ---

def test_a_few_steps_make_other_targets_and_leave_the_first():
    target = hybrid()
    before = target.digest()
    found = list(modified.tuned(target, "a sentence of some length, over and over. " * 8, (0, 1, 3)))
    assert [steps for steps, _, _ in found] == [0, 1, 3] and found[0][1] == 0 < found[1][1] < found[2][1]
    assert found[0][2].digest() == before == target.digest() and len({t.digest() for _, _, t in found}) == 3
    again = list(modified.tuned(target, "a sentence of some length, over and over. " * 8, (3,)))
    assert again[0][1] == pytest.approx(found[2][1], rel=1e-4)
    last = found[2][2]
    assert generate(last, PROMPT, make("dflash", last), k=5, max_tokens=12, ignore_eos=True).tokens == plain(last)[:12]
    with pytest.raises(BadInput, match="too few"):
        next(modified.tuned(target, "short", (0,)))


def test_the_change_is_relative_to_all_weights():
    target = hybrid()
    twice = replace(target, model=modified.own_arrays(modified.share(target.model)))
    twice.model.update(tree_unflatten([(k, 1.5 * v) for k, v in tree_flatten(twice.model.parameters())]))
    assert modified.distance(target.model, twice.model) == pytest.approx(0.5)


# --- children ---

def gone(process) -> bool:
    return process.returncode is not None


def test_competitors_run_inside_the_block_only():
    with pytest.raises(KeyboardInterrupt), machine.busy(2) as spinning:
        assert all(p.poll() is None for p in spinning)
        raise KeyboardInterrupt
    assert len(spinning) == 2 and all(gone(p) for p in spinning)


def test_a_competitor_ends_with_a_parent_that_was_killed():
    """It holds the pipe of its parent, so that the pipe's end is its own."""
    code = "import os\nfrom specdecode_nb.protocols import machine\nwith machine.busy(1):\n    os.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, timeout=60).returncode == -9


CHILD = """
import sys, time
from specdecode_nb.protocols import machine
def prepare(setup):
    def answer(request):
        if request["fifo"] is None:
            raise ValueError("too\\nbad")
        with open(request["fifo"], "w") as held:
            yield {"held": True}
            until = time.time() + 60
            while time.time() < until: pass
            held.write("outlived its parent")
    return answer
machine.main(prepare)
"""


@pytest.fixture
def child_module(tmp_path, monkeypatch):
    (tmp_path / "odd_child.py").write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH")))))


def test_a_child_that_computes_ends_with_a_parent_that_was_killed(child_module, tmp_path):
    """It holds a pipe open, so that the pipe's end is its own."""
    os.mkfifo(tmp_path / "held")
    code = ("import os\nfrom specdecode_nb.protocols import machine\nwith machine.worker({}, 0, 'odd_child') as w:\n    list(w.answer())\n"
            f"    next(w.ask({{'fifo': {str(tmp_path / 'held')!r}}}))\n    os.kill(os.getpid(), 9)")
    with subprocess.Popen([sys.executable, "-c", code]) as parent, open(tmp_path / "held") as held:
        assert parent.wait() == -9 and held.read() == ""


def test_what_breaks_in_a_child_is_one_sentence(child_module):
    with pytest.raises(RunFailed, match=r"^A measuring process ended with status 1: [^\n]*bad$"), machine.worker({}, 0, "odd_child") as w:
        list(w.answer())
        list(w.ask({"fifo": None}))


def test_a_child_that_fails_says_why():
    with pytest.raises(BadInput, match="^There is no target 'no-such-target'"), machine.worker({"target": "no-such-target", "dtype": "float32", "drafter": "dflash", "block": 4}, 0) as w:
        list(w.answer())
    assert gone(w.process)


# --- the protocol ---

@pytest.fixture(scope="module")
def run(made, tmp_path_factory):  # noqa: F811
    """A run that was interrupted while children decoded, then resumed: (rows of the first, row file, children, progress)."""
    folder = tmp_path_factory.mktemp("rest")
    write_dflash(folder / "drafter", weights(replace(CONFIG, vocab_size=VOCAB, draft_window_size=8)), {"target_digest": load_target(str(made)).digest()})
    params = PARAMS | {"target": str(made), "drafter": str(folder / "drafter")}
    journal, seen, children = folder / "dflash_rest.journal", [], []

    def stop(done, total, label):
        if done == total - 5:
            raise KeyboardInterrupt

    class Watched(subprocess.Popen):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            children.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dflash_rest, "prompt_suite", lambda target, count: PROMPTS[:count])
        patch.setattr(dflash_rest, "TUNING_STEPS", (0, 2))
        patch.setattr(machine.subprocess, "Popen", Watched)
        patch.setattr(machine, "cores", lambda: 1)
        with pytest.raises(KeyboardInterrupt):
            dflash_rest.measure(params, journal, stop)
        first = [json.loads(line) for line in journal.read_text().splitlines()[1:]]
        assert len(children) >= 3 and all(gone(p) for p in children)
        file = load_rows(dflash_rest.measure(params, journal, lambda *a: seen.append(a), resume=True))
        with pytest.raises(BadInput, match="2 to 16"):
            dflash_rest.measure(params | {"block": 17}, folder / "other.journal")
        with pytest.raises(BadInput, match="ngram"):
            dflash_rest.measure(params | {"drafter": "ngram"}, folder / "other.journal")
    return first, file, children, seen


def test_an_interrupted_run_goes_on_and_leaves_no_child(run):
    first, file, children, seen = run
    assert file.rows[: len(first)] == first and seen[0][0] == len(first) and seen[-1][0] == seen[-1][1] == len(file.rows)
    assert all(gone(p) for p in children)


def test_sections_have_their_variants_interleaved_on_every_prompt(run):
    _, file, _, _ = run
    rows = lambda name, *fields: [tuple(r[f] for f in fields) for r in regimes.section(file, name)]  # noqa: E731
    arms = ("ar", "dflash_b4")
    names = [p["id"] for p in PROMPTS]
    assert rows("precision", "prompt_id", "precision", "arm") == [(p, v, a) for p in names for v in ("float32", "8bit", "4bit") for a in arms]
    assert rows("context", "prompt_tokens", "tokens", "arm") == [(n, 6, a) for n in (16, 24) for a in (*arms, "dflash_b4_all")]
    assert rows("length", "tokens", "prompt_id", "arm") == [(n, p, a) for n in (5, 9) for p in names for a in arms]
    assert rows("modified", "prompt_id", "tuning_steps", "arm") == [(p, s, a) for p in names for s in (0, 2) for a in arms]
    # the prompt at which the run was interrupted is measured as a whole again
    assert rows("machine", "prompt_id", "condition", "arm") == [(p, c, a) for p in names for c in machine.CONDITIONS for a in arms]
    assert all((r["change"] > 0) == (r["tuning_steps"] > 0) for r in regimes.section(file, "modified"))
    usual = os.nice(0)
    assert all(r["niceness"] == min(19, usual + machine.NICE * (r["condition"] == "low_priority")) for r in regimes.section(file, "machine"))
    assert [(r["prompt_id"], r["precision"]) for r in file.of("text_effect")] == [(p, v) for p in names for v in ("float32", "8bit", "4bit")]
    assert file.config["criteria"] == criteria.load("dflash_rest").rules and file.config["tokens"] == 6


def test_every_row_is_plain_decoding_of_its_own_variant(run):
    assert all(r["identical_to_ar"] for r in run[1].of("decode"))


def test_full_precision_agrees_with_itself(run):
    own = [r for r in run[1].of("text_effect") if r["precision"] == "float32"]
    assert [(r["agree_with_full"], r["argmax_agreement"]) for r in own] == [(6, 1.0)] * 2
    lower = [r for r in run[1].of("text_effect") if r["precision"] == "4bit"]
    assert any(r["argmax_agreement"] < 1 for r in lower) and all(abs(a["nats_per_token"] - b["nats_per_token"]) > 0 for a, b in zip(own, lower))


def test_the_text_of_a_quantised_target_leaves_full_precision_where_its_own_decoding_does(run, made):  # noqa: F811
    full = load_target(str(made))
    lower = quantised(full, 4)
    for p in PROMPTS:
        texts = [generate(t, p["text"], max_tokens=6, ignore_eos=True).tokens for t in (full, lower)]
        same = next((i for i, (a, b) in enumerate(zip(*texts)) if a != b), 6)
        assert [r["agree_with_full"] for r in run[1].of("text_effect") if r["prompt_id"] == p["id"] and r["precision"] == "4bit"] == [same]


def test_nats_by_hand():
    target, ids = hybrid(), PROMPT
    logits = np.array(target.model(mx.array([ids]))[0], dtype=np.float64)
    p = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    assert dflash_rest.nats(target, ids) == pytest.approx(-np.mean([np.log(p[i, t]) for i, t in enumerate(ids[1:])]), rel=1e-5)


def test_a_long_prompt_is_forced_in_pieces_with_the_same_logits(monkeypatch):
    target, tokens = hybrid(), plain(hybrid())[:9]
    whole = common.teacher_forced(target, PROMPT, tokens)
    monkeypatch.setattr(common, "FORCED_ROWS", 8)
    assert whole.shape == (9, 256) and common.teacher_forced(target, PROMPT, tokens) == pytest.approx(whole, abs=1e-4)


def test_a_drafter_for_another_target_only_on_purpose(made, tmp_path):  # noqa: F811
    target = load_target(str(made))
    write_dflash(tmp_path / "drafter", weights(replace(CONFIG, vocab_size=VOCAB)), {"target_digest": target.digest()})
    assert "foreign" not in load_drafter(str(tmp_path / "drafter"), target).metadata
    other = quantised(target, 8, 32)
    with pytest.raises(BadInput, match="foreign=True"):
        load_drafter(str(tmp_path / "drafter"), other)
    assert load_drafter(str(tmp_path / "drafter"), other, foreign=True).metadata["foreign"] is True
    assert "foreign" not in load_drafter(str(tmp_path / "drafter"), target, foreign=True).metadata


def test_every_criterion_asks_for_a_metric_that_rows_give(run):
    """One context prompt gives no interval, but its numbers are there."""
    rules = criteria.load("dflash_rest")
    wanted, given = {c.rule.metric for c in rules}, regimes.metrics(run[1])
    assert wanted <= given.keys()
    words = {o.criterion.id: o.word for o in regimes.outcomes(rules, run[1])}
    assert words["identity"] == words["text-drafted"] == criteria.HOLDS and criteria.NO_ROWS not in words.values()
    with pytest.raises(BadInput, match="rules"):
        regimes.outcomes(rules, replace(run[1], config=run[1].config | {"criteria": "0" * 64}))


def test_tables_are_drawn_from_measured_rows(run):
    file = run[1]
    assert regimes.precision(file)["precision"].tolist() == ["float32", "8bit", "4bit"] == regimes.texts(file)["precision"].tolist()
    assert regimes.contexts(file)["prompt"].tolist() == [16, 24] and regimes.lengths(file)["new tokens"].tolist() == [5, 9]
    assert regimes.modified(file)["steps"].tolist() == [0, 2] and regimes.machine(file)["condition"].tolist() == list(machine.CONDITIONS)
    assert regimes.machine(file)["factor / quiet"][0] == 1.0
    both, whole = regimes.varied(file), regimes.contexts(file, whole=True)
    assert both[["varied", "prompt tokens"]].values.tolist()[:4] == [[v, n] for v in ("prompt", "prompt, no window") for n in (16, 24)]
    assert both["new tokens"].tolist()[4:] == [5, 9] and whole["plain"].tolist() == regimes.contexts(file)["plain"].tolist()
    parts = [regimes.contexts(file), whole, regimes.lengths(file)]
    assert both["factor"].tolist() == [f for part in parts for f in part["factor"]] and whole["drafted"].tolist() != parts[0]["drafted"].tolist()
    assert both["prefill"].notna().tolist() == [True] * 4 + [False] * 2 == both["loop fraction"].isna().tolist()
    effects = regimes.text_effects(file)
    assert effects["plain"].tolist() == regimes.precision(file)["plain"].tolist()
    assert effects["held-out text"].tolist() == regimes.texts(file)["held-out text"].tolist()


# --- metrics from rows written by hand ---

def row(section, arm, seconds, prompt="a-1", tokens=10, accepted=(), **fields):
    """``seconds`` after a prefill of one second; blocks of 5."""
    return {"kind": "decode", "section": section, "arm": arm, "prompt_id": prompt, "category": "a", "repeat": 0, "prompt_tokens": 4, "tokens": tokens,
            "wall_seconds": 1.0 + seconds, "prefill_seconds": 1.0, "cycles": len(accepted), "accepted_per_cycle": list(accepted), "forwards": 9,
            "offered_per_cycle": [4] * len(accepted), "ar_looped_fraction": 0.0, "identical_to_ar": True, "first_divergence": None,
            "divergence_gap_ulps": None, **fields}


def pair(section, slow, fast, accepted=(4, 0), **fields):
    return [row(section, "ar", slow, **fields), row(section, "dflash_b5", fast, accepted=accepted, **fields)]


def of(rows):
    return RowFile("dflash_rest", "t", {}, {}, rows, "rows.json", "0")


def test_factors_and_their_interaction():
    """Wall seconds plain/drafted: 8/4 at full precision, 4/1 at four bits, on three equal prompts."""
    file = of([r for p in ("a-1", "b-1", "c-1") for name, slow, fast, a in (("float32", 7, 3, (4, 0)), ("4bit", 3, 0, (1, 0))) for r in
               pair("precision", slow, fast, accepted=a, prompt=p, precision=name)])
    found = regimes.of_precision(file)
    assert found["drafting_full"] == (2.0, 2.0, 2.0, 3) and found["drafting_4bit"][0] == 4.0 and found["quantising_4bit"][0] == 2.0
    assert found["combined_4bit"][0] == 8.0 and found["interaction_4bit"][:3] == (2.0, 2.0, 2.0) and found["interaction_4bit_has_one"][0] == 0
    assert found["acceptance_4bit_less_full"][0] == pytest.approx(1 / 8 - 4 / 8) and found["drafted_unlike_plain"] == (0, None, None, 6)
    table = regimes.precision(file).set_index("precision")
    assert table.loc["4bit", ["drafting factor", "precision factor", "combined"]].tolist() == [4.0, 2.0, 8.0]


def test_context_metrics_are_of_decoding_and_pair_a_text_with_itself():
    file = of([r for which, slower in ((0, 1.0), (1, 2.0), (2, 4.0)) for n, slow, fast in ((10, 4, 1), (40, 4, 2)) for r in
               pair("context", slow * slower, fast * slower, accepted=(n // 10, 0), prompt=f"c-{n}-{which}", prompt_tokens=n, which=which)])
    found = regimes.of_contexts(file)
    assert found["context_ratio"] == (0.5, 0.5, 0.5, 3) and found["context_longest"][0] == 2.0 and found["prefill_longest"][0] == 1.0
    assert found["context_acceptance"][0] == pytest.approx(4 / 8 - 1 / 8) and "whole_longest" not in found
    whole = [r | {"arm": r["arm"] + "_all", "wall_seconds": 9.0, "prefill_seconds": 1.0, "accepted_per_cycle": [0, 0]} for r in file.rows if r["arm"] != "ar"]
    both = regimes.of_contexts(of(file.rows + whole))
    assert {name: both[name] for name in found} == found and both["whole_acceptance"][0] == pytest.approx(-4 / 8)
    assert both["whole_longest"][0] < found["context_longest"][0]


def test_lengths_modified_targets_and_machines():
    file = of(pair("length", 7, 1, tokens=10) + pair("length", 7, 3, tokens=40, accepted=(2, 0))
              + pair("modified", 7, 1, tuning_steps=0, change=0.0) + pair("modified", 7, 7, tuning_steps=9, change=0.2, accepted=(0, 0))
              + pair("machine", 7, 3, condition="quiet") + pair("machine", 15, 7, condition="low_priority") + pair("machine", 7, 7, condition="busy_core"))
    found = regimes.of_lengths(file) | regimes.of_modified(file) | regimes.of_machine(file)
    assert {name: f[0] for name, f in found.items()} == pytest.approx(
        {"length_ratio": 0.5, "length_acceptance": -0.25, "length_loops": 0.0, "modified_acceptance": -0.5, "modified_ratio": 0.25, "modified_factor": 1.0,
         "low_priority_plain": 0.5, "low_priority_factor": 1.0, "busy_core_plain": 1.0, "busy_core_factor": 0.5})


def test_text_metrics_weigh_held_out_tokens():
    def effect(precision, prompt, agreement, held, nats):
        return {"kind": "text_effect", "precision": precision, "prompt_id": prompt, "category": "a", "tokens": 8, "agree_with_full": 3, "argmax_agreement": agreement,
                "held_out_tokens": held, "nats_per_token": nats}

    rows = [effect("float32", "a-1", 1.0, 11, 1.0), effect("4bit", "a-1", 0.5, 11, 2.0), effect("float32", "b-1", 1.0, 31, 1.0), effect("4bit", "b-1", 1.0, 31, 1.0)]
    found = regimes.of_text(of([check_row(r, "x") for r in rows]))
    assert found["agreement_4bit"][0] == 0.75 and found["nats_4bit_less_full"][0] == pytest.approx(0.25)
    with pytest.raises(BadInput, match="9 of 8 tokens agree"):
        check_row(rows[0] | {"agree_with_full": 9}, "x")


def test_a_child_may_run_another_module_with_a_blas_of_its_own():
    """That of Act V: rows of the toy on the grid, on the library that it was told."""
    from specdecode_nb.protocols import identity

    with machine.worker({"target": "tiny-hybrid", "widths": [2]}, 0, identity.__name__, SPECDECODE_BLAS="openblas") as w:
        assert list(w.answer()) == []
        rows = list(w.ask({"section": "exact", "model": "toy", "dtype": "float32", "prompt": {"id": "toy-0"}, "tokens": 9}))
    assert {r["blas"] for r in rows} == {"OpenBLAS"} and all(r["token_mismatches"] == r["state_mismatches"] == 0 for r in rows[1:]) and len(rows) == 11
