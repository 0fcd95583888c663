"""Commands killed at random moments, ended, and without room on the disk: a few of each here; `python tests/killing.py 50` does many."""
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "killing.py"
COUNT = os.environ.get("KILLS", "3")  # of each kind


@pytest.mark.parametrize("kinds", [("measure",), ("run", "figures"), ("train",), ("term", "full")], ids="-".join)
def test_nothing_is_lost(kinds):
    done = subprocess.run([sys.executable, PROGRAM, COUNT, *kinds], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "" and done.stdout.count(" 0 losses") == len(kinds), done.stdout + done.stderr
    assert done.stdout.count(f": {COUNT} ") == len(kinds)


LOOKS = """
import random, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import killing
def lost(kind, variant, name, data, says):
    driver = killing.Driver(kind, Path(sys.argv[2]) / says.replace(" ", "-"), random.Random(0))
    folder = driver.fresh("case")
    for part in ("tmp", "out", "committed"):
        (folder / part).mkdir(exist_ok=True)
    (folder / "said").write_text("")
    driver.look(variant, folder, {"a.csv": b"new"}, {"a.csv": b"old"})
    path = (driver.root if says == "a committed file changed" else folder) / name
    path.write_bytes(data)
    try:
        driver.look(variant, folder, {"a.csv": b"new"}, {"a.csv": b"old"})
    except killing.Lost as error:
        assert says in str(error), error
    else:
        raise SystemExit(f"{says}: not seen")
lost("run", "run", "out/a.csv", b"ne", "neither the old file nor the new one")
lost("run", "run", "pyproject.toml", b"x", "a committed file changed")
lost("measure", "measure", "told", b"{}", "1 rows were finished, and these are left: 0")
lost("train", "uno", "out/uno.safetensors", bytes(4), "uno.safetensors is torn")
lost("term", "run", "out/.a.csv.abcdefgh.writing", b"", ".a.csv.abcdefgh.writing was left")
lost("term", "run", "tmp/specdecode-x", b"", "there is left")
lost("run", "run", "traceback", b"Traceback", "Traceback")
"""


def test_the_driver_sees_losses(tmp_path):
    done = subprocess.run([sys.executable, "-c", LOOKS, PROGRAM.parent, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


READ_ONLY = """
import ctypes, os, sys
from specdecode_nb.cli import main
from specdecode_nb.book import notebooks
if os.geteuid() == 0:  # the permission bits of a folder bind root once it has given this capability up
    class Header(ctypes.Structure): _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]
    class Data(ctypes.Structure): _fields_ = [(n, ctypes.c_uint32) for n in ("effective", "permitted", "inheritable")]
    header, data, libc = Header(0x20080522, 0), (Data * 2)(), ctypes.CDLL(None, use_errno=True)
    assert libc.capget(ctypes.byref(header), data) == 0
    data[0].effective &= ~0b110
    assert libc.capset(ctypes.byref(header), data) == 0
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("place, closed", [("out", "out"), ("out/new/folder", "out"), ("out", "out/figures"), ("out", "out/figures/tables")])
def test_a_folder_without_permission_is_refused_before_anything_runs(tmp_path, place, closed):
    if sys.platform != "linux" and os.geteuid() == 0:
        pytest.skip("permissions bind root on Linux only")
    (tmp_path / closed).mkdir(parents=True)
    (tmp_path / closed).chmod(0o555)
    before = sorted(tmp_path.rglob("*"))
    try:
        done = subprocess.run([sys.executable, "-c", READ_ONLY, "run", "act4s", "-p", "measure=true", "--out", place], cwd=tmp_path, capture_output=True, text=True,
                              env=os.environ | {"PYTHONPATH": str(PROGRAM.parents[1])})
    finally:
        (tmp_path / closed).chmod(0o755)
    assert done.returncode == 2 and "Permission denied" in done.stderr and done.stderr.count("\n") == 1 and sorted(tmp_path.rglob("*")) == before, done.stderr
