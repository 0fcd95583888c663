"""Commands on hostile input, each in a forked child of bounded time and memory; one line of JSON a case on stdout.

    python tests/hostile.py [PART OF A NAME ...]

``test_hostile`` runs this once. Notebooks are not executed: what reaches that point says ``executed`` and ends with status 0.
"""
from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import stat
import struct
import sys
import tempfile
import time
from pathlib import Path

os.environ |= {"SPECDECODE_BLAS": "reference", "MLX_ENABLE_TF32": "0", "HF_HUB_OFFLINE": "1"}
sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

from specdecode_nb import cli, decoder, drafters, targets  # noqa: E402, F401
from specdecode_nb.book import export, needs, notebooks  # noqa: E402, F401
from specdecode_nb.protocols import act4s  # noqa: E402, F401
import toy  # noqa: E402

SECONDS, BYTES = 60, 6 << 30
DEEP, MIDDLE = "[" * 100_000 + "]" * 100_000, '{"a":' * 500 + "1" + "}" * 500  # 500 levels: the reader takes them, what walks them later may not
A, B = "layers.0.mlp.up_proj.lora_a", "layers.0.mlp.up_proj.lora_b"


def tensors(header, body: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file of any header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


def one(dtype: str = "F32", shape=(2, 2), at=(0, 16)) -> dict:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(at)}


def twice(first: dict, second: dict) -> bytes:
    return f'{{"{A}":{json.dumps(first)},"{A}":{json.dumps(second)}}}'.encode()


HEADERS = {
    "overlapping": tensors({A: one(), B: one(at=(8, 24))}, bytes(24)), "beyond the file": tensors({A: one(at=(0, 10**12))}, bytes(16)),
    "negative": tensors(b'{"a":{"dtype":"F32","shape":[2,2],"data_offsets":[-16,0]}}'), "huge shape": tensors({A: one(shape=(2**62, 4), at=(0, 0))}),
    "empty and wide": tensors({A: one(shape=(0, 2**31), at=(0, 0))}), "shape of another size": tensors({A: one(shape=(3, 3))}, bytes(16)),
    "other dtype": tensors({A: one("F8_E4M3", at=(0, 4))}, bytes(4)), "unknown dtype": tensors({A: one("Q4")}, bytes(16)),
    "the same name, the same place": tensors(twice(one(), one()), bytes(16)), "the same name, two places": tensors(twice(one(), one(at=(16, 32))), bytes(32)),
    "deep": tensors(b"[" * 50_000 + b"]" * 50_000), "not JSON": tensors(b"hello"), "length beyond the file": tensors({}, length=10**9),
    "length beyond everything": tensors({}, length=2**64 - 1), "a number of 5000 digits": tensors(b'{"a":{"dtype":"F32","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,16]}}', bytes(16)),
    "a hole": tensors({A: one(), B: one(at=(32, 48))}, bytes(48)), "a thousand axes": tensors({A: one(shape=(1,) * 1000 + (4,))}, bytes(16)),
    "no name": tensors({"": one()}, bytes(16)), "a line break in a name": tensors({"a\nb\x1b[2J": one()}, bytes(16)),
    "deep metadata": tensors({"__metadata__": {"adapter": DEEP}, A: one(), B: one(at=(16, 32))}, bytes(32)), "metadata of numbers": tensors({"__metadata__": {"x": 1}, A: one()}, bytes(16)),
    "a depth of 4000 digits": tensors({"mtp.layers.0.mlp.gate_proj.weight": one(), "__metadata__": {"drafter": '{"depth":' + "9" * 4000 + "}"}}, bytes(16)),
    "a wide MTP layer": tensors({"mtp.layers.0.mlp.gate_proj.weight": one(shape=(2**31 + 5, 0), at=(0, 0)), "__metadata__": {"drafter": '{"depth":1}'}})}
ROWS = {"deep": DEEP, "500 levels": MIDDLE, "a key twice": '{"schema":1,"schema":1}', "NaN": '{"schema":NaN}', "6000 digits": '{"schema":' + "1" * 6000 + "}",
        "a number of 3000 digits": '{"schema":1,"act":"act4s","target":"t","provenance":{},"config":{"tokens":' + "1" * 3000 + '},"rows":[]}',
        "half a character": '{"schema":1,"act":"\\ud800","target":"t","provenance":{},"config":{},"rows":[]}', "half a character in a key": '{"\\udc00":1}',
        "a byte order mark": "\ufeff{}", "UTF-16": '{"schema":1}'.encode("utf-16"), "Latin-1": '{"é":1}'.encode("latin-1"), "nothing": ""}
PLACES = {"a pipe": "pipe", "/dev/zero": "/dev/zero", "/dev/full": "/dev/full", "/dev/urandom": "/dev/urandom", "/proc/self/pagemap": "/proc/self/pagemap",
          "/proc/kmsg": "/proc/kmsg", "a loop": "loop", "a long name": "n" * 5000, "a long path": "n/" * 3000, "outside": "../" * 40 + "etc/passwd", "a folder": "/etc",
          "a line break": "a\nb", "an escape": "\x1b[2Jx", "a socket": "socket"}
AUTO = json.dumps({"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}})
EVIL = "open('canary', 'w').write('x')\nclass Evil: pass\n"


def cases(here: Path):
    """(name, arguments, folder that may be written to) with the files that they name made in ``here``."""
    os.mkfifo(here / "pipe")
    os.symlink("loop", here / "loop")
    os.mknod(here / "socket", stat.S_IFSOCK | 0o600)
    good = json.loads((here / "toy" / "config.json").read_text())

    def model(name: str, **spoiled) -> str:
        folder = shutil.copytree(here / "toy", here / "models" / name)
        for file, what in spoiled.items():
            path = folder / file.replace("_json", ".json").replace("_safetensors", ".safetensors").replace("_py", ".py")
            path.unlink(missing_ok=True)
            if what is os.mkfifo:
                os.mkfifo(path)
            elif isinstance(what, Path):
                path.symlink_to(what)
            else:
                path.write_bytes(what if isinstance(what, bytes) else what.encode())
        return str(folder)

    def generate(target: str = "toy", *more: str) -> list[str]:
        return ["generate", "x", "--drafter", "random", "--max-tokens", "1", "--target", target, *more]

    yield "toy: it is right to begin with", generate(), None
    for name, text in ROWS.items():
        path = here / f"{name}.json"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        yield f"rows: {name}", ["run", "act4s", "-p", f"rows={path.name}"], None
        if name not in ("nothing",):
            yield f"config: {name}", generate(model(f"rows {name}", config_json=text)), None
    for name, path in PLACES.items():
        yield f"rows at {name}", ["run", "act4s", "-p", f"rows={path}"], None
        yield f"target at {name}", generate(path), None
        yield f"target to measure at {name}", ["run", "act4s", "-p", "measure=true", "-p", f"target={path}", "--out", "o"], None
        yield f"drafter at {name}", ["generate", "x", "--target", "toy", "--max-tokens", "1", "--drafter", path], None
        if name not in ("a line break", "an escape", "a folder"):
            yield f"results at {name}", ["run", "act1", "--out", path], None
            yield f"figures at {name}", ["figures", "act1", "--to", path], None
    for name, path in (("a line break", "re\nsults"), ("an escape", "re\x1b[2Jsults")):
        yield f"results at {name}", ["run", "act1", "--out", path], here / path
    for file in ("config_json", "tokenizer_json", "tokenizer_config_json", "model_safetensors", "model-2_safetensors", "special_tokens_map_json", "chat_template_json"):
        yield f"a pipe as {file}", generate(model(f"pipe {file}", **{file: os.mkfifo})), None
        yield f"/dev/zero as {file}", generate(model(f"zero {file}", **{file: Path("/dev/zero")})), None
    for key, value in {"num_hidden_layers": 10**9, "vocab_size": 10**12, "hidden_size": 10**9, "linear_conv_kernel_dim": 10**9, "num_attention_heads": 10**9,
                       "head_dim": 10**18, "full_attention_interval": 0, "eos_token_id": list(range(10**5)), "rms_norm_eps": 10**400}.items():
        yield f"config: {key} of {str(value)[:20]}", generate(model(f"config {key}", config_json=json.dumps(good | {key: value}))), None
    yield "code that a tokenizer names", generate(model("auto", tokenizer_config_json=AUTO, evil_py=EVIL)), None
    yield "code that a config names", generate(model("auto2", config_json=json.dumps(good | {"auto_map": {"AutoTokenizer": "evil.Evil"}, "model_file": "evil.py"}), evil_py=EVIL)), None
    yield "a module that a tokenizer names", generate(model("tool", tokenizer_config_json=json.dumps({"tool_parser_type": "..os", "eos_token": "<|end|>"}))), None
    for name, data in HEADERS.items():
        (here / f"{name}.safetensors").write_bytes(data)
        yield f"adapter: {name}", ["generate", "x", "--target", "toy", "--max-tokens", "1", "--drafter", f"./{name}.safetensors"], None
    with open(here / "sparse.safetensors", "wb") as file:
        file.write(tensors({A: one(shape=(10**11, 4), at=(0, 16 * 10**11))}))
        file.truncate(file.tell() + 16 * 10**11)
    yield "adapter: larger than the memory", ["generate", "x", "--target", "toy", "--max-tokens", "1", "--drafter", "./sparse.safetensors"], None
    right = json.loads((here / "dflash.json").read_text())
    for name, change in {"layers": {"num_hidden_layers": 10**9}, "heads": {"num_attention_heads": 10**12, "num_key_value_heads": 1}, "MLP": {"intermediate_size": 2**31},
                         "wider MLP": {"intermediate_size": 10**18}, "head": {"head_dim": 10**15}, "rope": {"rope_theta": 10**400}, "none": {}}.items():
        folder = here / f"dflash {name}"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(right | change))
        os.mkfifo(folder / "model.safetensors")
        yield f"dflash: {name}", ["generate", "x", "--target", "toy", "--max-tokens", "1", "--drafter", str(folder)], None
    for words in (["-k", "9" * 20], ["-k", "9" * 5000], ["--seed", "9" * 40], ["--temperature", "nan"], ["--temperature", "1e999"], ["--max-tokens", "9" * 30], ["--stop", ""],
                  ["--drafter", "\x1b[2J"]):
        yield f"generate {' '.join(words)[:30]!a}", generate("toy", *words), None
    yield "a prompt beyond the context", ["generate", "x " * 60_000, "--target", "toy", "--drafter", "random"], None
    for value in ("block_sizes=" + DEEP[:100_000], "block_sizes=[" + "9" * 6000 + "]", "tokens=" + "9" * 6000, "tokens=\uff11", "repeats=1\n"):
        yield f"parameter {value[:24]!a}", ["run", "act4s", "-p", "measure=true", "-p", "target=/nowhere", "-p", value], None


def attempt(words: list[str], here: Path) -> tuple[int, str, str, float, float]:
    """Exit status (99: an exception came through; negative: a signal), stdout, stderr, seconds of processor time, MB of memory."""
    out, err, answers = (tempfile.TemporaryFile("w+") for _ in range(3))
    answers.write("y\n" * 9)  # to whatever is asked
    answers.seek(0)
    child = os.fork()
    if not child:
        status = 99
        try:
            for number, file in enumerate((answers, out, err)):
                os.dup2(file.fileno(), number)
            resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
            resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
            signal.alarm(10 * SECONDS)
            notebooks.run = lambda act, params, out, command: print("executed") or []
            export.write_up = lambda *_: print("executed") or []
            status = cli.main(words)
        except SystemExit as error:
            status = error.code
        except BaseException:
            import traceback

            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    _, status, used = os.wait4(child, 0)
    for file in (out, err):
        file.seek(0)
    return os.waitstatus_to_exitcode(status), out.read(), err.read(), round(used.ru_utime + used.ru_stime, 1), round(used.ru_maxrss / 1024)


def listing(folder: Path) -> set:
    return {(str(p), s.st_size, s.st_mtime_ns) for p in folder.rglob("*") for s in [p.lstat()] if not p.is_dir() or p.is_symlink()} | {(str(p),) for p in folder.rglob("*") if p.is_dir()}


def prepare(here: Path) -> None:
    """The right model of these cases, made in a child, since MLX does not go through a fork once it has computed."""
    child = os.fork()
    if not child:
        import mlx.core as mx
        from mlx.utils import tree_flatten
        from test_loading import VOCAB, write_tokenizer
        from specdecode_nb.dflash import DFlashConfig
        from specdecode_nb.dflash_files import config_file

        folder = here / "toy"
        folder.mkdir()
        mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(toy.stock(seed=4, vocab=VOCAB).parameters())), metadata={"format": "mlx"})
        (folder / "config.json").write_text(json.dumps(toy.config(vocab=VOCAB)))
        write_tokenizer(folder)
        (here / "dflash.json").write_text(json.dumps(config_file(DFlashConfig(64, 96, 1, 4, 2, 16, VOCAB, 1e-6, 1e5, 4, 4, (0, 2), 1))))
        os._exit(0)
    os.waitpid(child, 0)


def main() -> None:
    only = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="hostile-") as name:
        here = Path(name).resolve()
        os.chdir(here)
        prepare(here)
        for case, words, allowed in list(cases(here)):
            if only and not any(part in case for part in only):
                continue
            before, began = listing(here), time.monotonic()
            status, out, err, cpu, memory = attempt(words, here)
            new = sorted({entry[0] for entry in listing(here) ^ before} - {str(p) for p in ([allowed, *allowed.rglob("*")] if allowed else [])})
            print(json.dumps({"case": case, "status": status, "out": out, "err": err, "cpu": cpu, "seconds": round(time.monotonic() - began, 1), "mb": memory, "written": new}), flush=True)


if __name__ == "__main__":
    main()
