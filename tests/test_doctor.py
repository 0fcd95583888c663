"""What doctor finds: rows, capabilities that are tried, drafters by target, packaging traps in invented environments."""
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import QUIET
from specdecode_nb import doctor, drafters
from specdecode_nb.errors import BadInput


def test_rows():
    rows = doctor.examine()
    assert all(len(row) == 3 and all(isinstance(field, str) for field in row) for row in rows)
    items = [row[0] for row in rows]
    assert {"machine", "python", "mlx", "mlx-lm", "device", "BLAS", "TF32", "priority", "load", "power and heat", "timing", "drafters"} <= set(items)
    assert len(set(items)) == len(items) and not [item for item in items if item.startswith("trap: mlx")]
    assert ("timing", "quiet", "captions would carry no mark") in rows


def test_a_degraded_machine_is_told_with_its_caption(monkeypatch):
    found = doctor._condition({"when": "start", **QUIET, "nice": 10, "other_cores": 1.5, "power": {"profile": "low-power"}})
    assert found[0][1] == "nice 10" and "1.50 cores" in found[1][2] and found[2][1] == "profile low-power"
    assert found[3] == ("timing", "degraded", "captions would say: measured on a degraded machine: nice 10, other work on 1.5 cores at the start, power profile low-power")
    found = doctor._condition({"when": "start", "nice": 0})
    assert [row[1] for row in found] == ["nice 0", "not readable", "not readable", "quiet"] and "by hand" in found[2][2]


# --- capabilities ---

def test_the_names_that_the_sources_take_are_all_there():
    assert {("mlx.core", "argmax"), ("mlx.core", "random.key"), ("mlx.nn", "RMSNorm"), ("mlx_lm.models", "qwen3_5"), ("mlx_lm.models.cache", "KVCache")} <= set(doctor.needed())
    assert doctor._names() == [] and doctor._abilities() == []


def test_a_name_that_a_library_has_dropped_is_told(monkeypatch):
    import mlx_lm.models.gated_delta as module

    monkeypatch.delattr(module, "normalize_qk")
    monkeypatch.setattr(doctor, "needed", lambda given=doctor.needed(): [*given[:3], ("mlx.core", "fast.no_such_kernel"), *given[3:]])
    found = {item: value for item, value, _ in doctor._names()}
    assert found == {"trap: mlx lacks": "mlx.core.fast.no_such_kernel", "trap: mlx-lm lacks": "mlx_lm.models.gated_delta.normalize_qk"}
    assert [row[0] for row in doctor.examine() if row[0].startswith("trap: mlx")] == ["trap: mlx lacks", "trap: mlx-lm lacks"]


def test_a_library_that_behaves_otherwise_is_told(monkeypatch):
    import mlx.core as mx
    from mlx_lm.models.cache import KVCache
    from specdecode_nb.gdn import RecurrentCache

    save = mx.save_safetensors
    monkeypatch.setattr(mx, "save_safetensors", lambda path, arrays, metadata=None: save(path, arrays))
    monkeypatch.setattr(RecurrentCache, "advance", lambda self, n: None)
    found = {item: note for item, _, note in doctor._abilities()}
    assert set(found) == {"trap: metadata of safetensors files", "trap: Qwen3.5 over undoable caches"} and "metadata is gone" in found["trap: metadata of safetensors files"]
    monkeypatch.undo()
    monkeypatch.setattr(KVCache, "update_and_fetch", lambda self, keys, values, extra: None)  # a signature that has changed
    assert [item for item, *_ in doctor._abilities()] == ["trap: Qwen3.5 over undoable caches"]


# --- drafters ---

def test_drafters_are_listed_by_target(monkeypatch, tmp_path):
    def load(name, target):
        if name == "mtp":
            raise BadInput("The adapter was trained for another target.")

    (tmp_path / "there").touch()
    monkeypatch.setattr(drafters, "load_drafter", load)
    monkeypatch.setattr(drafters, "place", lambda name, target: tmp_path / ("gone" if name == "dflash" else "there"))
    assert doctor._drafters() == ("drafters", "tiny-hybrid: uno", "tiny-hybrid has no dflash; mtp does not load: The adapter was trained for another target.")


def test_the_committed_drafters_load():
    _, found, note = doctor._drafters()
    assert found.startswith("tiny-hybrid: uno") and "does not load" not in note


def test_a_target_that_does_not_load_is_a_row(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor.paths, "models", lambda: tmp_path)
    assert doctor._drafters()[1] == "no target loads" and "tiny-hybrid" in doctor._drafters()[2]


# --- packaging ---

def test_traps(monkeypatch):
    def traps(**versions):
        monkeypatch.setattr(doctor, "installed", lambda name: versions.get(name.replace("-", "_")))
        return {item: (value, note) for item, value, note in doctor._traps()}

    assert traps(mlx="0.32.4", mlx_cpu="0.32.4") == {} or not shutil.which("g++")
    assert "mlx-cpu 0.32.3" in traps(mlx="0.32.4", mlx_cpu="0.32.3")["trap: versions"][0]
    assert "no mlx" in traps(mlx_lm="0.32.2")["trap: no backend"]
    assert "mlx-cuda-13" in traps(mlx="0.32.4", mlx_cpu="0.32.4", mlx_cuda_13="0.32.4")["trap: two backends"][0]
    assert "trap: old pip" in traps(mlx="0.32.4", mlx_cpu="0.32.4", pip="20.3.4")
    if sys.platform == "linux":
        monkeypatch.setenv("PATH", "")
        assert "trap: no C++ compiler" in traps(mlx="0.32.4", mlx_cpu="0.32.4")


def test_a_shadowed_mlx_is_found(tmp_path):
    (tmp_path / "mlx.py").write_text("")
    code = "from specdecode_nb import condition, doctor; condition.SAMPLE_SECONDS = 0; print(*[row[0] for row in doctor.examine()], sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(Path(doctor.__file__).parents[1])}, capture_output=True, text=True, timeout=120)
    assert "trap: shadow" in done.stdout.splitlines(), done.stderr


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Puts the metadata and files of an invented distribution on the path; whoever imports its modules fails."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(name, commands=(), **files):
        info = tmp_path / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[console_scripts]\n" + "".join(f"{c} = nothing:main\n" for c in commands))
        package = tmp_path / name.replace("-", "_")
        package.mkdir(exist_ok=True)
        for module, text in files.items():
            (package / f"{module}.py").write_text(f"raise SystemExit('imported')\n{text}\n")
        (info / "RECORD").write_text("".join(f"{package.name}/{m}.py,,\n" for m in (*files, "gone")))

    return make


def test_two_distributions_of_one_command_are_told_and_one_alone_is_not(install):
    before = doctor._commands()
    install("dflash", ["dflash"])
    install("invented-one", ["specdecode-nb-invented", "own"])
    assert doctor._commands() == before
    install("dflash-mlx", ["dflash", "dflash-benchmark"])
    install("Invented_Two", ["specdecode-nb-invented"])
    found = {item: value for item, value, _ in doctor._commands() if (item, value, _) not in before}
    assert found == {"trap: command dflash": "dflash, dflash-mlx", "trap: command specdecode-nb-invented": "invented-one, invented-two"}


def test_a_registry_that_does_not_name_a_target_is_told_without_importing_it(install):
    assert doctor._registries() == []
    install("dflash", runtime="MODELS = {'other': 'x'}")
    assert doctor._registries() == []  # no registry
    install("dflash-mlx", registry="SPECS = (('Qwen3.5-4B',), 'a')\nDRAFT_REGISTRY: dict = {n: SPECS[1] for n in SPECS[0]}", broken="def (")
    (item, value, note), = doctor._registries()
    assert (item, value) == ("trap: registry of dflash-mlx", "dflash-mlx 1.0") and "does not name smollm2-135m, tiny-hybrid" in note


def test_a_registry_that_names_every_target_is_fine(install):
    install("dflash-mlx", registry="DRAFT_REGISTRY = {'tiny-hybrid': 'a', 'smollm2-135m': 'b'}")
    assert doctor._registries() == []
