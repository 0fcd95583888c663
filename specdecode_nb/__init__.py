"""Drafting with diffusion: a decoder whose drafts the unmodified target verifies, and the monograph that measures it."""
from __future__ import annotations

import importlib

__version__ = "0.1.0"
_EXPORTS = {"load_target": "targets", "load_drafter": "drafters", "generate": "decoder", "stream": "decoder", "Session": "decoder",
            "Transaction": "transaction", "Sampling": "sampling"}
__all__ = [*_EXPORTS, "__version__"]


def __getattr__(name: str):
    # MLX is loaded by the first use of the decoder, not by the import of the package
    if name in _EXPORTS:
        return getattr(importlib.import_module(f".{_EXPORTS[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted(__all__)
