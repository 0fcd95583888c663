"""Seeds for independent random streams, free of any global generator (published system, Act IV-U).

A key depends on (seed, stream, step) alone, so noise is the same whatever was decoded before and in whatever order.
"""
from __future__ import annotations

_MASK = (1 << 64) - 1

TRAIN_NOISE = 0x545241494E5F4E5A
TRAIN_RATE = 0x545241494E5F5254
EVAL_NOISE = 0x4556414C5F4E5A5A
DATA_SAMPLING = 0x444154415F53504C
BENCH_NOISE = 0x42454E43485F4E5A
# of this package, for sampling: keyed by the absolute position
SAMPLE_NOISE = 0x53414D504C5F4E5A
DRAFT_NOISE = 0x44524146545F4E5A
ACCEPT_NOISE = 0x41434350545F4E5A


def _mix(z: int) -> int:
    z ^= z >> 30
    z = z * 0xBF58476D1CE4E5B9 & _MASK
    z ^= z >> 27
    z = z * 0x94D049BB133111EB & _MASK
    return z ^ z >> 31


def stream_seed(seed: int, stream: int, step: int) -> int:
    """The 64-bit seed of one draw; pass it to ``mx.random.key``."""
    m = _mix(seed * 0x9E3779B97F4A7C15 & _MASK)
    m = _mix(m ^ stream * 0xC2B2AE3D27D4EB4F & _MASK)
    return _mix(m ^ step * 0x165667B19E3779F9 & _MASK)
