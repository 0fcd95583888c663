"""The parameters of every Act: typed, ranged, and checked before a kernel starts.

A notebook's ``parameters`` cell repeats the defaults declared here, as literals; the build refuses a difference.
"""
from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, field, replace
from typing import Any

from .. import paths
from ..errors import BadInput, nearest

DRAFTERS = ("uno", "ngram", "random")
DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class Param:
    """One parameter. ``kind`` is bool, int, float, str or list (of whole numbers); ranges include their ends."""

    name: str
    kind: type
    default: Any
    help: str
    unit: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()

    def accepts(self) -> str:
        """What fits, in words: "a whole number from 1 to 4096"."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        limits = f" from {self.low} to {self.high}" if self.high is not None else f" of {self.low} or more" if self.low is not None else ""
        return {list: "whole numbers, as in 1,2,4,", bool: "true or false", int: "a whole number", float: "a number", str: "text"}[self.kind] + limits

    def describe(self) -> str:
        """One line for ``run ACT --help``."""
        unit = f" [{self.unit}]" if self.unit and self.unit not in self.help else ""
        return f"{self.name}={text_of(self.default)}  {self.help}{unit}; {self.accepts()}"

    def coerce(self, text: str) -> Any:
        """A value from command-line text, by the declared kind and never by the look of the text. Raises BadInput."""
        stripped = text.strip()
        try:
            if self.kind is bool:
                value = {"true": True, "false": False}[stripped.lower()]
            elif self.kind is int:
                value = whole(stripped)
            elif self.kind is float:
                value = float(stripped)
            elif self.kind is list:
                items = json.loads(stripped) if stripped.startswith("[") else [whole(item.strip()) for item in stripped.split(",")]
                value = items if isinstance(items, list) else None
            else:
                value = text
        except (ValueError, KeyError, RecursionError):
            raise self.refuse(text) from None
        return self.check(value)

    def check(self, value: Any) -> Any:
        """``value`` itself if it has the declared kind and range; a plain JSON type only. Raises BadInput."""
        if self.kind is list:
            if type(value) is not list or not value or any(type(item) is not int for item in value):
                raise self.refuse(value)
            if len(set(value)) < len(value):
                raise BadInput(f"{self.name} is {text_of(value)}, which repeats a value; name each once.")
        elif type(value) is not self.kind and not (self.kind is float and type(value) is int):
            raise self.refuse(value)
        for item in value if self.kind is list else [value]:
            if isinstance(item, float) and not math.isfinite(item):
                raise self.refuse(value)
            outside = self.low is not None and item < self.low or self.high is not None and item > self.high
            if outside and not isinstance(item, bool):
                raise BadInput(f"{self.name} is {text_of(value)}, but it must be {self.accepts()}.")
        if self.choices and value not in self.choices:
            raise BadInput(f"There is no {self.name} {value!r}{nearest(value, self.choices)}; choose {', '.join(self.choices)}.")
        return value

    def refuse(self, value: Any) -> BadInput:
        return BadInput(f"{self.name} is {value!r}, but it must be {self.accepts()}.")


def whole(text: str) -> int:
    """Digits with a sign, nothing else: no 1_000, 0x10, 1e3 or 007."""
    if str(int(text)) != text.removeprefix("+"):
        raise ValueError(text)
    return int(text)


def text_of(value: Any) -> str:
    """A value as one would type it after ``-p name=``."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def targets() -> list[str]:
    """Targets in this repository: those with weights and those with measured rows."""
    folders = [p for base in (paths.models(), paths.data() / "measured") if base.is_dir() for p in base.iterdir() if p.is_dir()]
    return sorted({p.name for p in folders})


def check_model(name: str, value: str, known: tuple[str, ...] | list[str]) -> None:
    """A known name, a hub id or an existing path, of a target a folder with its config.json. Raises BadInput with the nearest name."""
    path = os.path.expanduser(value)
    if value in known or name != "target" and ("/" in value or os.path.exists(path)):
        return
    if os.path.exists(path) or value.startswith(("/", "~", ".")):
        if not os.path.isfile(os.path.join(path, "config.json")):
            raise BadInput(f"The {name} {value!r} is no folder with a config.json; choose {', '.join(known)}, or the folder of a model.")
    elif not paths.HUB_ID.fullmatch(value):
        raise BadInput(f"There is no {name} {value!r}{nearest(value, known)}; choose {', '.join(known)}, or give a path or hub id.")


@dataclass(frozen=True)
class Act:
    """What can be asked of an Act. ``measure`` names the function that makes its rows, "module:function", "" for none.

    ``parts`` names further measurements of the same Act: what ``part=NAME`` measures, into a row file of its own.
    ``reduced`` holds the values that ``quick=true`` stands for where a parameter is not given.
    ``title`` and ``question`` are those of an Act of our own, without published facts; a published one has them in its facts.
    """

    id: str
    params: tuple[Param, ...]
    measure: str = ""
    reduced: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, str] = field(default_factory=dict)
    title: str = ""
    question: str = ""

    def measuring(self, params: dict[str, Any]) -> tuple[str, str]:
        """The act id of the row file that these parameters make, and the function that makes it."""
        part = params.get("part")
        return (f"{self.id}_{part}", self.parts[part]) if part in self.parts else (self.id, self.measure)

    @property
    def row_files(self) -> tuple[str, ...]:
        """The act ids of the row files that this Act's page draws."""
        return (self.id, *(f"{self.id}_{part}" for part in self.parts))

    @property
    def defaults(self) -> dict[str, Any]:
        return {p.name: p.default for p in self.params}

    def param(self, name: str) -> Param:
        for p in self.params:
            if p.name == name:
                return p
        names = [p.name for p in self.params]
        if not names:
            raise BadInput(f"{self.id} has no parameters; leave {name!r} out.")
        raise BadInput(f"{self.id} has no parameter {name!r}{nearest(name, names)}; its parameters are {', '.join(names)}.")

    def resolve(self, given: dict[str, Any]) -> dict[str, Any]:
        """All parameters, ``given`` ones checked and the others at their default. Raises BadInput."""
        checked = {name: self.param(name).check(value) for name, value in given.items()}
        values = self.defaults | (self.reduced if checked.get("quick") else {}) | checked
        if "target" in values:
            check_model("target", values["target"], targets() or ["tiny-hybrid"])
        if "drafter" in values:
            check_model("drafter", values["drafter"], DRAFTERS)
        return values

    def parse(self, assignments: list[str]) -> dict[str, Any]:
        """``name=value`` texts as typed values. Raises BadInput."""
        given: dict[str, Any] = {}
        for text in assignments:
            name, sign, value = text.partition("=")
            if not sign:
                raise BadInput(f"The parameter {text!r} has no value; write it as name=value.")
            if name in given:
                raise BadInput(f"The parameter {name!r} is given twice; give it once.")
            given[name] = self.param(name).coerce(value)
        return given


MEASURED = (
    Param("target", str, "tiny-hybrid", "model that decides every token: a name, folder or hub id"),
    Param("drafter", str, "uno", "who proposes: uno, ngram, random, or the path of an adapter"),
    Param("block_sizes", list, [1, 2, 4, 8, 16], "block widths K to measure", "positions", 1, 64),
    Param("tokens", int, 128, "new tokens a prompt", "tokens", 1, 4096),
    Param("repeats", int, 2, "passes over the prompts, arms interleaved", "", 1, 100),
    Param("prompts", int, 27, "prompts of the suite, taken so that few still cover every category", "", 1, 27),
    Param("dtype", str, "float32", "number format of the target", choices=DTYPES),
    Param("part", str, "sweep", "what to measure: the sweep over widths, or the rest (controls, policies, lengths, contexts)", choices=("sweep", "rest")),
    Param("rest_prompts", int, 9, "prompts of the controls and of the lengths, part=rest", "", 1, 27),
    Param("policy_prompts", int, 18, "prompts of the policies, part=rest", "", 1, 27),
    Param("rest_repeats", int, 1, "passes over the prompts, part=rest", "", 1, 100),
    Param("lengths", list, [128, 256, 512], "new tokens a prompt, varied with the prompts as they are, part=rest", "tokens", 1, 4096),
    Param("contexts", list, [512, 2048, 8192], "prompt lengths, varied with the new tokens as they are, part=rest", "tokens", 16, 32000),
    Param("measure", bool, False, "measure again; otherwise draw from recorded rows"),
    Param("quick", bool, False, "a short measurement whose captions say that it is one"),
    Param("rows", str, "", "row file to draw from; empty for the committed one of the target"),
)
UNDO = (
    *MEASURED[:2],
    Param("block_sizes", list, [2, 4, 8], "block widths K to decode with, by each way to undo", "positions", 1, 64),
    Param("tokens", int, 48, "new tokens a prompt", "tokens", 1, 4096),
    Param("repeats", int, 2, "passes over the prompts, arms interleaved", "", 1, 100),
    Param("prompts", int, 27, "prompts of the suite, taken so that few still cover every category", "", 1, 27),
    Param("widths", list, [2, 3, 5, 9, 17], "rows of the verify forward whose commits are timed, for every accepted count", "rows", 2, 65),
    Param("commits", int, 15, "timed commits of each width, count and way to undo", "", 1, 1000),
    *(p for p in MEASURED if p.name in ("dtype", "measure", "quick", "rows")),
)
DECOUPLED = (
    *MEASURED[:2],
    Param("drafts", list, [4, 6, 8, 16], "draft widths D of the diagnostic; 4 must be one", "positions", 4, 16),
    Param("tokens", int, 64, "new tokens a prompt", "tokens", 1, 4096),
    Param("repeats", int, 2, "passes over the prompts, arms interleaved", "", 1, 100),
    Param("cost_repeats", int, 3, "timings of every forward at each prompt's context", "", 1, 100),
    Param("prompts", int, 27, "prompts of the suite, taken so that few still cover every category", "", 1, 27),
    *(p for p in MEASURED if p.name in ("dtype", "measure", "quick", "rows")),
)
DRAWING = ("target", "rows", "measure", "part")  # the parameters that matter where nothing is measured
BLOCKS = (
    MEASURED[0],
    Param("blocks", list, [4, 5, 8, 16], "block widths of the block-diffusion drafter, the anchor counted", "rows", 2, 64),
    Param("tokens", int, 128, "new tokens a prompt", "tokens", 1, 4096),
    Param("repeats", int, 1, "passes over the prompts, arms interleaved", "", 1, 100),
    Param("prompts", int, 27, "prompts of the suite, taken so that few still cover every category", "", 1, 27),
    *(p for p in MEASURED if p.name == "dtype"),
    Param("part", str, "sweep", "what to measure: the sweep over blocks and rules, the rest (precisions, contexts, lengths, modified targets, loads), or peers",
          choices=("sweep", "rest", "peers")),
    Param("block", int, 8, "block width, part=rest and part=peers", "rows", 2, 64),
    Param("rest_prompts", int, 4, "prompts of every section but the contexts, part=rest", "", 1, 27),
    Param("contexts", list, [512, 2048, 8192, 26000], "prompt lengths, varied with the new tokens as they are, part=rest", "tokens", 16, 32000),
    Param("lengths", list, [64, 256, 1024], "new tokens a prompt, varied with the prompts as they are, part=rest", "tokens", 1, 4096),
    *(p for p in MEASURED if p.name in ("measure", "quick", "rows")),
)
SAMPLED = (
    MEASURED[0],
    Param("tokens", int, 64, "new tokens a prompt", "tokens", 1, 4096),
    Param("prompts", int, 27, "prompts of the suite, taken so that few still cover every category", "", 1, 27),
    Param("chain_tokens", int, 12000, "tokens drawn for each count on the table, whose probabilities are known", "tokens", 500, 200000),
    *(p for p in MEASURED if p.name in ("dtype", "measure", "quick", "rows")),
)
IDENTITY = (
    MEASURED[0],
    Param("tokens", int, 48, "new tokens a prompt", "tokens", 2, 4096),
    Param("prompts", int, 4, "prompts of the audit and of the price", "", 1, 27),
    Param("identity_tokens", int, 4000, "speculative tokens to compare bit for bit on the reference BLAS, mostly of the toy; the claim wants 100000", "tokens", 1, 10**7),
    Param("identity_prompts", int, 2, "prompts of the target among them, and of exact decoding", "", 1, 27),
    Param("widths", list, [2, 4, 8, 16], "block widths, where an arm can take them", "rows", 2, 16),
    Param("repeats", int, 1, "passes over the prompts of the price", "", 1, 100),
    *(p for p in MEASURED if p.name in ("measure", "quick", "rows")),
)
TRAINED = (
    MEASURED[0],
    Param("steps", int, 400, "training steps of a launch", "steps", 1, 100000),
    Param("rate", float, 6e-4, "learning rate, after a linear warm-up of 20 steps", "", 1e-7, 1.0),
    Param("draft_rows", int, 192, "draft rows a step: blocks of K hold K - 1 of them", "rows", 8, 4096),
    Param("windows", int, 128, "windows of training text", "windows", 2, 4096),
    Param("batches", int, 4, "batches of 64 held-out blocks that launches are judged on, from 6 windows each", "batches", 1, 64),
    Param("tokens", int, 48, "new tokens a prompt when what was trained decodes", "tokens", 8, 4096),
    Param("repeats", int, 1, "passes over the prompts, arms interleaved", "", 1, 100),
    Param("prompts", int, 15, "prompts of the suite, taken so that few still cover every category", "", 1, 27),
    *(p for p in MEASURED if p.name in ("measure", "quick", "rows")),
)
BRIEF = {"steps": 20, "draft_rows": 96, "windows": 16, "batches": 1, "tokens": 8, "prompts": 2}  # what quick=true stands for where training is measured


def training(act: str, defaults: dict[str, Any], /, *more: Param, **reduced) -> Act:
    """An Act that trains: :data:`TRAINED` with its own defaults and further parameters."""
    params = [replace(p, default=defaults.get(p.name, p.default)) for p in TRAINED]
    return Act(act, (*params[:2], *more, *params[2:]), f"specdecode_nb.protocols.{act}:measure", BRIEF | reduced)


START = Param("start_steps", int, 400, "steps of the launch at K=4 that all others go on from", "steps", 1, 100000)
UNCERTAINTY = (
    *MEASURED[:2],
    Param("windows", int, 810, "windows of each of the three strata; the criteria ask for 512", "windows", 20, 100_000),
    Param("seed", int, 20260908, "of the documents, the noise, the rates and the split", "", 0, 2**31 - 1),
    *(p for p in MEASURED if p.name in ("dtype", "measure", "quick", "rows")),
)
REVERSED = (
    MEASURED[0],
    Param("seeds", int, 3, "launches of every arm; one of them in every arm shares text, noise and first adapter", "", 1, 100),
    Param("steps", int, 120, "training steps of a launch; 600 as published", "steps", 1, 100000),
    Param("batch", int, 4, "windows of a step", "", 1, 1024),
    Param("lr", float, 1e-3, "learning rate after 20 steps of warm-up", "", 1e-7, 1.0),
    Param("adapter", str, "all", "what the adapter is put on: the attention layer, as published, or all matrices of all layers", choices=("attention", "all")),
    Param("windows", int, 128, "held-out windows of 16 clean and 32 noisy rows", "", 3, 100000),
    Param("train_windows", int, 1500, "windows to train on", "", 4, 1000000),
    Param("extra", bool, False, "two more arms: the shuffled control exactly as published, and a gate that starts at one half"),
    Param("part", str, "conditioned", "what to measure: the arms with a timestep conditioner, as published, or without one", choices=("conditioned", "bare")),
    *(p for p in MEASURED if p.name in ("measure", "quick", "rows")),
)
OVERFIT = (
    MEASURED[0],
    Param("seeds", int, 5, "launches of each of the four runs", "", 1, 100),
    Param("share", float, 1.0, "share of the published training steps of each run, 60 or 150", "", 0.01, 1.0),
    Param("draws", int, 8, "noisy copies of the batch that rows are counted on", "", 2, 100),
    Param("lr", float, 6e-3, "learning rate; the published one is not recorded", "", 1e-6, 1.0),
    *(p for p in MEASURED if p.name in ("measure", "quick", "rows")),
)
MASKED = (
    MEASURED[0],
    Param("seeds", int, 1, "launches of each arm", "", 1, 100),
    Param("steps", int, 250, "training steps of the run without a conditioner; 2500 as published", "steps", 2, 100000),
    Param("bias_steps", int, 60, "training steps of the runs that compare sizes of the timestep bias", "steps", 2, 100000),
    Param("lr", float, 1e-3, "learning rate; published for the large target: 1e-4", "", 1e-6, 1.0),
    Param("windows", int, 12, "held-out windows that launches are judged on", "", 1, 1000),
    Param("prompts", int, 6, "of them, those whose canvas is sampled", "", 1, 1000),
    *(p for p in MEASURED if p.name in ("measure", "quick", "rows")),
)
SYMBOLS = (
    MEASURED[0],
    Param("seeds", int, 3, "replicates of the comparison of semantic (E) against permuted states (D) and of the second pass, each with an alphabet, text order and held-out windows of its own", "", 1, 100),
    Param("full", int, 1, "of these seeds, how many run the other conditions (A to C) too", "", 0, 100),
    Param("steps", int, 100, "training steps of a launch of stage 2, which is judged on held-out text", "steps", 1, 100000),
    Param("batch", int, 4, "windows of a step", "", 1, 1024),
    Param("lr", float, 1e-3, "learning rate after 20 steps of warm-up", "", 1e-7, 1.0),
    Param("heart_steps", int, 150, "training steps of a launch of stage 1, which learns one batch by heart", "steps", 1, 100000),
    Param("windows", int, 64, "held-out windows of each seed, 16 clean and 32 canvas rows", "", 3, 100000),
    Param("train_windows", int, 1500, "windows to train on", "", 16, 1000000),
    Param("part", str, "stages", "what to measure: the three stages, or the decisive launches again without a timestep conditioner", choices=("stages", "bare")),
    *(p for p in MEASURED if p.name in ("measure", "quick", "rows")),
)
ROWS_ONLY = tuple(p for p in MEASURED if p.name in ("target", "rows"))

ACTS: dict[str, Act] = {name: Act(name, ROWS_ONLY) for name in paths.ACTS} | {
    "act1": Act("act1", OVERFIT, "specdecode_nb.protocols.act1:measure", {"seeds": 1, "share": 0.15, "draws": 2}),
    "act2": Act("act2", REVERSED, "specdecode_nb.protocols.act2:measure", {"seeds": 1, "steps": 20, "windows": 16, "train_windows": 100},
                {"bare": "specdecode_nb.protocols.act2:bare"}),
    "act3": Act("act3", MASKED, "specdecode_nb.protocols.act3:measure", {"steps": 6, "bias_steps": 2, "windows": 1, "prompts": 1}),
    "act4n": Act("act4n", SYMBOLS, "specdecode_nb.protocols.act4n:measure",
                 {"seeds": 1, "steps": 8, "heart_steps": 8, "windows": 8, "train_windows": 100}, {"bare": "specdecode_nb.protocols.act4n:bare"}),
    "act4s": Act("act4s", MEASURED, "specdecode_nb.protocols.act4s:measure",
                 {"tokens": 64, "repeats": 1, "prompts": 9, "block_sizes": [1, 2, 4, 8], "rest_prompts": 3, "policy_prompts": 3, "lengths": [64, 128],
                  "contexts": [512, 2048]}, {"rest": "specdecode_nb.protocols.act4s_rest:measure"}),
    "rprm1": Act("rprm1", UNCERTAINTY, "specdecode_nb.protocols.rprm1:measure", {"windows": 40}),
    "act4u2": Act("act4u2", UNDO, "specdecode_nb.protocols.act4u2:measure",
                  {"tokens": 24, "repeats": 1, "prompts": 9, "block_sizes": [2, 4], "widths": [3, 5, 9], "commits": 5}),
    "act4u6": Act("act4u6", DECOUPLED, "specdecode_nb.protocols.act4u6:measure", {"tokens": 32, "repeats": 1, "cost_repeats": 1, "prompts": 9}),
    "dflash": Act("dflash", BLOCKS, "specdecode_nb.protocols.dflash:measure",
                  {"tokens": 48, "prompts": 9, "blocks": [4, 5, 16], "rest_prompts": 2, "contexts": [512, 2048], "lengths": [32, 128]},
                  {"rest": "specdecode_nb.protocols.dflash_rest:measure", "peers": "specdecode_nb.protocols.peers:measure"}),
    "act5": Act("act5", IDENTITY, "specdecode_nb.protocols.act5:measure",
                {"tokens": 8, "prompts": 3, "identity_tokens": 600, "identity_prompts": 1, "widths": [2, 8]},
                title="Act V: never wrong", question="Is drafted decoding the target's own decoding bit for bit, where it must be, where it can only be audited, and on any backend if asked?"),
    "act6": Act("act6", SAMPLED, "specdecode_nb.protocols.act6:measure", {"tokens": 24, "prompts": 9, "chain_tokens": 2500}, title="Act VI: drafting where tokens are drawn",
                question="Does drafting keep its speed, and its promise, when the target samples: which rule accepts most, and what does it cost that a seed gives the same tokens with any drafter?"),
    "act4u": training("act4u", {}),
    "act4u3": training("act4u3", {"steps": 1600}),
    "act4u4": training("act4u4", {}, START, start_steps=20),
    "act4u5": training("act4u5", {"steps": 60, "windows": 64}, replace(START, default=300), Param("short_steps", int, 10, "steps after which perturbed launches are compared with the control", "steps", 1, 1000),
                       Param("launches", int, 5, "identical launches of the control; of K=8 half as many, rounded up", "", 2, 50),
                       Param("seeds", int, 3, "further seeds, and places where rounding is put in", "", 2, 50), steps=2, start_steps=2, short_steps=1, launches=2, seeds=2, windows=2),
    "overview": Act("overview", tuple(p for p in MEASURED if p.name == "target")),
}


def own() -> list[Act]:
    """The Acts of our own, in reading order."""
    return [act for act in ACTS.values() if act.question]


def reading() -> tuple[str, ...]:
    """The ids of all Acts in reading order: the published ones, then ours."""
    return (*paths.ACTS, *(act.id for act in own()))


def get(act: str) -> Act:
    """The Act called ``act``. Raises BadInput with the nearest name."""
    if act not in ACTS:
        raise BadInput(f"There is no Act {act!r}{nearest(act, ACTS)}; `specdecode-nb list` names them.")
    return ACTS[act]
