"""One place that decides how many tokens of a cycle survive: end-of-text, stop texts, budget, in that order."""
from __future__ import annotations

from collections.abc import Sequence

from .errors import BadInput


class Stops:
    """Admit candidate tokens before they are committed; also turns them into text that is safe to show.

    A piece of text is held back while it may be the start of a stop text or an unfinished multi-byte character.

    Args:
        eos: ids that end the text; such a token is emitted and contributes no text.
        stop: one text or several; the earliest one to be completed wins, and the text ends before it.
        budget: most tokens to admit.
        want_text: decode while going; needed for streaming, implied by ``stop``.
    """

    def __init__(self, target, eos, stop: str | Sequence[str], budget: int, want_text: bool):
        self.stop = (stop,) if isinstance(stop, str) else tuple(stop) if isinstance(stop, Sequence) else (stop,)
        if not all(isinstance(s, str) and s for s in self.stop):
            raise BadInput(f"stop is {stop!r}; give a text or a list of texts, none of them empty.")
        self._target, self._eos, self.room = target, frozenset(eos), budget
        self.want_text = want_text or bool(self.stop)
        self.reason: str | None = None
        self.text = ""  # everything shown so far
        self._held = ""  # decoded but possibly the start of a stop text
        self._ids: list[int] = []
        self._clean = self._shown = 0  # ids[clean:shown] is decoded text that precedes the next piece

    def admit(self, candidate: Sequence[int]) -> tuple[int, list[str]]:
        """How many leading tokens of ``candidate`` survive, and the text each one releases."""
        texts = []
        for token in candidate:
            self.room -= 1
            if token in self._eos:
                self.reason = "stop"
            texts.append(self._release(token) if self.want_text else "")
            if self.reason is None and self.room == 0:
                self.reason = "length"
            if self.reason:
                break
        if self.reason == "length" and self.want_text:
            texts[-1] += self._flush()
        return len(texts), texts

    def _release(self, token: int) -> str:
        if self.reason == "stop":
            return self._flush()
        self._ids.append(token)
        fresh = self._decode(final=False)
        self._held += fresh
        ends = [(at + len(s), at) for s in self.stop if (at := self._held.find(s)) >= 0]
        if ends:
            self.reason = "stop"
            return self._show(self._held[: min(ends)[1]])
        keep = max((n for s in self.stop for n in range(1, len(s)) if self._held.endswith(s[:n])), default=0)
        piece, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return self._show(piece)

    def _flush(self) -> str:
        """The end of the text: whatever was held back is shown."""
        return self._show(self._held + self._decode(final=True))

    def _show(self, piece: str) -> str:
        self.text += piece
        return piece

    def _decode(self, final: bool) -> str:
        before = self._target.decode(self._ids[self._clean : self._shown])
        now = self._target.decode(self._ids[self._clean :])
        if not final and now.endswith("\ufffd"):  # the character's other bytes may follow
            return ""
        self._clean, self._shown = self._shown, len(self._ids)
        return now[len(before) :]
