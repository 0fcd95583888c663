"""The monograph: parameters of the Acts, published facts, tables, figures, numbers and the build of the notebooks.

Nothing here imports MLX: a notebook is drawn from recorded rows. A notebook begins with ``start`` (see :mod:`.page`).
"""
from __future__ import annotations


def start(act: str, names: dict):
    """Open an Act's page in its notebook, ``names`` being ``globals()``; returns a :class:`specdecode_nb.book.page.Page`."""
    from .page import Page

    return Page(act, names)
