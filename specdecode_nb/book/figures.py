"""A figure as files: PNG, SVG and PDF with the same bytes at every build, and a record of what made it."""
from __future__ import annotations

import io
import json
import warnings
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from PIL import Image, PngImagePlugin

from ..records import sha256, write_atomic
from .draw import DPI, LOOK

INLINE_LIMIT = 150_000  # bytes of one picture in a notebook


def render(figure, figure_id: str, caption: str, sources: Sequence[tuple[str, str]]) -> dict[str, bytes]:
    """Bytes by format, without dates or random ids; the metadata carry caption and (file, sha256) of the sources."""
    origin = "; ".join(f"{name} sha256:{digest[:12]}" for name, digest in sources)
    metadata = {"png": {"Title": figure_id, "Description": caption, "Source": origin, "Software": "specdecode_nb"},
                "svg": {"Title": figure_id, "Description": caption, "Source": origin, "Creator": "specdecode_nb", "Date": None},
                "pdf": {"Title": figure_id, "Subject": caption, "Keywords": origin, "Creator": "specdecode_nb", "Producer": None, "CreationDate": None}}
    made = {}
    for kind, about in metadata.items():
        buffer = io.BytesIO()
        with mpl.rc_context(LOOK | {"svg.hashsalt": figure_id}), warnings.catch_warnings():
            # the search for a free corner warns by the clock, so a busy machine would fail a build
            warnings.filterwarnings("ignore", 'Creating legend with loc="best"', UserWarning)
            figure.savefig(buffer, format=kind, dpi=DPI, metadata=about)
        made[kind] = buffer.getvalue()
    made["png"] = in_palette(made["png"])
    if len(made["png"]) > INLINE_LIMIT:
        raise ValueError(f"Figure {figure_id} is {len(made['png']):,} bytes as PNG, above {INLINE_LIMIT:,}; draw fewer points or split it.")
    return made


def in_palette(png: bytes) -> bytes:
    """The same picture and metadata in at most 255 colours: a third of the bytes, so that a page with twenty figures stays small."""
    picture, kept, out = Image.open(io.BytesIO(png)), PngImagePlugin.PngInfo(), io.BytesIO()
    for key, text in picture.text.items():
        kept.add_itxt(key, text)
    flat = picture.convert("RGB").quantize(255, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    flat.save(out, "PNG", optimize=True, pnginfo=kept, dpi=(DPI, DPI))
    return out.getvalue()


def record(figure_id: str, made: dict[str, bytes], about: dict) -> str:
    """The sidecar: caption, alt text, sources, command, and the sha256 of each format."""
    return json.dumps({"id": figure_id, **about, "sha256": {kind: sha256(data) for kind, data in made.items()}}, indent=1, ensure_ascii=False,
                      allow_nan=False) + "\n"


def write(folder: Path, figure_id: str, made: dict[str, bytes], sidecar: str) -> list[str]:
    """``<id>.png|svg|pdf|json`` in ``folder``; returns the file names."""
    files = {f"{figure_id}.{kind}": data for kind, data in made.items()} | {f"{figure_id}.json": sidecar.encode()}
    for name, data in files.items():
        write_atomic(folder / name, data)
    return list(files)
