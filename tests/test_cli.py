"""The commands: exit statuses, one sentence, nothing written on bad input."""
import importlib.util
import json
import re
import subprocess
import sys
import types

import pytest

import specdecode_nb
import synthetic
from book_tools import REPOSITORY, tree
from specdecode_nb import cli, paths
from specdecode_nb.book import acts, notebooks
from specdecode_nb.errors import RunFailed
from specdecode_nb.records import Journal, load_rows, save_rows


def call(capsys, *words):
    status = cli.main(list(words))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working folder; no notebook is really executed."""
    monkeypatch.chdir(tmp_path)
    executed = []
    monkeypatch.setattr(notebooks, "run", lambda act, params, out, command: executed.append((act, params, command)) or [out / f"{act}.ipynb"])
    return tmp_path, executed


@pytest.mark.parametrize("words, says", [
    (["run", "act4ss"], "did you mean 'act4s'"), (["run"], "No Act is named"), (["run", "act4s", "-p", "tokns=4"], "did you mean 'tokens'"),
    (["run", "act4s", "-p", "tokens=four"], "whole number from 1 to 4096"), (["run", "act4s", "-p", "block_sizes=0,4"], "from 1 to 64"), (["run", "act4s", "-p", "tokens"], "name=value"),
    (["run", "act4s", "-p", "target=tiny-hybird"], "did you mean 'tiny-hybrid'"), (["run", "act4s", "-p", "drafter=uon"], "did you mean 'uno'"), (["run", "act4s", "-p", "dtype=int8"], "float32"),
    (["run", "act4s", "-p", "rows=none.json"], "none.json"), (["run", "act4s", "--resume"], "measure=true"), (["run", "act4s", "-p", "rows=a", "-p", "measure=true"], "one of them"),
    (["run", "act4s", "--out", str(paths.data() / "x")], "committed data/"), (["run", "act4s", "--out", "/dev/null/x"], "choose another"), (["run", "act1", "--out", str(REPOSITORY)], "is the repository"),
    (["figures", "act1", "--to", str(REPOSITORY)], "is the repository"), (["site", "--to", f"{REPOSITORY}/tests/.."], "is the repository"), (["run", "act1", "--out", "/proc/x"], "/proc/x"),
    (["run", "act1", "--out", "n" * 300], "too long"), (["run", "act1", "--out", "~nosuchuser/x"], "home"), (["generate", "a\udcffb"], "UTF-8"),
    (["run", "act4s", "-p", "target=/etc"], "config.json"), (["run", "act4s", "-p", "target=../.."], "config.json"), (["run", "overview", "-p", "x=1"], "has no parameter 'x'; its parameters are target"), (["figures", "act4s", "--to", str(paths.figures())], "committed"),
    (["figures", "act4q", "--to", "x"], "act4"), (["figures"], "--to"), (["frobnicate"], "invalid choice"), ([], "COMMAND"), (["generate", " "], "prompt is empty"),
    (["generate", "x", "-k", "four"], "invalid int value"), (["check", "--rebild"], "--rebild"), (["run", "act4s", "--ou", "x"], "--ou")])
def test_bad_input_is_one_sentence_status_2_and_nothing_written(capsys, here, words, says):
    status, out, err = call(capsys, *words)
    assert status == 2 and out == "" and says in err and err.startswith("specdecode-nb: ") and err.count("\n") == 1 and "Traceback" not in err
    assert not list(here[0].iterdir()) and not here[1]


def test_list_has_one_line_an_act(capsys):
    status, out, err = call(capsys, "list")
    assert status == 0 and err == "" and [line.split()[0] for line in out.splitlines()] == list(acts.reading())
    assert all(" | published: " in line and " | here: " in line for line in out.splitlines())


def test_help_of_an_act_names_every_parameter_with_type_and_range(capsys):
    status, out, _ = call(capsys, "run", "act4s", "--help")
    assert status == 0 and "block_sizes=1,2,4,8,16" in out and "tokens=128" in out and "a whole number from 1 to 4096" in out and "measure=false" in out
    assert call(capsys, "run", "--help")[0] == 0


def test_run_passes_only_what_differs_and_prints_paths(capsys, here):
    status, out, err = call(capsys, "run", "act4s", "-p", "tokens=64", "-p", "repeats=2")
    assert (status, out) == (0, "out/act4s/act4s.ipynb\n")
    assert err == "specdecode-nb: tokens, repeats would tell how to measure; recorded rows are drawn as they are. Add -p measure=true to measure.\n"
    assert call(capsys, "run", "act4s")[2] == ""
    assert here[1][0] == ("act4s", {"tokens": 64}, "specdecode-nb run act4s -p tokens=64 -p repeats=2")


def test_rows_are_found_from_the_folder_of_the_results(capsys, here):
    synthetic.write(here[0] / "mine.json")
    assert call(capsys, "run", "act4s", "-p", "rows=mine.json", "--out", "a/b")[0] == 0
    assert here[1][0][1] == {"rows": "../../mine.json"} and here[1][0][2] == "specdecode-nb run act4s"


def test_a_drafter_by_its_file_is_found_from_the_folder_of_the_results(capsys, here, protocol):
    (here[0] / "mine.safetensors").touch()
    assert call(capsys, "run", "act4s", "-p", "measure=true", "-p", "drafter=mine.safetensors", "-p", "target=org/toy", "--out", "a/b")[0] == 0
    assert protocol.calls[0]["drafter"] == "mine.safetensors"
    assert here[1][0][1] == {"target": "org/toy", "drafter": "../../mine.safetensors", "measure": True, "rows": "act4s.json"}


def test_the_target_is_fetched_before_measuring_and_only_when_asked(capsys, here, protocol, monkeypatch):
    asked = []
    monkeypatch.setattr("specdecode_nb.checkpoints.find", lambda name, download: asked.append((name, download, len(protocol.calls))))
    call(capsys, "run", "act4s", "-p", "measure=true", "-p", "target=org/toy", "--out", "a")
    call(capsys, "run", "act4s", "-p", "measure=true", "-p", "target=org/toy", "--out", "b", "--download")
    assert asked == [("org/toy", True, 1)] and len(protocol.calls) == 2


def test_rows_of_another_act_are_refused_before_anything_is_written(capsys, here):
    synthetic.write(here[0] / "mine.json")
    status, _, err = call(capsys, "run", "act4u6", "-p", "rows=mine.json")
    assert status == 2 and "holds rows of 'act4s', this is 'act4u6'" in err and err.count(".\n") == 1 and not (here[0] / "out").exists()


def test_a_row_file_with_nan_or_of_another_schema_is_refused(capsys, here):
    path = synthetic.write(here[0] / "mine.json")
    for old, new, says in (('"schema": 1', '"schema": 9', "schema 9"), ('"cores": 2', '"cores": NaN', "not finite at provenance.machine.cores")):
        path.write_text(synthetic.write(here[0] / "good.json").read_text().replace(old, new))
        status, _, err = call(capsys, "run", "act4s", "-p", "rows=mine.json")
        assert status == 2 and says in err and "mine.json" in err and not here[1]


@pytest.fixture
def protocol(monkeypatch):
    """A measuring function that writes invented rows through a journal and may stop half way."""
    module = types.ModuleType("specdecode_nb.protocols.act4s")
    module.calls, module.stop_after = [], None

    def measure(params, journal, progress=None, resume=False):
        module.calls.append(dict(params))
        config = {"tokens": params["tokens"], "reduced": params["quick"], "prompts": ["invented"], "dtype": "float32", "repeats": 1}
        with Journal(journal, act="act4s", target="invented", provenance={"date": "2026-01-01", "drafter": {"name": "uno"}}, config=config, resume=resume) as rows:
            for n, row in enumerate(synthetic.rows(per_category=1, repeats=1, widths=(2,))):
                if n < len(rows):
                    continue
                if module.stop_after is not None and n >= module.stop_after:
                    raise KeyboardInterrupt
                rows.append(row)
                if progress:
                    progress(len(rows), 100, "row")
            return rows.finish()

    module.measure = measure
    monkeypatch.setitem(sys.modules, "specdecode_nb.protocols.act4s", module)
    return module


def test_a_measured_act_measures_first_and_draws_from_its_own_rows(capsys, here, protocol):
    status, out, err = call(capsys, "run", "act4s", "-p", "measure=true", "-p", "quick=true", "--out", "o", "--resume")
    assert status == 0 and err == "specdecode-nb: o holds nothing to go on with; a new measurement begins.\n" and out.splitlines() == ["o/act4s.ipynb", "o/act4s.json"]
    assert protocol.calls[0]["tokens"] == 64 and protocol.calls[0]["quick"] is True
    assert here[1][0][1]["rows"] == "act4s.json" and load_rows(here[0] / "o" / "act4s.json").config["reduced"]


def test_progress_is_told_where_stderr_is_no_terminal(capsys, here, protocol, monkeypatch):
    monkeypatch.setattr(cli, "EVERY", 0.0)
    (here[0] / "o" / "act4s.work").mkdir(parents=True)
    status, out, err = call(capsys, "run", "act4s", "-p", "measure=true", "--out", "o")
    assert status == 0 and err.startswith("act4s: 1 of 100 rows, row\nact4s: 2 of 100 rows, row\n") and out.splitlines()[-1] == "o/act4s.work/"
    monkeypatch.setattr(cli, "EVERY", 3600.0)
    assert call(capsys, "run", "act4s", "-p", "measure=true", "--out", "p")[2] == ""


def test_an_interrupted_measurement_is_kept_refused_without_resume_and_gone_on_with(capsys, here, protocol):
    words = ["run", "act4s", "-p", "measure=true", "--out", "o"]
    protocol.stop_after = 5
    status, out, err = call(capsys, *words)
    assert status == 1 and "--resume" in err and out == "" and not here[1]
    assert len((here[0] / "o" / "act4s.journal").read_text().splitlines()) == 6
    protocol.stop_after = None
    status, _, err = call(capsys, *words)
    assert status == 2 and "unfinished" in err and "--resume" in err and len(protocol.calls) == 1
    status, _, err = call(capsys, *words, "-p", "tokens=64", "--resume")
    assert status == 2 and "config.tokens was 128, now 64" in err
    assert call(capsys, *words, "--resume")[0] == 0
    rows = load_rows(here[0] / "o" / "act4s.json").rows
    assert rows == synthetic.rows(per_category=1, repeats=1, widths=(2,)) and not (here[0] / "o" / "act4s.journal").exists()


def test_finished_rows_are_drawn_with_resume_and_never_overwritten(capsys, here, protocol, monkeypatch):
    words = ["run", "act4s", "-p", "measure=true", "--out", "o"]
    draw = notebooks.run

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(notebooks, "run", killed)
    status, _, err = call(capsys, *words)
    assert status == 1 and err == "specdecode-nb: Interrupted; the rows are finished, and --resume draws from them.\n"
    rows = (here[0] / "o" / "act4s.json").read_bytes()
    monkeypatch.setattr(notebooks, "run", draw)
    status, _, err = call(capsys, *words)
    assert status == 2 and "--resume" in err and "--out" in err and err.count("\n") == 1 and len(protocol.calls) == 1
    status, _, err = call(capsys, *words, "-p", "tokens=64", "--resume")
    assert status == 2 and "config.tokens was 128, now 64" in err and not here[1]
    status, out, err = call(capsys, *words, "--resume")
    assert status == 0 and err == "specdecode-nb: o/act4s.json is finished, under these settings; it is drawn as it is.\n"
    assert out.splitlines() == ["o/act4s.ipynb", "o/act4s.json"] and here[1][0][1]["rows"] == "act4s.json"
    assert (here[0] / "o" / "act4s.json").read_bytes() == rows and [p.name for p in (here[0] / "o").iterdir()] == ["act4s.json"]


def test_bootstrap_measures_anew_but_goes_on_with_an_interrupted_measurement(tmp_path):
    spec = importlib.util.spec_from_file_location("bootstrap", REPOSITORY / "bootstrap.py")
    spec.loader.exec_module(bootstrap := importlib.util.module_from_spec(spec))
    assert not bootstrap.interrupted(tmp_path) and not list(tmp_path.iterdir())
    (tmp_path / "act4s.json").write_text("rows")
    (tmp_path / "act4s.journal").write_text("")
    assert bootstrap.interrupted(tmp_path) and (tmp_path / "act4s.json").exists()
    (tmp_path / "act4s.journal").unlink()
    assert not bootstrap.interrupted(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["act4s-previous.json"]


def test_an_interrupt_promises_nothing_that_is_not_there(capsys, here, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(notebooks, "run", interrupt)
    assert call(capsys, "run", "act1") == (1, "", "specdecode-nb: Interrupted.\n")


def test_an_interrupt_leaves_no_kernel(tmp_path, monkeypatch):
    import papermill

    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])

    def interrupted(*_, kernel_manager_class, **options):
        kernel_manager_class().provisioner = types.SimpleNamespace(process=process)
        raise KeyboardInterrupt

    monkeypatch.setattr(papermill, "execute_notebook", interrupted)
    with pytest.raises(KeyboardInterrupt):
        notebooks.execute("overview", {}, tmp_path, tmp_path, "invented")
    assert process.poll() is not None


def test_rows_that_a_page_cannot_draw_are_refused_before_anything_is_written(capsys, here):
    good = load_rows(synthetic.write(here[0] / "good.json", widths=(1, 4), repeats=1))
    mine = here[0] / "mine.json"
    for config, rows, says in (
            (good.config, [], "it lacks rows of kind decode;"), ({}, good.rows, "it lacks config.prompts, config.tokens, config.dtype, config.reduced, config.repeats;"),
            (good.config, [{"kind": "odd"}], "rows of kind decode"), (good.config, [r for r in good.rows if r.get("arm", "ar").startswith("ar")], "drafts more than one position"),
            (good.config, [r for r in good.rows if r.get("arm") in ("ar", "uno_k4")], "decode rows with arm ar_mlx_lm;"),
            (good.config, [r for r in good.rows if (r.get("arm"), r["prompt_id"]) != ("uno_k4", "code-1")], "decode rows of uno_k4 for the same prompts")):
        save_rows(mine, good.act, good.target, good.provenance, config, rows)
        status, out, err = call(capsys, "run", "act4s", "-p", "rows=mine.json")
        assert status == 2 and out == "" and says in err and err.startswith("specdecode-nb: mine.json cannot be drawn as act4s") and err.count("\n") == 1
        assert not here[1] and not (here[0] / "out").exists()


def test_a_run_that_fails_has_status_1(capsys, here, monkeypatch):
    def fail(*_):
        raise RunFailed("act4s stopped in cell 3 (x): NameError: x.")

    monkeypatch.setattr(notebooks, "run", fail)
    status, out, err = call(capsys, "run", "act4s")
    assert (status, out, err) == (1, "", "specdecode-nb: act4s stopped in cell 3 (x): NameError: x.\n")


def test_a_folder_that_leads_into_the_repository_or_cannot_hold_results_is_refused(capsys, here):
    (here[0] / "linked").mkdir()
    (here[0] / "linked" / "figures").symlink_to(paths.figures())
    (here[0] / "taken").mkdir()
    (here[0] / "taken" / "figures").write_text("x")
    (here[0] / "loop").symlink_to("loop")
    (here[0] / "dangling").symlink_to("nowhere")
    before = sorted(here[0].rglob("*"))
    for out, says in (("linked", "committed figures/"), ("taken", "taken/figures is no folder"), ("loop", "loop"), ("dangling", "no folder"), ("taken/figures/x", "choose another")):
        status, _, err = call(capsys, "run", "act1", "--out", out)
        assert status == 2 and says in err and err.count("\n") == 1 and sorted(here[0].rglob("*")) == before and not here[1]
    assert call(capsys, "run", "act1", "--out", "new/folder")[0] == 0 and len(here[1]) == 1


def test_output_that_cannot_be_written_and_a_folder_that_is_gone_are_one_sentence(tmp_path):
    gone = "import os, sys; os.mkdir(sys.argv[1]); os.chdir(sys.argv[1]); os.rmdir(sys.argv[1]); from specdecode_nb.cli import main; sys.exit(main(['list']))"
    program = [sys.executable, "-c", "import sys; from specdecode_nb.cli import main; sys.exit(main(['run', 'act4s', '--help']))"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(program, cwd=REPOSITORY, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and "No space left" in done.stderr and done.stderr.count("\n") == 1
    done = subprocess.run([sys.executable, "-c", gone, tmp_path / "gone"], env={"PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "specdecode-nb: The current folder is gone; change to one that exists.\n")


def test_generate_prints_text_then_one_line_of_statistics(capsys, monkeypatch):
    stats = types.SimpleNamespace(tokens=12, wall_seconds=0.5, forwards=9, cycles=4, accepted_per_cycle=[1, 3, 0, 0], offered_per_cycle=[3, 3, 3, 3])
    asked = []
    monkeypatch.setattr(specdecode_nb, "load_target", lambda name, *options: types.SimpleNamespace(name=name), raising=False)
    monkeypatch.setattr(specdecode_nb, "load_drafter", lambda name, target: name and types.SimpleNamespace(name=name), raising=False)
    monkeypatch.setattr(specdecode_nb, "generate", lambda target, prompt, **options: asked.append(options) or types.SimpleNamespace(
        text="two\nlines", tokens=[], finish_reason="length", stats=stats), raising=False)
    status, out, _ = call(capsys, "generate", "Hello", "-k", "4", "--max-tokens", "12")
    assert status == 0 and out == "two\nlines\n[12 tokens in 0.50 s (24.0 tok/s); 1.33 tokens per forward; accepted 4 of 12 drafted, 3.00 tokens per cycle; tiny-hybrid with uno, k=4; ended by length]\n"
    stats.cycles = 0
    assert "tiny-hybrid alone" in call(capsys, "generate", "Hello", "--drafter", "none")[1]
    call(capsys, "generate", "Hello", "--stop", "two", "--stop", "lines")
    assert asked[0]["k"] == 4 and asked[0]["max_tokens"] == 12 and asked[0]["stop"] == [] and asked[1]["drafter"] is None and asked[2]["stop"] == ["two", "lines"]


def test_doctor_prints_its_rows(capsys, monkeypatch):
    from specdecode_nb import doctor

    monkeypatch.setattr(doctor, "examine", lambda: [("python", "3.11", "fine"), ("BLAS", "reference", "")])
    assert call(capsys, "doctor") == (0, "python  3.11       fine\nBLAS    reference\n", "")


def test_build_run_figures_and_check_of_a_small_book(capsys, tmp_path, monkeypatch):
    root = tree(tmp_path / "book")
    monkeypatch.setenv("SPECDECODE_ROOT", str(root))
    monkeypatch.setattr("specdecode_nb.book.check.BOOK", ("overview",))
    monkeypatch.chdir(tmp_path)
    status, out, err = call(capsys, "check")
    assert status == 1 and "overview" in err and "build" in err
    assert call(capsys, "build") == (0, "book/notebooks/overview.ipynb\n", "")
    assert call(capsys, "check") == (0, "Every derived file agrees with its source.\n", "")
    committed = {p: p.read_bytes() for p in root.rglob("*") if p.is_file()}
    status, out, err = call(capsys, "figures", "--to", "paper")
    assert status == 0 and err == ""
    made = {p.relative_to(tmp_path).as_posix() for p in (tmp_path / "paper").rglob("*") if p.is_file()}
    assert made == set(out.split()) and {"paper/overview-curve.pdf", "paper/tables/overview-small.csv", "paper/numbers.tex", "paper/captions.tex"} <= made
    assert all((root / "figures" / p.relative_to(tmp_path / "paper")).read_bytes() == p.read_bytes() for p in (tmp_path / "paper").rglob("*-*"))
    assert committed == {p: p.read_bytes() for p in root.rglob("*") if p.is_file()}
    assert json.loads((tmp_path / "paper" / "captions.json").read_text())["overview-curve"].startswith("Survival")


def test_the_commands_of_the_contract_are_there():
    text = cli.parser().format_help()
    assert all(word in text for word in ("list", "run", "figures", "generate", "check", "doctor")) and (REPOSITORY / "pyproject.toml").exists()


def test_the_readme_s_python_runs_as_it_stands(tmp_path, monkeypatch, capsys):
    code = re.search(r"```python\n(.*?)```", (REPOSITORY / "README.md").read_text(), re.S)[1]
    monkeypatch.chdir(tmp_path)
    done: dict = {}
    exec(compile(code, "README.md", "exec"), done)
    assert done["result"].tokens and done["more"].tokens and capsys.readouterr().out and done["logits"].shape[-1] == done["target"].vocab_size
    again = done["generate"](done["target"], "Step 1.", drafter=done["drafter"], max_tokens=16)
    usual = done["generate"](done["target"], "Step 1.", drafter=done["load_drafter"]("uno", done["target"]), max_tokens=16)
    assert again.tokens == usual.tokens and again.stats.accepted_per_cycle == usual.stats.accepted_per_cycle


def test_the_readme_names_every_module_and_package():
    folder, text = REPOSITORY / "specdecode_nb", (REPOSITORY / "README.md").read_text()
    names = {f"`{p.stem}`" for p in folder.glob("[!_]*.py")} | {f"`{p.parent.name}/`" for p in folder.glob("*/__init__.py")}
    assert len(names) > 40 and not {name for name in names if name not in text}
