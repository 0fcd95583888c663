"""The training Acts measured in small on a toy target, killed and gone on with; their numbers on rows written by hand."""
from contextlib import contextmanager
from dataclasses import asdict, replace
import json
import shutil

import numpy as np
import pytest
import synthetic
from specdecode_nb import criteria, statistics
from specdecode_nb.book import acts, needs, overview, replicates, trained
from specdecode_nb.errors import BadInput
from specdecode_nb.lora import adapter_weights
from specdecode_nb.protocols import act4u, act4u3, act4u4, act4u5, training
from specdecode_nb.records import RowFile, load_rows
from specdecode_nb.streams import EVAL_NOISE, TRAIN_NOISE
from specdecode_nb.targets import mx
from specdecode_nb.train import corpus, uno
from toy import VOCAB, adapter, hybrid

TINY = {"steps": 4, "draft_rows": 12, "windows": 3, "tokens": 8, "prompts": 3, "rate": 5e-3}
MODULES = {"act4u": act4u, "act4u3": act4u3, "act4u4": act4u4, "act4u5": act4u5}
short_prompts = synthetic.short_prompts(training)


def params(act, **more):
    found = acts.get(act).resolve({"quick": True}) | TINY
    return found | {k: 2 for k in ("start_steps", "short_steps", "launches", "seeds") if k in found} | more


@contextmanager
def inside(setup, nice, module, **environ):
    """Answers in this process what a child would."""
    answer = act4u5.prepare(setup)

    class Inside:
        def answer(self):
            return iter(())

        def ask(self, request):
            return answer(json.loads(json.dumps(request)))

    yield Inside()


@pytest.fixture(scope="module", autouse=True)
def toys(short_prompts):
    with pytest.MonkeyPatch.context() as patch:
        for module in (training, act4u5):
            patch.setattr(module, "load_target", lambda name, dtype: hybrid())
        patch.setattr(act4u5.machine, "worker", inside)
        patch.setattr(training, "WINDOW", 40)
        patch.setattr(training, "LOWEST", 8)
        patch.setattr(training, "HELD_OUT", 5)
        patch.setattr(training, "JUDGE", replace(training.JUDGE, blocks=20))
        yield


@pytest.fixture(scope="module")
def files(toys, tmp_path_factory):
    made = {}

    def get(act):
        if act not in made:
            made[act] = load_rows(MODULES[act].measure(params(act), tmp_path_factory.mktemp(act) / f"{act}.journal"))
        return made[act]

    return get


@pytest.mark.parametrize("act", MODULES)
def test_every_job_is_judged_and_every_arm_decoded_and_every_rule_can_be_judged(files, act):
    file = files(act)
    assert needs.check(file) is file
    jobs, arms = MODULES[act].plan(params(act))
    for kind, told in (("launch", jobs), ("forced", [j for j in jobs if j.judged])):
        assert [(r["arm"], r["launch"], r["step"]) for r in file.of(kind)] == [(j.arm, j.launch, s) for j in told for s in j.stops]
    assert {r["arm"] for r in file.of("decode")} == {"ar", "ar_mlx_lm", *arms}
    assert {c.rule.metric for c in criteria.load(act)} <= set(trained.NUMBERS[act](file))
    judged = {o.criterion.id: o for o in trained.outcomes(file)}
    # four steps teach nothing, a gain over an acceptance of nothing has no factor, and what does not vary no share; in one process there are no other threads
    assert {i for i, o in judged.items() if o.word == criteria.NO_ROWS} <= {"passed-on", "only-threads", "launch-share"} and overview.phrase(act, file)
    integrity = [o for o in judged.values() if o.criterion.rule.metric in ("seed_rows_changed", "foreign", "beyond_one_ulp")]
    assert len(integrity) == 3 and all(o.word == criteria.HOLDS for o in integrity)
    assert all(r["seed_rows_compared"] == 4 * 33 * VOCAB for r in file.of("forced"))
    with pytest.raises(BadInput, match="rules"):
        needs.check(replace(file, config=file.config | {"criteria": "0" * 64}))


def test_a_killed_run_goes_on_and_ends_in_the_same_adapters(files, tmp_path):
    """Killed between a checkpoint and its rows, and between two prompts."""
    def stop(at):
        def progress(done, total, label):
            if done == at:
                raise KeyboardInterrupt
        return progress

    for at, resume in ((3, False), (11, True)):
        with pytest.raises(KeyboardInterrupt):
            act4u3.measure(params("act4u3"), tmp_path / "act4u3.journal", stop(at), resume)
    with pytest.raises(BadInput):
        act4u3.measure(params("act4u3", draft_rows=24), tmp_path / "act4u3.journal", resume=True)
    again, whole = load_rows(act4u3.measure(params("act4u3"), tmp_path / "act4u3.journal", resume=True)), files("act4u3")
    told = lambda f: [(r["arm"], r["launch"], r["step"], r["state_digest"]) for r in f.of("launch")]  # noqa: E731
    assert told(again) == told(whole) and [r["matches"] for r in again.of("forced")] == [r["matches"] for r in whole.of("forced")]
    assert [(r["arm"], r["token_digest"]) for r in again.of("decode")] == [(r["arm"], r["token_digest"]) for r in whole.of("decode")]


def zeroed(path):
    tensors, metadata = mx.load(str(path), return_metadata=True)
    mx.save_safetensors(str(path), {k: v * 0 if k.startswith("model.") and k.endswith("lora_b") else mx.array(np.array(v)) for k, v in tensors.items()}, metadata)


def moved_from(name):
    return lambda path: shutil.copy(path.with_name(name), path)


def cut(path):
    path.write_bytes(path.read_bytes()[:-8])


@pytest.fixture(scope="module")
def halfway(toys, tmp_path_factory):
    """The folder of a measurement that was killed while it decoded."""
    def stop(done, total, label):
        if done == 11:
            raise KeyboardInterrupt

    folder = tmp_path_factory.mktemp("halfway")
    with pytest.raises(KeyboardInterrupt):
        act4u3.measure(params("act4u3"), folder / "act4u3.journal", stop)
    return folder


@pytest.mark.parametrize("rows", [None, 2])  # of the launch that are kept: all, or the untrained adapter's alone
@pytest.mark.parametrize("which, damage, said", [("curve-1-4", zeroed, "not the one that was measured; remove it"), ("curve-1-4", moved_from("untrained-1-0.safetensors"), "not the one"),
                                                 ("curve-1-2", moved_from("curve-1-1.safetensors"), "not the one"), ("curve-1-4", cut, "not a whole safetensors file")])
def test_a_checkpoint_that_is_not_the_one_measured_is_refused(halfway, tmp_path, which, damage, said, rows):
    shutil.copytree(halfway, tmp_path, dirs_exist_ok=True)
    journal = tmp_path / "act4u3.journal"
    if rows:  # without rows to compare with, name and contents are all that can be compared
        if damage is zeroed:
            return
        journal.write_text("".join(journal.read_text().splitlines(keepends=True)[: 1 + rows]))
        said = "of step|not a whole"
    damage(journal.with_suffix(".work") / f"{which}.safetensors")
    before = journal.read_text()
    with pytest.raises(BadInput, match=said):
        act4u3.measure(params("act4u3"), journal, resume=True)
    assert "decode" in before or rows
    assert not [line for line in journal.read_text()[len(before):].splitlines() if '"kind": "decode"' in line] and not journal.with_suffix(".json").exists()


def test_a_checkpoint_that_is_gone_is_trained_again(halfway, files, tmp_path):
    shutil.copytree(halfway, tmp_path, dirs_exist_ok=True)
    (tmp_path / "act4u3.work" / "curve-1-2.safetensors").unlink()
    again = load_rows(act4u3.measure(params("act4u3"), tmp_path / "act4u3.journal", resume=True))
    assert [r["token_digest"] for r in again.of("decode")] == [r["token_digest"] for r in files("act4u3").of("decode")]


def test_checkpoints_of_another_run_behind_a_link_are_refused(halfway, tmp_path):
    shutil.copytree(halfway / "act4u3.work", tmp_path / "elsewhere")
    (tmp_path / "act4u3.work").symlink_to("elsewhere")
    with pytest.raises(BadInput, match="act4u3.work' cannot be emptied .*; remove it, or choose another --out"):
        act4u3.measure(params("act4u3"), tmp_path / "act4u3.journal")
    assert list((tmp_path / "elsewhere").iterdir())


def test_launches_that_share_everything_share_every_bit_and_each_ingredient_shows(files):
    file = files("act4u5")
    same = dict(zip(replicates.INGREDIENTS, replicates.changed(file)["same bits"]))
    # in one process, threads and kernels are what they were; of threads that says nothing
    assert same == {"nothing": True, "looking": True, "threads": None, "kernels": True, "rounding": False, "order": False, "noise": False}
    found = replicates.numbers(file)
    assert found["differs_threads"][0] is None and found["differs_nothing"][0] == 0 and found["differs_noise"][0] == 1
    two = replace(file, rows=[r | {"threads": r["threads"] + 1} if r.get("change") == "threads" else r for r in file.rows])
    assert replicates.numbers(two)["differs_threads"][0] == 0
    assert found["distinct_A_k4"][0] == found["distinct_C_k8"][0] == 1 and found["band_again"][0] == 0
    far = {r["change"]: r["distance"] for r in file.of("launch") if r["arm"].startswith("only_")}
    assert far["nothing"] == 0 < far["rounding"] < far["noise"] and far["order"] > 0
    curriculum = next(r for r in file.of("launch") if r["arm"] == "D_curr")
    assert curriculum["widths"] == [4, 6, 8] and curriculum["step"] == 6


def test_the_untrained_adapter_is_the_target_and_shuffled_teachers_teach_something_else(files):
    file = files("act4u")
    digests = {r["arm"]: r["adapter_digest"] for r in file.of("launch")}
    assert len(set(digests.values())) == 5
    first = next(r for r in file.of("launch") if r["arm"] == "untrained")
    ids = mx.array([[3, 1, 4, 1, 5]])
    adapted, gate = training.view(hybrid())
    gate.rows(mx.ones(ids.shape))
    assert np.array_equal(np.array(adapted(ids)), np.array(hybrid().model(ids)))
    for arm in ("trained_k4", "shuffled_k4"):
        moved = next(r for r in file.of("launch") if r["arm"] == arm)
        assert len(moved["loss"]) == TINY["steps"] and moved["adapter_digest"] != first["adapter_digest"]
    assert first["loss"] == [] and first["trained"] == sum(v.size for v in adapter_weights(training.view(hybrid())[0]).values())


def test_the_published_recipe():
    """System 1: rank 16 on MLP and attention, TV, each row noise at a rate drawn for its block, text of a corpus; and 12 rows a step are four blocks of K=4."""
    recipe, seven = asdict(training.published(params("act4u"), 4)), ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", *(f"self_attn.{n}_proj" for n in "qkvo"))
    told = {"rank": 16, "modules": "published", "objective": "tv", "corruption": "uniform", "own_text": False, "shuffled": False, "negatives": 0,
            "schedule": "flat", "warmup": 20, "seed": 20260903, "data_seed": None, "noise_seed": None, "block": 4, "blocks": 4, "lr": 5e-3, "steps": 4, "windows": 3}
    assert recipe == recipe | told and set(uno.MODULES[recipe["modules"]]) == set(seven) and training.published(params("act4u"), 8, shuffled=True).shuffled


def forced(batches=1):
    """Texts to judge on, and the adapter tensors of rank 16 that are judged; they are not zero."""
    return training.Texts(hybrid(), 3, batches), adapter_weights(adapter(hybrid(), 16, uno.MODULES["published"])[0])


def test_the_seed_row_check_counts_what_an_adapter_on_the_rows_before_a_block_changes(monkeypatch):
    (texts, tensors), view = forced(), training.view
    good = training.forced_row(hybrid(), texts, tensors)
    assert good["seed_rows_changed"] == 0 and good["seed_rows_compared"] == 4 * 33 * VOCAB

    def everywhere(*args):
        adapted, gate = view(*args)
        real = gate.rows
        gate.rows = lambda rows: real(None if rows is None else mx.ones(rows.shape))
        return adapted, gate

    monkeypatch.setattr(training, "view", everywhere)
    wrong = training.forced_row(hybrid(), texts, tensors)
    assert wrong["seed_rows_changed"] > 0.9 * wrong["seed_rows_compared"] and wrong["matches"] == good["matches"]


def test_launches_are_judged_on_documents_that_are_not_trained_on():
    texts = training.Texts(hybrid(), 40, 2)
    trained_on, unseen = ({w.tobytes() for w in np.array(part.ids)} for part in (texts.clean, texts.unseen))
    documents = {False: corpus.windows(hybrid(), 400, 40, corpus.SEED), True: corpus.windows(hybrid(), 400, 40, corpus.SEED, held_out=True)}
    read, kept = ({w.astype(np.int32).tobytes() for w in documents[held_out]} for held_out in (False, True))
    assert trained_on <= read and unseen <= kept and not unseen & read and len(unseen) > 5


def test_forced_rows_name_the_windows_of_their_blocks():
    """A block's window is one where seven rows in a row of the clean pass give the teacher's logits."""
    texts, tensors = forced(2)
    row, head = training.forced_row(hybrid(), texts, tensors), uno.embed_and_head(hybrid())[1]
    own = np.array(head(texts.unseen.hidden))
    teachers = np.concatenate([np.array(uno._blocks(hybrid(), texts.unseen, training.JUDGE, b, EVAL_NOISE, 8)[2]) for b in range(2)])
    assert len(row["windows"]) == len(teachers) == row["blocks"] == 40
    for window, teacher in zip(row["windows"], teachers):
        assert any(np.allclose(own[window, a : a + 7], teacher, atol=1e-4) for a in range(8, 34))


def test_checkpoints_of_another_measurement_are_taken_away(tmp_path):
    def stop(*_):
        raise KeyboardInterrupt

    stale = tmp_path / "act4u3.work" / "trained-1-4.safetensors"
    stale.parent.mkdir()
    stale.write_text("of another measurement")
    with pytest.raises(KeyboardInterrupt):
        act4u3.measure(params("act4u3"), tmp_path / "act4u3.journal", stop)
    assert not stale.exists()


def test_the_book_names_things_as_the_protocols_do():
    assert (trained.UNTRAINED, trained.WIDTHS, replicates.CONTROL, replicates.OTHER) == (training.UNTRAINED, act4u4.WIDTHS, act4u5.CONTROL, act4u5.OTHER)
    assert [j.change for j in act4u5.plan(params("act4u5"))[0] if j.arm.startswith("only_")] == list(replicates.INGREDIENTS)


def test_a_job_comes_back_from_json():
    jobs = act4u5.plan(params("act4u5"))[0]
    assert [training.Job.read(json.loads(json.dumps(asdict(j)))) for j in jobs] == jobs and len({(j.arm, j.launch) for j in jobs}) == len(jobs)
    by_rows = {j.arm: j.recipe.blocks * (j.recipe.block - 1) for j in jobs}
    assert by_rows["A_k4"] == by_rows["D_curr"] == 12 and by_rows["C_k8"] == 7


def test_order_and_noise_have_seeds_of_their_own():
    clean = uno.clean_pass(hybrid(), corpus.windows(hybrid(), 3, training.WINDOW, corpus.SEED))
    draws = {}
    for name, changed in {"as it is": {}, "order": {"data_seed": 5}, "noise": {"noise_seed": 5}}.items():
        rows, _, teacher, _ = uno._blocks(hybrid(), clean, uno.Recipe(block=4, blocks=30, **changed), 2, TRAIN_NOISE, 8)
        draws[name] = np.array(rows), np.array(teacher)
    assert np.array_equal(draws["as it is"][0], draws["order"][0]) and not np.array_equal(draws["as it is"][1], draws["order"][1])
    assert np.array_equal(draws["as it is"][1], draws["noise"][1]) and not np.array_equal(draws["as it is"][0], draws["noise"][0])


def test_rows_before_a_block_are_the_bits_of_the_target_with_any_adapter():
    """And those in the block are not, so that the count in the forced rows means something."""
    adapted, gate = adapter(hybrid())
    ids = mx.array(corpus.windows(hybrid(), 2, training.WINDOW, corpus.SEED, held_out=True))
    plain, cut = np.array(hybrid().model(ids)), training.WINDOW - 7
    gate.rows(mx.concatenate([mx.zeros((2, cut)), mx.ones((2, 7))], axis=1))
    ours = np.array(adapted(ids))
    assert ours[:, :cut].tobytes() == plain[:, :cut].tobytes() and (ours[:, cut:] != plain[:, cut:]).all(axis=-1).any()
    gate.rows(mx.ones(ids.shape))
    assert (np.array(adapted(ids)) != plain).mean() > 0.9
    gate.rows(None)
    assert np.array(adapted(ids)).tobytes() == plain.tobytes()


def test_nudging_moves_one_number_by_one_unit():
    adapted, _ = training.view(hybrid())
    before = {k: np.array(v) for k, v in adapter_weights(adapted).items()}
    training.nudge(adapted, 2)
    moved = [(k, np.flatnonzero(np.array(v) != before[k])) for k, v in sorted(adapter_weights(adapted).items())]
    assert [list(at) for _, at in moved] == [[], [], [0]] + [[]] * (len(moved) - 3)
    name = moved[2][0]
    after = np.array(adapter_weights(adapted)[name]).flat[0]
    assert after == np.nextafter(before[name].flat[0], np.float32(np.inf))
    assert training.distance({"a": mx.array([3.0, 4.0])}, {"a": mx.array([3.0, 0.0])}) == pytest.approx(4 / 3)


def judged(matches, windows=(0, 1, 3, 8), l1=(0.5, 0.5, 0.5, 0.5)):
    return {"matches": list(matches), "windows": list(windows), "l1_k4": list(l1)}


def test_agreement_by_hand():
    row = judged(["110", "101", "000", "111"])
    assert trained.slot(1)(row).tolist() == [1, 1, 0, 1] and trained.prefix(4)(row).tolist() == [2, 1, 0, 3] and trained.mean_slots(3)(row).tolist() == [1, 0.5, 0, 1]
    value, low, high, n = trained.gain(row, judged(["000"] * 4), trained.slot(1))
    assert (value, n) == (0.75, 3) and low == 0 and high == 1  # windows 0 to 2, 3 to 5 and 6 to 8 are a document each: 2 of 2, 0 of 1 and 1 of 1
    thin = trained.over_windows(np.array([1.0, 0.0]), [0, 3])
    assert thin[0] == 0.5 and thin[4] == "2 documents"


def test_the_share_of_a_launch_and_its_interval():
    """Launches at 0, 1 and 2 without any other scatter are all of the variance; with launches alike there is none."""
    rng = np.random.default_rng(5)
    table = np.array([0.0, 1.0, 2.0])[:, None] + rng.normal(0, 0.1, (3, 12))
    value, low, high, n = replicates.launch_share(table)
    assert n == 3 and 0.9 < low < value < high <= 1 and replicates.launch_share(table[:2])[4] == "2 runs"
    means, inside = [], 0
    for _ in range(400):  # launch and residual of variance 1 each, ten prompts: ten elevenths
        value, low, high, _ = replicates.launch_share(rng.normal(size=(6, 1)) + rng.normal(size=10) + rng.normal(size=(6, 10)))
        means.append(value)
        inside += low <= 10 / 11 <= high
    assert abs(inside / 400 - 0.95) < 0.03 and abs(np.median(means) - 10 / 11) < 0.03


def test_variance_components_by_hand():
    launch, prompt = np.array([0.0, 1.0, 2.0]), np.array([0.0, 3.0, 6.0, 9.0])
    parts = statistics.components(launch[:, None] + prompt)
    assert parts == pytest.approx({"launch": 1.0, "prompt": 15.0, "launch x prompt": 0.0})
    noise = np.random.default_rng(1).normal(size=(400, 300))
    parts = statistics.components(2 * np.random.default_rng(2).normal(size=(400, 1)) + 3 * np.random.default_rng(3).normal(size=300) + noise)
    assert parts["launch"] == pytest.approx(4, rel=0.2) and parts["prompt"] == pytest.approx(9, rel=0.2) and parts["launch x prompt"] == pytest.approx(1, rel=0.02)


def test_what_launches_of_act4u5_say_together(files):
    """Pairs, arms and scatter from decoded prompts whose prefixes are set by hand: launch n of the control accepts n, of K=8 half of that."""
    file = files("act4u5")
    known = {"A_k4": 1.0, "C_k8": 0.5}
    launches = {arm: [f"{arm}-1", *replicates.group(file, arm, "seed")] for arm in known}
    worth = {name: step * (n + 1) for arm, step in known.items() for n, name in enumerate(launches[arm])}
    rows = [r | {"accepted_per_cycle": [worth[r["arm"]]] * 2} if r.get("kind") == "decode" and r["arm"] in worth else r for r in file.rows]
    file = replace(file, rows=[r | {"accepted_per_cycle": [0, 0]} if r.get("arm") == "start-1" and r["kind"] == "decode" else r for r in rows])
    n = len(launches["A_k4"])
    assert replicates.pairs(file)["difference"].tolist() == pytest.approx([-0.5 * (i + 1) for i in range(n)])
    mean = (n + 1) / 2
    assert [replicates.against_start(file)[arm][0] for arm in known] == pytest.approx([mean, mean / 2])
    costs = replicates.arms(file).set_index(replicates.arms(file)["arm"].str[0])
    assert costs.loc["A", "against the controls"] == pytest.approx(1 - mean) and costs.loc["C", "against the controls"] == pytest.approx(0.5 - mean)
    rows = file.config["draft_rows"]
    assert costs.loc["A", "used at K=4"] == rows // 3 * 3 and costs.loc["C", "used at K=4"] == rows // 7 * 3 < costs.loc["C", "rows a step"] <= rows
    parts = replicates.scattered(file).set_index("launches that differ by")
    spread = np.std(np.arange(1, n + 1), ddof=1)
    assert parts.loc["seed", "sd"] == pytest.approx(spread) and parts.loc["seed (K=8)", "sd"] == pytest.approx(spread / 2) and parts.loc["seed", "sd low"] < spread < parts.loc["seed", "sd high"]
    assert parts.loc["seed", "launch's share"] == pytest.approx(1)
    assert f"{-0.5 * mean:+.3f} [" in replicates.remark(file)
    assert replicates.launch_share(np.ones((4, 5)))[4] == "no variance"


def test_a_damaged_row_is_refused(files):
    from specdecode_nb.rows.trained import ForcedRow

    good = files("act4u").of("forced")[0]
    assert ForcedRow.model_validate(good)
    for change in ({"blocks": 7}, {"matches": ["012"] * good["blocks"]}, {"windows": good["windows"][1:]}):
        with pytest.raises(ValueError):
            ForcedRow.model_validate(good | change)


def test_rows_of_other_rules_are_refused():
    with pytest.raises(BadInput, match="not measured under the rules"):
        trained.outcomes(RowFile("act4u", "toy", {}, {"criteria": "0" * 64}, [], "rows", "0" * 64))


def test_perturbed_launches_are_no_longer_than_full_ones(tmp_path):
    with pytest.raises(BadInput, match="short_steps is 5, but a full launch has 4 steps"):
        act4u5.measure(params("act4u5", short_steps=5), tmp_path / "act4u5.journal")
    assert not list(tmp_path.iterdir())


def test_the_best_at_k8_is_sought_among_all_adapters(files):
    file = files("act4u4")
    found, rows = trained.best_eight(file), file.of("decode")
    eights, fours = ({arm for arm in MODULES["act4u4"].plan(params("act4u4"))[1] if arm.endswith(end)} for end in ("_k8", "_k4"))
    arm, (value, *_) = found["tpf"]
    assert arm in eights and found["rate"][0] in eights
    assert value == pytest.approx(max(trained.tpf_of(rows, a) for a in eights) - max(trained.tpf_of(rows, a) for a in fours))


def test_bands_of_three(files):
    rows = [r | {"accepted_per_cycle": [n]} for n, arm in enumerate("abcd") for r in files("act4u5").of("decode")[:1] for r in [r | {"arm": arm}]]
    assert sorted(replicates.threes(rows, list("abcd"))) == [2.0, 2.0, 3.0, 3.0] and replicates.threes(rows, ["a", "b"]) == []
