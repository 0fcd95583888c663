"""MLX, once a matrix product has been chosen for it: every module takes ``mx`` and ``nn`` from here, before mlx-lm."""
from .blas import select

select()

import mlx.core as mx  # noqa: E402
import mlx.nn as nn  # noqa: E402

__all__ = ["mx", "nn"]
