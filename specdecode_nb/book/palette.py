"""One look for every method in every Act: colour, marker and dash, so that nothing depends on colour alone.

Colours are Okabe and Ito's (2008), safe for the common colour blindnesses, without their yellow, which is lost on white.
"""
from __future__ import annotations

from dataclasses import dataclass

BLACK, GREY, BLUE, SKY = "#000000", "#767676", "#0072B2", "#56B4E9"
GREEN, ORANGE, RED, PINK = "#009E73", "#E69F00", "#D55E00", "#CC79A7"
SOLID, DASHED, DOTTED, MIXED = "-", (0, (5, 2)), (0, (1.2, 1.6)), (0, (5, 1.6, 1.2, 1.6))


@dataclass(frozen=True)
class Style:
    label: str
    color: str
    marker: str
    dash: object = SOLID


METHODS: dict[str, Style] = {
    "ar": Style("plain decoding", BLACK, "o"),
    "ar_mlx_lm": Style("plain, mlx-lm", GREY, "s", DASHED),
    "uno_k1": Style("K=1", GREY, "v", DOTTED),
    "uno_k2": Style("K=2", SKY, "^"),
    "uno_k4": Style("K=4", BLUE, "D"),
    "uno_k6": Style("K=6", PINK, "P"),
    "uno_k8": Style("K=8", GREEN, "p", DASHED),
    "uno_k16": Style("K=16", RED, "X", MIXED),
    "ngram2": Style("2-gram lookup", ORANGE, ">", DASHED),
    "ngram3": Style("3-gram lookup", RED, "<", DOTTED),
    "refine2": Style("two passes", GREEN, "h", DASHED),
    "refine4": Style("four passes", PINK, "8", DOTTED),
    "adapt_entropy": Style("by entropy", ORANGE, "d", DASHED),
    "adapt_ev": Style("by expected value", GREEN, "*", MIXED),
    "adapt_survival": Style("by survival", PINK, "H", DOTTED),
    "adapt_value0": Style("by value, depth 0", RED, "P", SOLID),
    "conf_k4": Style("K=4, confidence told", SKY, "s", DOTTED),
    "untrained": Style("untrained adapter", GREY, "x", DOTTED),
    "shuffled": Style("shuffled control", RED, "+", DASHED),
    "trained": Style("trained adapter", BLUE, "h"),
    "random": Style("random drafter", GREY, "1", DOTTED),
    "replay": Style("replay", RED, "s", DASHED),
    "snapshot": Style("snapshot", BLUE, "8"),
    "rewind": Style("rewind", ORANGE, "^", MIXED),
    "innovation tape": Style("innovation tape", GREEN, "D", DOTTED),
    "A_k4": Style("A: K=4 (control)", BLUE, "D", DASHED),
    "B_k6": Style("B: K=6", PINK, "P", DASHED),
    "C_k8": Style("C: K=8", GREEN, "p"),
    "D_curr": Style("D: 4, 6, 8", ORANGE, "*", DOTTED),
    "start": Style("start (step 12800)", BLACK, "X", MIXED),
    "S(6,3)": Style("S(6,3)", SKY, "<", DASHED),
    "S(6,4)": Style("S(6,4)", GREEN, "^", DASHED),
    "S(8,2)": Style("S(8,2)", RED, "v", DASHED),
    "S(8,4)": Style("S(8,4)", ORANGE, "s", MIXED),
    "B_dec": Style("K=4, decoupled code", GREY, "d", MIXED),
    "A causal": Style("A: causal", BLACK, "D", MIXED),
    "B aligned": Style("B: aligned reverse", BLUE, "^", MIXED),
    "C shuffled": Style("C: shuffled reverse", RED, "s", DOTTED),
    "D block-end readout": Style("D: block-end readout", GREEN, "v", SOLID),
    "E": Style("E: scalar gate", ORANGE, "P", MIXED),
    "C as published": Style("C: as published", PINK, "X", DASHED),
    "E from 1/2": Style("E: gate from 1/2", SKY, "h", DASHED),
    "A conditioned": Style("A: with conditioner", GREY, "o", DOTTED),
    "forward scaled": Style("forward scaled", GREY, "d", DASHED),
    "dflash": Style("block-diffusion drafting", BLUE, "*", DASHED),
    "mtp": Style("native multi-token head", ORANGE, "o", MIXED),
    "mtp3": Style("MTP-3", ORANGE, "<", SOLID),
    "dflash_b4": Style("block 4", SKY, "v"),
    "dflash_b5": Style("block 5", PINK, "^"),
    "dflash_b8": Style("block 8", GREEN, "p", MIXED),
    "dflash_b16": Style("block 16", RED, "X", DOTTED),
    "spec_mlx_lm_d2": Style("mlx-lm, 2 drafts", RED, "<", DASHED),
    "spec_mlx_lm_d3": Style("mlx-lm, 3 drafts", RED, ">", DOTTED),
    "small_k3": Style("same model, 2 drafts", SKY, "<", MIXED),
    "small_k4": Style("same model, 3 drafts", SKY, ">", DOTTED),
    "dflash_mlx": Style("runtime of dflash-mlx", GREY, "X", MIXED),
    "z_lab": Style("runtime of z-lab", GREY, "P", DOTTED),
    "adapt_value": Style("by value, block 0 to the widest", BLACK, "P"),
    "adapt_mlx_vlm": Style("rule of mlx-vlm", GREY, "H", DOTTED),
    "adapt_dflash_mlx": Style("rule of dflash-mlx", BLACK, "d", DASHED),
    "exact": Style("plain, exact", BLACK, "^", DOTTED),
    "uno_k4_exact": Style("K=4, exact", BLUE, "v", DOTTED),
    "dflash_b8_exact": Style("block 8, exact", GREEN, "s", DOTTED),
    "ngram2_k4_exact": Style("2-gram lookup, exact", ORANGE, "h", DOTTED),
    "draft": Style("draft forward", ORANGE, "^", SOLID),
    "verify": Style("verify forward", BLUE, "s", SOLID),
    "commit": Style("commit", GREEN, "p", DOTTED),
    "overhead": Style("overhead", GREY, "X", DASHED),
    "published": Style("published", ORANGE, "s", DASHED),
    "measured": Style("measured here", BLUE, "o", SOLID),
}
ALIASES = {
    "native AR": "ar", "plain autoregressive": "ar", "ngram2_k4": "ngram2", "ngram3_k4": "ngram3",
    "untrained_k4": "untrained", "shuffled_k4": "shuffled", "refine1": "uno_k4", "refine1_k4": "uno_k4",
    "refine2_k4": "refine2", "refine4_k4": "refine4", "fixed K=4": "uno_k4", "fixed K=8": "uno_k8", "B (4,4)": "uno_k4",
    "B incumbent": "uno_k4", "B incumbent (4,4)": "uno_k4", "incumbent (4,4)": "uno_k4", "B_dec (4,4)": "B_dec", "A_k4 (control)": "A_k4",
    "start@12800": "start", "shuffled teacher": "shuffled", "proposal": "draft", "E scalar gate": "E", "block-diffusion backend": "dflash",
    "native multi-token head": "mtp", "tape": "innovation tape", "per_token_states": "snapshot",
} | {f"K={k}": f"uno_k{k}" for k in (1, 2, 4, 6, 8, 16)}
OF_ACT = {"act4u6": {"B": "uno_k4"}}  # names that mean a method in one Act and something else in others
SERIES = (Style("", BLUE, "o"), Style("", RED, "s", DASHED), Style("", GREEN, "^", MIXED), Style("", ORANGE, "D", DOTTED), Style("", PINK, "v", SOLID),
          Style("", SKY, "P", DASHED), Style("", BLACK, "X", MIXED), Style("", GREY, "d", DOTTED))
HATCHES = ("", "//", "..", "xx", "\\\\", "++", "oo", "--")


def style(name: str, position: int = 0) -> Style:
    """The look of a method by id or published name; anything else gets the look number ``position`` under its own name."""
    known = METHODS.get(ALIASES.get(name, name))
    if known:
        return known
    spare = SERIES[position % len(SERIES)]
    return Style(name, spare.color, spare.marker, spare.dash)


def label(name: str, act: str = "") -> str:
    """How a method is called in tables and legends; ``act`` for names that belong to one Act."""
    return style(OF_ACT.get(act, {}).get(name, name)).label
