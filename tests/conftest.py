"""Identity is exact on the reference BLAS with TF32 off; both are chosen before mlx is imported."""
import os

os.environ["SPECDECODE_BLAS"] = "reference"
os.environ["MLX_ENABLE_TF32"] = "0"

import pytest
from specdecode_nb import condition

QUIET = {"nice": 0, "load_1min": 0.1, "load_per_core": 0.05, "other_cores": 0.0, "power": {"profile": "performance"}}


@pytest.fixture(scope="session", autouse=True)
def quiet_machine():
    """The readings of a quiet machine at once: what the tests run on is neither waited for nor judged."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(condition, "readings", lambda when="start", since=None: {"when": when, **QUIET})
        yield
