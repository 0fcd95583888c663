"""What the published project released, by digest: its target at one revision, and the adapter trained for it (system of the report, 0 and 2).

Neither is part of this repository, and nothing here fetches them.
"""
from __future__ import annotations

import hashlib
from pathlib import Path

from .errors import BadInput

TARGET, REVISION = "unsloth/Qwen3.5-4B-Base", "61541fe4aed37b6a1e615edd5cbf5a3f660312b1"
PINS = {TARGET: REVISION}
PARAMETERS, TENSORS = 4_205_751_296, 426
BACKBONE = "7cd0f5a9bce55681729d390a530630b6fc8ae8c5e683ca4f417532895759e097"
"""blake2b-256 of the text tower in bfloat16, as :func:`.targets.digest_of` computes it."""

ADAPTER = "qwen3.5-4b-base-diffusion-drafter-u4b1-step16000.safetensors"
ADAPTER_BYTES = 84_966_094
ADAPTER_SHA256 = "8200c339d3d47363a3920fc4aca58f3535fc8bf75be431e35204f374700a4f42"


def check_adapter(path: Path) -> dict:
    """What to record of a file that has the released adapter's name, once it is known to be that; nothing of any other file.

    Raises:
        BadInput: the name, but another length or other bytes.
    """
    if path.name != ADAPTER:
        return {}
    size = path.stat().st_size
    if size != ADAPTER_BYTES:
        raise BadInput(f"The file {path.name!r} has {size} bytes, not the {ADAPTER_BYTES} of the released adapter; download it again.")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != ADAPTER_SHA256:
        raise BadInput(f"The file {path.name!r} has the sha256 {found[:12]}, not the released adapter's {ADAPTER_SHA256[:12]}; download it again.")
    return {"released": "u4b1 step 16000", "sha256": found}


def backbone_line(target) -> str:
    """One sentence on whether the weights of ``target`` are the published ones, by their digest; reads every weight."""
    found = target.digest()
    if found == BACKBONE:
        return f"backbone digest {found}: the published one"
    return f"backbone digest {found}: not the published {BACKBONE[:12]}, which is of {TARGET} in bfloat16 at revision {REVISION[:12]}"
