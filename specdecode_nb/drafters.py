"""Drafters: who proposes the next tokens. The target decides; a bad drafter costs time and never changes a token."""
from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from . import paths
from .acceptance import Greedy
from .backend import mx
from .checkpoints import is_file, tensor_names
from .errors import BadInput, flag, nearest
from .lora import load_adapter
from .peft import is_peft, read_peft
from .released import check_adapter
from .streams import BENCH_NOISE, stream_seed
from .targets import Target
from .transaction import SCHEMES, Transaction

TRAINED = ("uno", "dflash", "mtp")
NAMES = (*TRAINED, "ngram", "random")
NOISE_SEED = 20260905  # the published stream of the benchmark


def _whole(name: str, value, least: int | None = None) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or (least is not None and value < least):
        raise BadInput(f"{name} is {value!r}; give a whole number{'' if least is None else f', {least} or more'}.")
    return value


@dataclass
class Draft:
    """Proposals for the positions after the seed token.

    ``exact`` leading ones are the target's own choice (0 or 1) and are not verified. ``seed_kept`` says that the draft
    forward has left the seed's row in the caches, so the verify forward starts at the first proposal; ``seed_logits`` [V] are then
    the target's own at that row, not evaluated. ``confidence`` holds (top-1 probability, margin to the second) of each speculative
    proposal where it was asked for. ``q`` [speculative, V] holds the distributions that the speculative ones were drawn from, by the
    rule "rejection"; None: they were not drawn.
    """

    tokens: list[int]
    exact: int = 0
    seed_kept: bool = False
    forwards: int = 0
    rows: int = 0
    confidence: list | None = None
    seed_logits: mx.array | None = None
    q: mx.array | None = None


class UnoDrafter:
    """The diffusion-trained adapter: ``[seed, noise, ...]`` in, k proposals out, in one forward (system of Act IV-U).

    Row 0 is the seed, not adapted, so the first proposal is the target's own next token and the seed's row is exact.
    With ``keep_seed`` it is committed at once and the verify forward takes k rows; the published form drops the whole
    draft and verifies k + 1 rows. Both give the same tokens.

    Args:
        model, gate: the adapted view of the target and its row gate (:mod:`specdecode_nb.lora`).
        noise_seed: noise of cycle c is keyed by (noise_seed, bench stream, c), uniform over ids [1, vocab).
        passes: 2 or more draft again with the guesses before in the place of the noise (5.1), one forward each.
        confidence: report how sure each speculative proposal of the last pass is; costs a softmax over the block.
    """

    exact = 1  # leading proposals that are the target's own
    samples = True  # takes the rule of a sampled generation

    def __init__(self, target: Target, model, gate, name: str = "uno", keep_seed: bool = True, noise_seed: int = NOISE_SEED,
                 scheme: str = "tape", passes: int = 1, confidence: bool = False, metadata: dict | None = None):
        if scheme not in SCHEMES[:2]:
            raise BadInput(f"There is no scheme {scheme!r} for drafting; choose {' or '.join(SCHEMES[:2])}.")
        self.target, self.name, self.keep_seed, self.scheme = target, name, flag("keep_seed", keep_seed), scheme
        self.noise_seed, self.passes, self.confidence = _whole("noise_seed", noise_seed), _whole("passes", passes, 1), flag("confidence", confidence)
        self.metadata = metadata or {}
        self._model, self._gate, self._vocab = model, gate, target.vocab_size
        self._masks: dict[int, mx.array] = {}

    def logits(self, cache: list, seed: int, noise: mx.array) -> mx.array:
        """Logits [k, vocab] of the rows [seed, noise...] (noise int [k - 1]), the adapter on the noise rows only.

        The rows stay in the caches; the caller holds the transaction that undoes them.
        """
        k = noise.size + 1
        if k not in self._masks:
            self._masks[k] = mx.array([[0.0] + [1.0] * (k - 1)])
        self._gate.rows(self._masks[k] if k > 1 else None)
        rows = mx.concatenate([mx.array([seed], dtype=mx.int32), noise.astype(mx.int32)])[None]
        return self._model(rows, cache=cache)[0]

    def draft(self, cache: list, history: list[int], k: int, cycle: int, rule: Greedy = Greedy()) -> Draft:
        """``history`` is every committed id; the caches hold all of them but the last, the seed token. ``rule`` chooses."""
        key = mx.random.key(stream_seed(self.noise_seed, BENCH_NOISE, cycle))
        # drawn at a fixed width, so the noise of a slot does not depend on k
        noise = mx.random.randint(1, self._vocab, (max(16, k),), key=key)[: k - 1]
        for left in reversed(range(self.passes)):
            with Transaction(cache, self.scheme if self.keep_seed else "tape") as tx:
                logits = self.logits(cache, history[-1], noise)
                # a pass before the last only makes guesses to draft from
                proposals, q = rule.propose(logits, len(history), history, 1) if not left else (mx.argmax(logits, axis=-1), None)
                mx.eval(proposals)
                # row i predicts what stands at row i + 1
                noise = proposals[:-1]
                tx.commit(1 if self.keep_seed and not left else 0)
        return Draft(proposals.tolist(), exact=1, seed_kept=self.keep_seed, forwards=self.passes, rows=k * self.passes,
                     confidence=_sureness(logits[1:]) if self.confidence else None, seed_logits=logits[0] if self.keep_seed else None,
                     q=q)


def _sureness(logits) -> list[list[float]]:
    """[top-1 probability, its margin to the second] of each row of logits [R, V]."""
    if not logits.shape[0]:
        return []
    top = mx.topk(mx.softmax(logits.astype(mx.float32), axis=-1), 2, axis=-1)
    return [[round(max(pair), 5), round(abs(pair[0] - pair[1]), 5)] for pair in top.tolist()]


class NgramDrafter:
    """Prompt lookup: the k-1 tokens that followed the latest earlier occurrence of the last ``order`` tokens (5.4)."""

    exact = 0

    def __init__(self, order: int = 2):
        self.order = _whole("order", order, 1)
        self.name = f"ngram_{order}"

    def draft(self, cache: list, history: list[int], k: int, cycle: int) -> Draft:
        guess, tail = k - 1, history[-self.order :]
        if guess < 1 or len(tail) < self.order:
            return Draft([])
        for start in range(len(history) - self.order - guess, -1, -1):
            if history[start : start + self.order] == tail:
                follow = start + self.order
                return Draft(history[follow : follow + guess])
        return Draft([])


class RandomDrafter:
    """Proposes k-1 uniform ids: the floor of every drafter and a test that nothing depends on the draft."""

    exact = 0

    def __init__(self, vocab: int, seed: int = 0):
        self.name, self._vocab, self._seed = "random", vocab, _whole("seed", seed)

    def draft(self, cache: list, history: list[int], k: int, cycle: int) -> Draft:
        draw = random.Random(stream_seed(self._seed, BENCH_NOISE, cycle))
        return Draft([draw.randrange(1, self._vocab) for _ in range(k - 1)])


def place(name: str, target: str) -> Path:
    """Where the trained drafter called ``name`` of a target is kept: the folder of dflash, the file of uno or mtp."""
    return paths.models() / target / (name if name == "dflash" else f"{name}.safetensors")


def load_drafter(name: str | None, target: Target, foreign: bool = False, **options):
    """A drafter by name (``uno``, ``dflash``, ``mtp``, ``ngram``, ``random``) or path; None decodes plainly.

    A path is the file of an adapter or of an MTP drafter, or the folder of a DFlash drafter or of an adapter in PEFT's layout.
    Options: ``keep_seed``, ``noise_seed``, ``scheme``, ``passes``, ``confidence`` (uno or an adapter), ``order`` (ngram), ``seed`` (random).

    ``foreign`` takes a drafter that was trained for another target, which is refused otherwise: its tokens are still the
    target's, only fewer are accepted. Its metadata then says ``foreign``, so that rows made with it do.

    Raises:
        BadInput: unknown name, no such drafter for this target, a file that does not fit it, an unknown option.
    """
    flag("foreign", foreign)
    if not isinstance(target, Target):
        raise BadInput(f"The target is {target!r}; load it with load_target.")
    if not isinstance(name, str | Path | None):
        raise BadInput(f"The drafter is {name!r}; give a name, a path, or None to decode plainly.")
    try:
        if name is None or name == "none":
            return None
        if name == "ngram":
            return NgramDrafter(**options)
        if name == "random":
            return RandomDrafter(target.vocab_size, **options)
        if name == "dflash" or is_file(Path(name) / "config.json"):
            return _dflash(name, target, foreign, **options)
        path = place(name, target.name) if name in ("uno", "mtp") else Path(name)
        if is_peft(path):
            model, gate, metadata = read_peft(path, target.model)
            metadata = same_target(f"adapter {path.name!r}", metadata, target, foreign)
            return UnoDrafter(target, model, gate, name=path.resolve().name, metadata=metadata, **options)
        if not is_file(path):
            if name in ("uno", "mtp"):
                raise BadInput(f"There is no {name} drafter for target {target.name!r}; train one, give the path of one, or choose ngram, random or none.")
            raise BadInput(f"There is no drafter {name!r}{nearest(name, NAMES)}; choose {', '.join(NAMES)} or the path of a drafter.")
        if name == "mtp" or any(tensor.startswith("mtp.") for tensor in tensor_names(path)):
            return _mtp(name, path, target, foreign, **options)
        known = check_adapter(path)
        model, gate, metadata = load_adapter(path, target.model)
        metadata = known | same_target(f"adapter {path.name!r}", metadata, target, foreign)
        return UnoDrafter(target, model, gate, name="uno" if name == "uno" else path.stem, metadata=metadata, **options)
    except TypeError as error:
        raise BadInput(f"Drafter {name!r} does not take these options ({error}).") from None


def _dflash(name: str, target: Target, foreign: bool):
    from .dflash import DFlashDrafter  # which takes Draft from here
    from .dflash_files import read_dflash

    folder = place(name, target.name) if name == "dflash" else Path(name)
    if not folder.is_dir():
        raise BadInput(f"There is no dflash drafter for target {target.name!r}; train one, give the path of one, or choose ngram, random or none.")
    model, metadata = read_dflash(folder, target)
    metadata = same_target(f"drafter {folder.name!r}", metadata, target, foreign)
    return DFlashDrafter(target, model, name="dflash" if name == "dflash" else folder.resolve().name, metadata=metadata)


def _mtp(name: str, path: Path, target: Target, foreign: bool):
    from .mtp import MTPDrafter, read_mtp

    model, metadata = read_mtp(path, target)
    metadata = same_target(f"drafter {path.name!r}", metadata, target, foreign)
    return MTPDrafter(target, model, metadata["depth"], name="mtp" if name == "mtp" else path.stem, metadata=metadata)


def same_target(what: str, metadata: dict, target: Target, foreign: bool) -> dict:
    """The metadata, once the drafter is known to be the target's, or taken on purpose though it is not.

    A drafter of another tokenizer is never taken: its ids stand for other texts. One that does not name its tokenizer is known by the weights alone.
    """
    tokens = metadata.get("tokenizer_digest")
    if tokens and tokens != target.tokenizer_digest():
        raise BadInput(f"The {what} was trained with another tokenizer, whose ids stand for other tokens (map {str(tokens)[:12]}); "
                       "use a drafter of this target.")
    wanted = metadata.get("target_digest")
    if not wanted or target.dtype != "float32" or wanted == target.digest():
        return metadata
    if not foreign:
        raise BadInput(f"The {what} was trained for another target (digest {str(wanted)[:12]}); use that one, or load it with foreign=True.")
    return metadata | {"foreign": True}
