"""The museum of faults: bugs that other projects reported, each put into our own source for a moment and handed to the examiner.

A fault is one edit of one function: the text ``old`` of its source becomes ``new``, and the edited function stands in its
place until the block ends. So a fault that no longer fits the source is an error and not a pass. The examiner is
:mod:`.battery`; ``ids`` are those of the catalogue of public reports (``tests/catalogue.json``).
"""
from __future__ import annotations

import __future__
import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from .. import decoder, gdn, policies, stops, taps, transaction
from .battery import examine

GITHUB = "https://github.com/"


@dataclass(frozen=True)
class Fault:
    """One public bug and the edit that makes it ours. ``owner`` is the class that holds the function ``name``."""

    id: str
    report: str
    wrong: str
    owner: type
    name: str
    old: str
    new: str

    @property
    def where(self) -> str:
        return f"{self.owner.__module__.rpartition('.')[2]}.{self.owner.__name__}.{self.name}"


RUN, TX, STOPS, TAPS = decoder._Run, transaction.Transaction, stops.Stops, taps.TapDrafter
WINDOW = "c[0] = mx.contiguous(tape.conv_rows[:, n : n + tape.conv_before.shape[1]])"
FAULTS = (
    Fault("A1", "ml-explore/mlx-lm/issues/846", "undoing is a no-op for the recurrent state: rejected rows stay in it", TX, "_keep",
          "c[1] = self._rebuild(tape, n)", "c[1] = self._rebuild(tape, tape.rows)"),
    Fault("A3", "ml-explore/mlx-lm/pull/1253", "recurrent layers are emptied and attention layers are cut: they disagree on the length", TX, "_keep",
          "c[1] = self._rebuild(tape, n)\n                c.offset += n", "c[1] = mx.zeros_like(tape.state_before)\n                c.offset = 0"),
    Fault("A4", "ml-explore/mlx-lm/pull/1528", "what a failed or closed generation is set back to was noted a step too late", RUN, "_plain",
          "restore(session.cache, safe)", "restore(session.cache, ahead)"),
    Fault("A6", "ml-explore/mlx-lm/pull/1486", "a layer goes on recording after the block", TX, "_keep",
          "c.tape = None", "pass"),
    Fault("A11", "Avarok-Cybersecurity/atlas/pull/604", "more rows are drafted than the verifier checks, and the rest passes for accepted", RUN, "_cycle",
          "accepted, following = self.rule.accept(best, draft.tokens, draft.exact, shift)",
          "accepted, following = self.rule.accept(best[:2] + draft.tokens[2 + shift :] + best[-1:], draft.tokens, draft.exact, shift)"),
    Fault("A12", "Avarok-Cybersecurity/atlas/pull/743", "the checkpoint of a block is empty, so a block of which nothing is kept is not undone", TX, "_keep",
          "restore(self._cache, self._saved)", "restore(self._cache, snapshot(self._cache) if not n else self._saved)"),
    Fault("A14", "vllm-project/vllm/pull/52942", "a round reads the record of the round before", TX, "__enter__",
          "c.tape = Tape(self._scheme)", "c.tape = c.stale = getattr(c, 'stale', None) or Tape(self._scheme)"),
    Fault("A16", "ggml-org/llama.cpp/pull/28123", "the matrix is undone and the convolution window is not", TX, "_keep",
          WINDOW, "c[0] = mx.contiguous(tape.conv_rows[:, -tape.conv_before.shape[1] :])"),
    Fault("A22", "Blaizzy/mlx-vlm/pull/1188", "a row of a block sees the row after it", gdn.Taped, "rows",
          "mixed = nn.silu(mixed)", "mixed = nn.silu(mixed + 0.1 * mx.pad(mixed[:, 1:], [(0, 0), (0, 1), (0, 0)]))"),
    Fault("A23", "vllm-project/vllm/issues/36872", "the last token of a turn is not consumed by the next turn", decoder.Session, "feed",
          "pending = self.tokens[-1:] + list(ids)", "pending = list(ids)"),
    Fault("A26", "1CatAI/1Cat-vLLM/pull/267", "a gate is rounded to 16 bits where a block is verified, and nowhere else", gdn.Taped, "rows",
          "mx.sigmoid(b.astype(f32))", "mx.sigmoid((b if T == 1 else b.astype(mx.bfloat16)).astype(f32))"),
    Fault("B1", "ggml-org/llama.cpp/issues/28049", "rows after the end of the text stay in the caches", RUN, "_cycle",
          "tx.commit(kept - shift)", "tx.commit(len(candidate) - shift)"),
    Fault("B2", "huggingface/transformers/issues/47912", "an end of text in the middle of a block is not seen", STOPS, "admit",
          "if token in self._eos:", "if token in self._eos and token == candidate[-1]:"),
    Fault("B5", "sgl-project/sglang/issues/31599", "the budget is looked at before the end of text", STOPS, "admit",
          "if token in self._eos:", "if token in self._eos and self.room:"),
    Fault("B6", "vllm-project/vllm/pull/47616", "of two stop texts the one named first wins, not the one completed first", STOPS, "_release",
          "min(ends)[1]", "ends[0][1]"),
    Fault("B7", "antonellof/ferrox/pull/311", "the budget counts cycles and not tokens", STOPS, "admit",
          "for token in candidate:\n        self.room -= 1", "self.room -= 1\n    for token in candidate:"),
    Fault("B9", "osaurus-ai/vmlx-swift/pull/148", "what was held back at the end of the text is dropped", STOPS, "admit",
          "texts[-1] += self._flush()", "pass"),
    Fault("B11", "openvinotoolkit/openvino.genai/pull/3293", "a drafted end of text that the target rejects ends the sequence", RUN, "_cycle",
          "candidate = draft.tokens[:accepted] + [following]",
          "candidate = draft.tokens[:accepted] + [next((t for t in draft.tokens[accepted:][:1] if t in self.target.eos_ids), following)]"),
    Fault("E1", "vllm-project/vllm/issues/56101", "accepted tokens are counted before the end of text cuts them", RUN, "_booked",
          "min(kept, accepted)", "accepted"),
    Fault("E3", "ggml-org/llama.cpp/pull/14104", "everything offered is called accepted", RUN, "_booked",
          "max(0, len(draft.tokens) - draft.exact)", "s.accepted_per_cycle[-1]"),
    Fault("E7", "mlx-node/mlx-node/pull/11", "the correction after the draft is counted as accepted", RUN, "_booked",
          "min(kept, accepted)", "kept"),
    Fault("F2", "microsoft/onnxruntime-genai/pull/2538", "the drafter reads the layer before the one it was made for", taps.TappedModel, "__init__",
          "layers_of[i] = _tap(layers_of[i], self._outputs.append)", "layers_of[i - 1] = _tap(layers_of[i - 1], self._outputs.append)"),
    Fault("F6", "jundot/omlx/issues/1292", "a hook for the drafter is put into the model that everyone else uses", taps.TappedModel, "__init__",
          "self._model = share(model)", "self._model = model"),
    Fault("H1", "Blaizzy/mlx-vlm/issues/1873", "a stream that is closed leaves a row in the caches that none of its tokens stands for", RUN, "_plain",
          "restore(session.cache, safe)", "pass"),
    Fault("H6", "vllm-project/vllm/pull/47926", "rows of rejected drafts become the drafter's context", TAPS, "_follow",
          "end = start + _common(ids, past[start:])", "end = start + len(ids)"),
    Fault("I18", "", "the state of the rule of the block width is shared between generations", policies.Policy, "begin",
          "return replace(self)", "return self"),
)


def edited(fault: Fault) -> Callable:
    """The function of ``fault`` with its one edit. Raises LookupError unless the source holds ``old`` exactly once."""
    original = vars(fault.owner)[fault.name]
    source = textwrap.dedent(inspect.getsource(original))
    if source.count(fault.old) != 1:
        raise LookupError(f"{fault.where} holds {fault.old!r} {source.count(fault.old)} times and not once; write the fault {fault.id} anew.")
    found: dict = {}
    code = compile(source.replace(fault.old, fault.new), inspect.getfile(original), "exec", __future__.annotations.compiler_flag)
    exec(code, original.__globals__, found)  # noqa: S102
    return found[fault.name]


@contextmanager
def put_in(fault: Fault) -> Iterator[None]:
    """Our decoder with one fault, inside the block."""
    original, faulty = vars(fault.owner)[fault.name], edited(fault)
    setattr(fault.owner, fault.name, faulty)
    try:
        yield
    finally:
        setattr(fault.owner, fault.name, original)


def rows() -> Iterator[dict]:
    """One row a fault: what the examiner said, by check; and first that it says nothing of the decoder as it is."""
    for fault in (None, *FAULTS):
        if fault is None:
            found = examine()
            about = {"fault": "none", "report": "", "wrong": "the decoder as it is", "where": "", "old": "", "new": ""}
        else:
            with put_in(fault):
                found = examine()
            about = {"fault": fault.id, "report": fault.report and GITHUB + fault.report, "wrong": fault.wrong, "where": fault.where, "old": fault.old,
                     "new": fault.new}
        yield {"kind": "museum", **about, "caught_by": list(found), "symptom": next(iter(found.values()), "")}
