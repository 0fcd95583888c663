"""Every option of a generation is checked here, before any work is done."""
from __future__ import annotations

from collections.abc import Sequence

from .errors import BadInput
from .policies import Policy
from .targets import Target
from .transaction import SCHEMES


def check(target: Target, prompt, drafter, k: int | Policy, max_tokens: int, seed: int, scheme: str, session) -> list[int]:
    """The prompt as ids, after every option has been checked. Raises BadInput."""
    if not isinstance(target, Target):
        raise BadInput(f"The target is {target!r}; load it with load_target.")
    if session is not None and not hasattr(session, "tokens"):
        raise BadInput(f"The session is {session!r}; give a Session, or None for a new one.")
    earlier = len(session.tokens) if session else 0
    if session is not None and session.target is not target:
        raise BadInput("The session belongs to another target; make a new one.")
    if drafter is not None and not callable(getattr(drafter, "draft", None)):
        raise BadInput(f"The drafter is {drafter!r}; make one with load_drafter, or give None to decode plainly.")
    if getattr(drafter, "target", target) is not target:
        raise BadInput(f"The drafter {drafter.name!r} was made for another target; load it for this one.")
    widest = getattr(drafter, "block_size", float("inf"))
    asked = k.widest if isinstance(k, Policy) else k
    if isinstance(asked, int) and asked > widest:
        raise BadInput(f"k is {asked}, but the drafter {drafter.name!r} was trained for blocks of at most {widest}; give that or less.")
    whole = lambda v: isinstance(v, int) and not isinstance(v, bool)  # noqa: E731
    if isinstance(prompt, str):
        try:
            ids = target.encode(prompt)
        except (TypeError, UnicodeError):  # half of a pair of surrogates has no bytes
            raise BadInput("The prompt is no Unicode text: it holds half of a surrogate pair; decode it as UTF-8.") from None
    else:
        ids = list(prompt) if isinstance(prompt, Sequence) and not isinstance(prompt, bytes) else None
        if ids is None or not all(whole(i) for i in ids):
            raise BadInput("The prompt must be text or a list of token ids; convert it.")
    if ids and not 0 <= min(ids) <= max(ids) < target.vocab_size:
        odd = next(i for i in ids if not 0 <= i < target.vocab_size)
        raise BadInput(f"The prompt holds id {odd}, outside the vocabulary of {target.vocab_size}; encode it with this target's tokenizer.")
    if not ids:
        raise BadInput("The prompt is empty; give at least one token.")
    widest = k.widest if isinstance(k, Policy) else k
    if not whole(widest) or widest < 1:
        raise BadInput(f"k is {k!r}; give a whole number of drafted positions, 1 or more, or a policy.")
    if not whole(max_tokens) or max_tokens < 0:
        raise BadInput(f"max_tokens is {max_tokens!r}; give a whole number, 0 or more.")
    if not whole(seed):
        raise BadInput(f"seed is {seed!r}; give a whole number.")
    if scheme not in SCHEMES:
        raise BadInput(f"There is no scheme {scheme!r} for decoding; choose {', '.join(SCHEMES[:-1])} or {SCHEMES[-1]}.")
    if earlier + len(ids) + max_tokens + widest > target.context:
        raise BadInput(f"{earlier + len(ids)} prompt tokens, {max_tokens} new ones and a block of k={widest} do not fit the context of "
                       f"{target.context}; shorten one of them.")
    return ids
