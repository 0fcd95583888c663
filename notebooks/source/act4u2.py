# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Act IV-U2: undoing a recurrent state without a third forward
#
# Speculative decoding writes rows that it must take back. In an attention layer that is free: drop the last rows of the cache. In a Gated DeltaNet layer there are no rows. Every token is folded into one
# matrix per head, and Act IV-U paid a whole extra forward each time a block was not accepted entire. This Act keeps the drafter as it is and changes only the undo. It asks whether the state after *every*
# row can be recorded while the block is verified, so that keeping the first $m$ rows costs nothing but picking one.
#
# It can. With the extra forward gone, the same adapter becomes faster than plain decoding. A more elegant idea, running the recurrence backward, works only with a safety net and loses.
#
# **Contents.** 1 What was run. 2 What a recurrent state is. 3 Why it cannot be trimmed. 4 Four ways to undo. 5 Criteria. 6 The third forward disappears. 7 Speed. 8 Memory. 9 Running backward: why it fails.
# 10 Which tokens can be drafted? 11 Negative results. 12 Verdict. 13 Measured here. 14 Threats to validity. 15 What holds here. 16 Provenance.

# %% tags=["parameters"]
target = "tiny-hybrid"         # model that decides every token: a name, folder or hub id
drafter = "uno"                # who proposes: uno, ngram, random, or the path of an adapter
block_sizes = [2, 4, 8]        # block widths K, in drafted positions
tokens = 48                    # new tokens a prompt
repeats = 2                    # passes over the prompts, arms interleaved
prompts = 27                   # prompts of the suite, 1 to 27
widths = [2, 3, 5, 9, 17]      # rows of the verify forward whose commits are timed
commits = 15                   # timed commits of each width, accepted count and way to undo
dtype = "float32"              # number format of the target: float32 or bfloat16
measure = False                # True: measure again; False: draw from recorded rows
quick = False                  # True: a one-minute measurement whose captions say that it is one
rows = ""                      # row file; empty: the committed one of the target

# %%
import math
import re

import numpy as np
import pandas as pd

from specdecode_nb import criteria
from specdecode_nb.book import draw, palette, published, start, undo

page = start("act4u2", globals())
frame = page.published.frame
judged = {c.id: c for c in page.published.facts.criteria}
u, u3 = published.load("act4u"), published.load("act4u3")

# %% [markdown]
# ## 1. What was run
#
# The adapter, the prompts and the decoder are those of Act IV-U. Only one thing varies, the way in which a block is taken back: *replay* (run the kept rows again), *snapshot* (keep every intermediate
# state), *rewind* (run the recurrence backward).

# %%
page.opening()

# %% [markdown]
# **Why it matters.** Hybrid models, in which most layers are recurrent, are attractive because their state does not grow with the text. Speculation seems to be made for them, and this is where it
# breaks: what cannot be trimmed must be restored, recomputed or inverted. Whoever drafts for such a model has to choose, and the choice decided here between slower and faster than plain decoding.

# %% [markdown]
# ## 2. What a recurrent state is
#
# A Gated DeltaNet layer keeps, per head, a matrix $S$ that maps keys to values. A token brings a unit key $k$, a value $v$, a query $q$, a decay $g$ between 0 and 1 and a write strength $\beta$ between
# 0 and 1. One step first lets the memory fade, then *corrects* what it returns for $k$, then reads:
#
# $$\bar S = g\,S, \qquad \delta = \beta\,(v - \bar S k), \qquad S' = \bar S + \delta\,k^{\top}, \qquad y = S' q .$$
#
# The vector $\delta$ is the innovation: the part of $v$ that the memory did not already return. That is the delta rule. Written as one update of the state,
#
# $$S' = g\,S\,\bigl(I - \beta\,k k^{\top}\bigr) + \beta\,v k^{\top} .$$
#
# The layer also keeps the last three inputs of its short convolution; those are rows and can be cut.

# %%
page.table("u2_state", caption="Everything that decoding changes, and what of it can be cut at a row")

# %%
recurrent = frame("u2_state").set_index("state").loc["DeltaNet recurrent state"]
window = frame("u2_state").set_index("state").loc["DeltaNet conv window"]
layers = int(re.match(r"\d+", recurrent["layers"])[0])
heads, value_dim, key_dim = map(int, re.findall(r"\d+", recurrent["shape"]))
window_rows, window_dim = map(int, re.findall(r"\d+", window["shape"]))
state_mb = layers * heads * value_dim * key_dim * 4 / 1e6
page.number("state_mb", state_mb, ".1f", "MB", "u2_state: shape, dtype, layers")
page.say("Of four kinds of state only one cannot be cut, and it is the largest: [[state_mb]] MB over all layers, whatever the length of the text.")
page.check("shape, number format and layer count give the published size", f"{state_mb:.1f} MB" == recurrent["bytes total"])
page.check("only the recurrent state is not truncatable", list(frame("u2_state")["truncatable"]) == ["yes", "yes", "yes", "no"])

# %% [markdown]
# ## 3. Why it cannot be trimmed
#
# Here is the rule in a few lines, in single precision, on a small state. No model is involved: keys are random unit vectors, the gates are typical ones.

# %%
F, SIZE, ROWS = np.float32, 12, 5
dice = np.random.default_rng(4)


def unit(n: int) -> np.ndarray:
    """A random unit vector, float32 [n]."""
    v = dice.standard_normal(n).astype(F)
    return v / np.linalg.norm(v)


def step(S, k, v, g, beta):
    """One row of the gated delta rule; returns the new state and the innovation."""
    faded = F(g) * S
    delta = F(beta) * (v - faded @ k)
    return faded + np.outer(delta, k), delta


committed = (0.5 * dice.standard_normal((SIZE, SIZE))).astype(F)
block = [(unit(SIZE), 1.6 * dice.standard_normal(SIZE).astype(F), 0.9, 0.5) for _ in range(ROWS)]  # key, value, decay, write strength
states, innovations = [committed], []
for row in block:
    state, delta = step(states[-1], *row)
    states.append(state)
    innovations.append(delta)

# %%
cache = np.full((4 + ROWS, SIZE), np.nan)
cache[:4] = 0.5 * dice.standard_normal((4, SIZE))
figure, axes = draw.panels(columns=ROWS + 1, rows=2, height=2.7, gridspec_kw={"height_ratios": [9, 12]})
for n in range(ROWS + 1):
    lines_before = cache[: 3 + n].copy()
    if n:
        cache[3 + n] = 0.5 * dice.standard_normal(SIZE)
    for ax, picture in zip(axes[:, n], (cache, states[n])):
        image = ax.imshow(picture, cmap="PuOr", vmin=-1.5, vmax=1.5, aspect="equal", interpolation="nearest")
        ax.set_xticks([])
        ax.set_yticks([])
        ax.grid(False)
        ax.spines[:].set_visible(False)
    axes[0, n].set_title("before" if not n else f"row {n}", fontsize=8, fontweight="normal", loc="center")
    for ax, changed in zip(axes[:, n], (cache[: 3 + n] != lines_before, states[n] != states[max(0, n - 1)])):
        ax.set_xlabel(f"{100 * changed.mean():.0f} %" if n else "rewritten:", fontsize=8)
axes[0, 0].set_ylabel("attention cache", fontsize=8)
axes[1, 0].set_ylabel("recurrent state", fontsize=8)
bar = figure.colorbar(image, ax=axes, shrink=0.8, ticks=[-1.5, 0, 1.5])
bar.ax.tick_params(labelsize=7.5)
bar.set_label("value of an entry", fontsize=8)
page.figure(figure, "trim", "What a block of five rows does to an attention cache (top: one more line each, nothing is rewritten) and to a recurrent state (bottom: every entry is rewritten at every row)",
            "Two rows of six small heat maps. On top a cache grows by one line per row while its other lines stay. Below, the square state matrix changes in all of its entries at each row.",
            sources=[page.computed])

# %%
page.check("every row of the block changes every entry of the state", all((a != b).all() for a, b in zip(states, states[1:])))

# %% [markdown]
# If the first two rows are to be kept, the cache on top is cut after its second new line. Nothing in the last matrix below says what the third matrix was. The last matrix holds the sum
#
# $$S_5 = S_0 A_1A_2A_3A_4A_5 + \sum_{t=1}^{5} \beta_t\,v_t k_t^{\top} A_{t+1}\cdots A_5, \qquad A_t = g_t\,(I-\beta_t\,k_t k_t^{\top}),$$
#
# in which every later row has rotated and faded everything written before it. Taking a row back means inverting its $A_t$, and section 9 shows what that costs.
#
# Cutting only the attention layers and leaving the recurrent ones as they are is not an approximation. It leaves layers that have read different texts.

# %% [markdown]
# ## 4. Four ways to undo
#
# The block has five rows, the first two are kept. Each way is one line or two.

# %%
KEEP = 2


def again() -> np.ndarray:
    """Replay: go back to the state before the block and run the kept rows again."""
    state = committed
    for row in block[:KEEP]:
        state, _ = step(state, *row)
    return state


def picked() -> np.ndarray:
    """Snapshot: all states were recorded on the way; pick one."""
    return states[KEEP]


def unstep(S, k, v, g, beta):
    """The step backward: the inverse of I - beta k k^T is I + beta/(1-beta) k k^T, on the right."""
    faded = S + F(beta) / (F(1) - F(beta)) * np.outer(S @ k - v, k)
    return faded / F(g)


def backward() -> np.ndarray:
    """Rewind: from the last state, row by row in reverse."""
    state = states[-1]
    for row in reversed(block[KEEP:]):
        state = unstep(state, *row)
    return state


def from_tape(tape=lambda x: x) -> np.ndarray:
    """Innovation tape: what each row wrote was recorded; fade and add, no products with the state."""
    state = committed
    for delta, (k, _, g, _) in zip(innovations[:KEEP], block):
        state = F(g) * state + np.outer(tape(delta), tape(k))
    return state


# %% [markdown]
# - **Replay** needs nothing stored and is right by construction, but a row of a hybrid model cannot be run again in one layer alone: the attention layers lie between, so it is a whole forward.
# - **Snapshot** stores a matrix per row and layer and costs nothing at commit. It is the scheme of this Act.
# - **Rewind** needs only the rows' keys, values and gates, and arithmetic at commit. It is exact on paper.
# - **Innovation tape** stores $\delta$, $k$ and $g$ per row. These are vectors, not matrices. At commit $S \leftarrow gS + \delta k^{\top}$ is repeated for the kept rows only. It was not part of this Act;
#   it is the default of this repository, where the other two exact ways serve as its oracle in the tests.

# %%
def bfloat16(x: np.ndarray) -> np.ndarray:
    """Rounded to bfloat16 (nearest, ties to even) and back."""
    bits = np.asarray(x, F).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(F)


def closed_form() -> np.ndarray:
    """The tape in one matrix product, with cumulative decays."""
    left = [np.prod([F(row[2]) for row in block[t + 1 : KEEP]], dtype=F) for t in range(KEEP)]
    keys, written = np.array([block[t][0] for t in range(KEEP)]), np.array([left[t] * innovations[t] for t in range(KEEP)])
    return np.prod([F(row[2]) for row in block[:KEEP]], dtype=F) * committed + written.T @ keys


ways = {"replay": again(), "snapshot": picked(), "rewind": backward(), "innovation tape": from_tape(), "innovation tape, kept in bfloat16": from_tape(bfloat16), "innovation tape, one product": closed_form(),
        "no undo at all": states[-1]}
undone = pd.DataFrame([{"way": name, "largest error": float(np.abs(s - again()).max()), "same bits as replay": bool((s == again()).all())} for name, s in ways.items()])
page.show(undone, "four-ways", f"The toy block of {ROWS} rows, {KEEP} kept: each way against replay", fmt={"largest error": ".1e"}, sources=[page.computed])

# %%
exact = undone.set_index("way")["same bits as replay"]
page.check("snapshot and tape give the same bits as replay, rewind does not", exact["snapshot"] and exact["innovation tape"] and not exact["rewind"])
page.check("a tape in bfloat16 is not exact, and a wrong state is much further off than any of the ways",
           not exact["innovation tape, kept in bfloat16"] and undone["largest error"].iloc[-1] > 20 * undone["largest error"].iloc[:-1].max())

# %% [markdown]
# Exactness is decided by small things. The tape is exact if it is kept in the precision of the step and replayed in the order of the step. Rounded to bfloat16, or folded into one matrix product, it is only close.
# Rewind, on these mild gates, is as close as rounding allows; the next sections show that the gates of a trained model are not mild.

# %%
tape_numbers = heads * (value_dim + key_dim + 1)
rows_k4 = 4 + 1
megabytes = {"replay": 0.0, "snapshot": rows_k4 * state_mb, "rewind": layers * rows_k4 * heads * (value_dim + key_dim + 2) * 4 / 1e6, "innovation tape": layers * rows_k4 * tape_numbers * 4 / 1e6}
costs = pd.DataFrame([{"way": w, "recorded beside the state before": mb, "work to keep some of the rows": work, "exact": exact} for (w, mb), (work, exact) in zip(megabytes.items(), (
    ("a forward of the whole model over the kept rows", "yes"), ("pick one", "yes"), ("one step backward a dropped row and layer", "on paper only"), ("one fade-and-add a kept row and layer", "yes, in the precision and order of the step")))])
costs.attrs = {"units": {"recorded beside the state before": "MB at K=4"}}
page.show(costs, "costs", "What each way records and does, for the shapes of the published model at K=4; computed, not measured", fmt={"recorded beside the state before": ".1f"}, sources=[page.published, page.computed])
page.number("tape_ratio", heads * value_dim * key_dim / tape_numbers, ".0f", "times", "u2_state: shape")
page.say("The difference between matrices and vectors follows from the shapes: a state has heads × $d_v$ × $d_k$ entries, a tape row heads × ($d_v$ + $d_k$ + 1). At the sizes of this model that is [[tape_ratio]] times less.")

# %% [markdown]
# Two more are met in practice. Keeping *one* extra state at the boundary of what is already confirmed is exact for a single drafted token and no more. Resetting the recurrent layers while trimming the
# attention layers is wrong: the layers then disagree about what has been read.

# %% [markdown]
# ## 5. Criteria

# %%
page.criteria(caption="Criteria of Act IV-U2, fixed before the run")

# %%
page.number("criteria_passed", sum(c.passed is True for c in judged.values()))
page.say("All [[criteria_passed]] pass. U2-1 is the one that matters most: for every block size and every number of kept rows the committed state must continue as the replayed one does.")
page.check("no criterion failed or was left open", all(c.passed is True for c in judged.values()))

# %% [markdown]
# ## 6. The third forward disappears
#
# What Act IV-U had left, and what it would have reached had its replays been free:

# %%
page.table("u2_predecessor", caption="The starting point, from Act IV-U")
before = frame("u2_predecessor").set_index("block size")
page.check("these are the figures of Act IV-U", all(
    list(before.loc[k]) == [u.value("u_tpf", "acceptance trained", **{"block size": k}), u.value("u_tpf", "TPF", **{"block size": k}),
                            u.value("u_tpf", "TPF without the replay forward (accounting)", **{"block size": k}), u.value("u_wallclock", "xAR", decoder=f"K={k}")] for k in before.index))

# %%
page.note("The 1.20-1.28 band")
band = [float(x) for x in re.search(r"band ([\d.]+)-([\d.]+)", judged["U2-3"].threshold).groups()]
headline = frame("u2_headline")
snapshot = headline[headline["mode"] == "snapshot"].set_index("block size")
page.number("band_low", band[0], ".2f", "tokens per forward", "U2-3")
page.number("band_high", band[1], ".2f", "tokens per forward", "U2-3")
page.number("tpf_k2", snapshot.loc[2, "TPF"], ".3f", "tokens per forward", "u2_headline")
page.number("tpf_k4", snapshot.loc[4, "TPF"], ".3f", "tokens per forward", "u2_headline")
page.say("A prediction that could have failed: without replays, TPF should fall between [[band_low]] and [[band_high]]. Measured: [[tpf_k2]] at K=2 and [[tpf_k4]] at K=4.")
page.check("both block sizes are inside the band", all(band[0] <= x <= band[1] for x in snapshot["TPF"]))

# %%
page.table("u2_headline", caption="The three ways to undo, in one session")

# %% [markdown]
# With $P$ prompts and $N$ tokens, $\mathrm{TPF} = N/(P + 2C + R)$ for $C$ cycles and $R$ replayed blocks. So the table gives away the cycles too.

# %%
published_prompts, published_tokens = map(int, re.findall(r"(\d+) (?:prompts|tokens)", page.published.facts.setup["evaluation"].replace(" x ", " ")))
N = published_prompts * published_tokens
account = headline[["block size", "mode", "replay forwards"]].copy()
account["forwards"] = [round(N / t) for t in headline["TPF"]]
account["cycles"] = (account["forwards"] - published_prompts - account["replay forwards"]) / 2
page.check("each published TPF fits one whole number of forwards, and of cycles",
           all(round(N / f, 3) == t for f, t in zip(account["forwards"], headline["TPF"])) and (account["cycles"] % 1 == 0).all())
page.check("and the published forwards per token are those forwards", all(abs(f / N - x) < 1e-3 for f, x in zip(account["forwards"], headline["forwards per token"])))
account["cycles"] = account["cycles"].astype(int)
page.show(account[["block size", "mode", "forwards", "cycles", "replay forwards"]], "forward-account", f"Forwards behind each TPF, computed here from N={N} tokens and P={published_prompts} prompts")

# %%
figure, ax = draw.panels(height=3.0)
draw.stacked([f"K={r['block size']}, {r['mode']}" for r in account.to_dict("records")],
             {"draft": account["cycles"], "verify": account["cycles"], "prefill": [published_prompts] * len(account), "replay": account["replay forwards"]}, f"forwards for {N} tokens (dashed: plain decoding)", fmt=".0f", ax=ax)
ax.axvline(N, color="#000000", linewidth=0.9, linestyle=(0, (4, 3)))
page.figure(figure, "forwards", "Where the forwards go; the dashed line is plain decoding, one forward a token",
            "Six stacked bars. With replay both block sizes lie beyond the line of plain decoding; with snapshot and rewind the replay part is gone and all four bars stay well below it.")

# %%
replayed = account[account["mode"] == "replay"].set_index("block size")["replay forwards"]
page.number("replays_k2", replayed[2], "d", "forwards", "u2_headline")
page.number("replays_k4", replayed[4], "d", "forwards", "u2_headline")
page.say("[[replays_k2]] and [[replays_k4]] replayed blocks become none. The number of cycles hardly moves, because the drafts are as good or bad as before:")
page.check("no forward is replayed in snapshot or rewind mode", (account.loc[account["mode"] != "replay", "replay forwards"] == 0).all())

# %%
page.table("u2_acceptance", caption="Acceptance by way of undoing")

# %% [markdown]
# **Two figures that do not quite match.** U2-0 says that replay mode reproduced Act IV-U, with identical acceptance and accounting. The tables of the two Acts differ in the third digit.

# %%
old = {}
for k in (2, 4):
    total, free = (round(N / u.value("u_tpf", c, **{"block size": k})) for c in ("TPF", "TPF without the replay forward (accounting)"))
    old[k] = {"forwards, Act IV-U": total, "replays, Act IV-U": total - free}
ours = account[account["mode"] == "replay"].set_index("block size")
both = pd.DataFrame([{"block size": k, "acceptance, Act IV-U": before.loc[k, "acceptance"], "acceptance, here": page.value("u2_acceptance", "replay", **{"block size": k}), **old[k],
                      "forwards, here": ours.loc[k, "forwards"], "replays, here": ours.loc[k, "replay forwards"]} for k in (2, 4)])
page.show(both, "replay-twice", "Replay mode in Act IV-U and here", sources=[page.published, u])
page.check("the two sessions differ, by less than one point of acceptance", all(0 < abs(r["acceptance, Act IV-U"] - r["acceptance, here"]) < 0.01 for r in both.to_dict("records")))

# %% [markdown]
# Our reading is that the draft noise was drawn from a global stream, so two sessions see different drafts; Act IV-U4 later found exactly that and keyed the noise. "Identical" is then a statement about the code path,
# which the tests cover, and not about these two tables. The same explains why rewind and snapshot need different numbers of cycles although U2-4 found their *tokens* identical: the target decides the
# tokens, the noise decides how many cycles it takes.

# %%
per_mode = account.set_index(["block size", "mode"])["cycles"]
page.check("rewind and snapshot use different numbers of cycles at both block sizes", all(per_mode[k, "rewind"] != per_mode[k, "snapshot"] for k in (2, 4)))
page.note("AR agreement is 0.853 in every mode")

# %% [markdown]
# ## 7. Speed

# %%
modes = ("replay", "snapshot", "rewind")
xar = headline.set_index(["block size", "mode"])["xAR"]
figure, ax = draw.panels(height=2.9)
draw.bars(["K=2", "K=4"], {m: [xar[2, m], xar[4, m]] for m in modes}, "speed (× plain decoding)", reference=1.0, fmt=".2f", ax=ax)
ax.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3, frameon=False, fontsize=8)
page.figure(figure, "speed",
            "Speed against plain decoding in the same session, by way of undoing",
            "Grouped bars. At K=2: replay 0.93, snapshot 1.09, rewind 1.01. At K=4: replay 0.79, snapshot 1.03, rewind 0.78. Only snapshot is above one at both.")

# %%
plain_speed = float(re.search(r"AR ([\d.]+) tok/s", page.published.table("u2_headline").title)[1])
page.number("plain_speed", plain_speed, ".2f", "tok/s", "u2_headline: title")
page.number("x_k2", xar[2, "snapshot"], ".2f", "× plain", "u2_headline")
page.number("x_k4", xar[4, "snapshot"], ".2f", "× plain", "u2_headline")
page.number("x_k4_replay", xar[4, "replay"], ".2f", "× plain", "u2_headline")
page.say("Against plain decoding at [[plain_speed]] tok/s, snapshot reaches [[x_k2]] times at K=2 and [[x_k4]] times at K=4, where replay was at [[x_k4_replay]].")
page.check("the ratios are throughput over the plain speed of the session", ((headline["throughput"] / plain_speed - headline["xAR"]).abs() < 0.0051).all())
page.check("snapshot is the only way above plain decoding at both block sizes", [m for m in modes if xar[2, m] > 1 and xar[4, m] > 1] == ["snapshot"])

# %% [markdown]
# TPF went up more than speed did. The quotient TPF / speed is what one forward of the decoder costs in plain steps, everything around it included.

# %%
price = pd.DataFrame([{"block size": r["block size"], "mode": r["mode"], "TPF": r["TPF"], "× plain": r["throughput"] / plain_speed, "plain steps per forward": r["TPF"] * plain_speed / r["throughput"]}
                      for r in headline.to_dict("records")])
page.show(price, "price", "What a forward costs, in plain steps; computed here", fmt={"TPF": ".3f", "× plain": ".3f", "plain steps per forward": ".2f"})
steps_of = price.set_index(["block size", "mode"])["plain steps per forward"]
page.number("price_snapshot_k4", steps_of[4, "snapshot"], ".2f", "plain steps per forward", "u2_headline")
page.number("price_snapshot_k2", steps_of[2, "snapshot"], ".2f", "plain steps per forward", "u2_headline")
page.number("price_rewind_k4", steps_of[4, "rewind"], ".2f", "plain steps per forward", "u2_headline")
page.number("price_replay_k4", steps_of[4, "replay"], ".2f", "plain steps per forward", "u2_headline")
page.say("Snapshot's forwards are dearer than replay's ([[price_snapshot_k4]] plain steps against [[price_replay_k4]] at K=4; many of the latter are short re-runs). It wins because there are so many fewer. Rewind saves the "
         "same forwards, but its arithmetic at commit brings the price to [[price_rewind_k4]], and the saving is gone. The price rises with the block too: with snapshot it is [[price_snapshot_k2]] at K=2. That is why K=2 "
         "is ahead of K=4 here although K=4 has the higher TPF.")
page.check("at both block sizes a forward costs least with replay and most with rewind", all(steps_of[k, "replay"] < steps_of[k, "snapshot"] < steps_of[k, "rewind"] for k in (2, 4)))

# %%
page.note("Later Acts use snapshot mode only")

# %% [markdown]
# ## 8. Memory
#
# Snapshot holds the state before the block and after each of its $K+1$ rows, for every recurrent layer, and the convolution inputs; all of it only until the commit.

# %%
page.table("u2_memory", caption="Recorded state by block size")


def recorded_mb(k: int) -> float:
    """Megabytes of K + 2 float32 states and 3 + K + 1 bfloat16 convolution rows in all recurrent layers."""
    return (k + 2) * state_mb + layers * (window_rows + k + 1) * window_dim * 2 / 1e6


def tape_mb(k: int) -> float:
    """Megabytes of an innovation tape of K + 1 rows in float32, one state before the block, and the same convolution rows."""
    return state_mb + layers * ((k + 1) * tape_numbers * 4 + (window_rows + k + 1) * window_dim * 2) / 1e6


memory = frame("u2_memory").set_index("block size")
page.check("both measured sizes follow from the shapes to the megabyte", all(round(recorded_mb(k)) == memory.loc[k, "recorded state"] for k in (2, 4)))
page.check("the projection for K=8 is within 2 % of what the shapes give", abs(recorded_mb(8) / memory.loc[8, "recorded state"] - 1) < 0.02)

# %%
ks = (1, 2, 4, 8, 16)
figure, ax = draw.panels(height=2.9)
measured = memory[memory["kind"] == "measured"]
draw.lines({"every state (from the shapes)": (ks, [recorded_mb(k) for k in ks]), "innovation tape (from the shapes)": (ks, [tape_mb(k) for k in ks])}, "block size K", "held until the commit (MB)", ylim=(0, 960), ax=ax)
ax.plot(measured.index, measured["recorded state"], linestyle="none", marker="*", markersize=13, color=palette.ORANGE, markeredgecolor="#000000", markeredgewidth=0.6, label="published, measured")
ax.set_xticks(ks)
ax.legend(loc="upper left", frameon=False, fontsize=8)
page.figure(figure, "memory", "Memory held until the commit, by block size: every state, or a tape; the two published measurements lie on the first",
            "Two lines over K from 1 to 16. Keeping every state rises steadily from 150 to about 900 MB; the tape stays between 55 and 75 MB. The published 204 and 305 MB lie on the first line.",
            sources=[page.published, page.computed])

# %%
page.number("memory_k4", recorded_mb(4), ".1f", "MB", "u2_state")
page.number("tape_k4", tape_mb(4), ".1f", "MB", "u2_state")
page.number("rewind_mb", page.value("u2_headline", "recorded state", **{"block size": 4, "mode": "rewind"}), "d", "MB", "u2_headline")
page.number("snapshot_mb", page.value("u2_headline", "recorded state", **{"block size": 4, "mode": "snapshot"}), "d", "MB", "u2_headline")
page.say("At K=4 the states come to [[memory_k4]] MB; a tape with the one state it starts from would hold [[tape_k4]] MB. And rewind, the idea that was to save memory, holds *more* than snapshot "
         "([[rewind_mb]] against [[snapshot_mb]] MB), because its safety net is the recorded states.")
page.check("rewind records at least as much as snapshot at both block sizes",
           all(page.value("u2_headline", "recorded state", **{"block size": k, "mode": "rewind"}) >= page.value("u2_headline", "recorded state", **{"block size": k, "mode": "snapshot"}) for k in (2, 4)))

# %% [markdown]
# ## 9. Running backward: why it fails
#
# For a unit key the factor of a step has an exact inverse, and so the step can be undone without any stored state:
#
# $$\bigl(I-\beta\,kk^{\top}\bigr)^{-1} = I + \frac{\beta}{1-\beta}\,kk^{\top}, \qquad S = \frac{1}{g}\Bigl(S' + \frac{\beta}{1-\beta}\,(S'k - v)\,k^{\top}\Bigr).$$
#
# Two factors amplify whatever rounding error $S'$ carries: $1/(1-\beta)$ along the key, and $1/g$ everywhere. Over the undone rows they multiply,
#
# $$a = \prod_t \frac{1}{(1-\beta_t)\,g_t}\,.$$
#
# At $\beta = 1$ the step is a projection: what the memory held for $k$ is erased, and no arithmetic brings it back. At $g = 0$ all of it is erased.

# %%
page.table("u2_invertibility", caption="Invertibility: what was measured", fmt={"value": "r"})

# %% [markdown]
# On which side of the state the projector stands is not a matter of taste. The step above writes along $k$, which indexes the *columns* of $S$, so the factor stands on the right. The toy confirms it:

# %%
k, v, g, beta = block[0]
projector = np.eye(SIZE, dtype=F) - F(beta) * np.outer(k, k)
write = F(beta) * np.outer(v, k)
errors = {"right": float(np.abs(F(g) * committed @ projector + write - states[1]).max()), "left": float(np.abs(projector @ (F(g) * committed) + write - states[1]).max())}
page.check("the factor on the right reproduces the step to rounding, on the left it does not", errors["right"] < 1e-6 and errors["left"] > 0.05)

# %%
page.table("u2_conditioning", caption="The gates of the frozen model on held-out text", fmt={c: ".6g" for c in ("min", "p10", "median", "p90", "p99", "p99.9", "max")})
gates = frame("u2_conditioning").set_index("quantity")
page.check("the last row follows from the first", all(abs(gates.loc["beta", c] / (1 - gates.loc["beta", c]) / gates.loc["beta/(1-beta)", c] - 1) < 0.02 for c in ("min", "p10", "median", "p90", "p99", "p99.9")))
page.check("the 99.9th percentile of beta is the largest bfloat16 below one, to the published digits", round(1 - 2**-8, 4) == gates.loc["beta", "p99.9"])

# %%
marks = ["p10", "median", "p90", "p99", "p99.9"]
decay_at = {"p10": "p90", "median": "median", "p90": "p10"}
figure, ax = draw.panels(height=3.0)
draw.lines({"by the write strength, 1/(1−β)": (range(5), [1 / (1 - gates.loc["beta", m]) for m in marks]), "by the decay, 1/g": (range(3), [1 / gates.loc["decay g", decay_at[m]] for m in marks[:3]])},
           "percentile of head-steps", "amplification in one step", ax=ax)
guard = max(r["max amplification"] for r in frame("u2_threshold").to_dict("records") if r["correct"])
ax.axhline(guard, color="#000000", linewidth=0.9, linestyle=(0, (4, 3)))
ax.annotate("the guard, for a whole block", (0, guard), xytext=(0, 3), textcoords="offset points", fontsize=7.8)
ax.set_yscale("log")
ax.set_ylim(0.8, 4000)
ax.set_xticks(range(6), [*marks, "max"])
ax.set_xlim(-0.2, 5.4)
ax.annotate("no bound:\nβ reaches 1, g reaches 0", (5, 3600), xytext=(5, 500), ha="center", fontsize=7.8, arrowprops={"arrowstyle": "->"})
page.figure(figure, "amplification", "How much one backward step amplifies an error, by percentile of the published gate statistics; the decay's upper percentiles were not published",
            "Amplification by 1/(1-beta) rises from 1.1 at the tenth percentile over 2 at the median and 9 at p90 to 64 at p99 and 256 at p99.9, past the guard of 100; the maximum is infinite.")

# %%
facts = frame("u2_invertibility").set_index("quantity")["value"]
share = facts["share with 1-beta < 1e-4 (%)"] / 100
head_steps = int(facts["head-steps per K=4 verify pass"])
page.number("head_steps", head_steps, ",d", "head-steps", "u2_invertibility")
page.number("singular_share", 100 * share, ".3f", "% of head-steps", "u2_invertibility")
page.number("hit_chance", 100 * (1 - (1 - share) ** head_steps), ".0f", "%", "u2_invertibility")
page.say("A verify pass at K=4 makes [[head_steps]] head-steps. With [[singular_share]] % of them nearly singular, [[hit_chance]] % of all blocks contain at least one. So the case is not rare; it is the rule.")
page.check("layers × heads × rows of the block are the head-steps of a pass", layers * heads * 5 == head_steps)
page.check("the chance is the published one", round(100 * (1 - (1 - share) ** head_steps)) == facts["P(at least one near-singular head-step per block) (%)"])
page.check("beta above 0.999 and 1-beta below 1e-4 are equally frequent, because in bfloat16 both mean exactly one", facts["share with beta > 0.999 (%)"] == facts["share with 1-beta < 1e-4 (%)"])

# %% [markdown]
# The toy shows that the product $a$ is the right thing to guard. Below, gates are drawn independently from the published percentiles, five rows are run forward and then backward. The error of the rewound state
# follows $a$ times the rounding unit of single precision.

# %%
quantiles = [0.0, 0.1, 0.5, 0.9, 0.99, 0.999]
draw_gate = {name: (lambda row: lambda: F(np.interp(dice.uniform(0.02, 0.999), quantiles, row)))([float(gates.loc[name, c]) for c in ("min", "p10", "median", "p90", "p99", "p99.9")]) for name in ("beta", "decay g")}
points = {1: ([], []), 3: ([], []), 5: ([], [])}
for _ in range(120):
    trail, used = [(0.1 * dice.standard_normal((SIZE, SIZE))).astype(F)], []
    for _ in range(ROWS):
        used.append((unit(SIZE), (0.3 * dice.standard_normal(SIZE)).astype(F), draw_gate["decay g"](), draw_gate["beta"]()))
        trail.append(step(trail[-1], *used[-1])[0])
    state, a = trail[-1], 1.0
    for n in range(ROWS, 0, -1):
        state, a = unstep(state, *used[n - 1]), a / ((1 - float(used[n - 1][3])) * float(used[n - 1][2]))
        if ROWS + 1 - n in points:
            points[ROWS + 1 - n][0].append(a)
            points[ROWS + 1 - n][1].append(float(np.abs(state - trail[n - 1]).max() / np.abs(trail[n - 1]).max()))
every = np.concatenate([np.array(p).T for p in points.values()])

# %%
figure, ax = draw.panels(height=3.2)
draw.scatter({f"{n} row{'s' * (n > 1)} undone": p for n, p in points.items()}, "accumulated amplification a", "error of the rewound state (relative)", ax=ax)
ax.set_xscale("log")
ax.set_yscale("log")
unit_roundoff = float(np.finfo(F).eps)
span = np.array([1, every[:, 0].max()])
ax.plot(span, unit_roundoff * span, color="#000000", linewidth=0.9, linestyle=(0, (4, 3)))
ax.axvline(guard, color="#767676", linewidth=0.9)
ax.annotate("guard", (guard, ax.get_ylim()[0]), xytext=(3, 4), textcoords="offset points", fontsize=7.8)
page.figure(figure, "rewind-error", "Error of a rewound toy state against the accumulated amplification; dashed: amplification times the rounding unit of single precision. Gates drawn independently from the published percentiles",
            "Log-log scatter. Points for one, three and five undone rows rise along the dashed diagonal, from about 1e-7 at amplification 1 to some 1e-4 at amplifications above 1e4; one row undone stays left of the guard, five rows lie mostly right of it.",
            sources=[page.published, page.computed])
page.check("the error stays below four rounding units times the amplification", bool((every[:, 1] < 4 * unit_roundoff * every[:, 0]).all()))

# %% [markdown]
# So the built rewind carries a guard: a head whose accumulated $a$ exceeds a limit takes its recorded state instead. The limit was chosen on a test fixture:

# %%
page.table("u2_threshold", caption="The limit of the guard on a test fixture: whether the result is correct, and how often it falls back")
page.table("u2_fallback", caption="Fallback on the real model, in % of head-steps")

# %%
page.number("guard", guard, "d", "accumulated amplification", "u2_threshold")
page.number("fixture_fallback", page.value("u2_threshold", "fallback low", **{"max amplification": guard}), "d", "% of head-steps", "u2_threshold")
page.number("fallback_k4", page.value("u2_fallback", "fallback rate", **{"block size": 4}), ".1f", "% of head-steps", "u2_fallback")
page.say("The loosest limit that gave correct output was [[guard]], and on the fixture it meant falling back in more than [[fixture_fallback]] % of head-steps. The real model's gates are kinder: [[fallback_k4]] % at K=4. "
         "That passes U2-5. It does not help: the recorded states have to be there anyway.")
page.check("a limit of 1000 was wrong, 100 and below were right", [r["correct"] for r in frame("u2_threshold").to_dict("records")] == [False, True, True, True])

# %% [markdown]
# ## 10. Which tokens can be drafted?
#
# Act IV-U had found that teacher entropy is a poor sign of what can be drafted. This Act tried a second sign, computed on the frozen model alone: the *draftability gap*, the distance between the model's
# distribution on the true context and on the context whose last tokens are noise,
#
# $$\mathrm{gap} = \sum_{v}\bigl|\,p(v \mid \text{true context}) - p(v \mid \text{noised context})\,\bigr| \;\in [0, 2].$$
#
# A small gap means that the lost tokens did not matter, so a guess without them has a chance.

# %%
quintiles = frame("u2_draftability")
page.figure(draw.lines({"sorted by draftability gap": (range(1, 6), quintiles["agreement by gap"]), "sorted by teacher entropy": (range(1, 6), quintiles["agreement by entropy"])}, "quintile (1 = lowest)",
                       "agreement with the target", whole_x=True, ylim=(0, 0.3)), "draftability", "Agreement at K=8 by quintile of two signs that need no trained adapter",
            "Two lines over five quintiles. By gap: falling from 0.26 to 0.07. By entropy: rising from 0.15 to 0.21 and then falling to 0.07.")

# %%
page.table("u2_draftability", caption="Agreement by quintile of the draftability gap and of teacher entropy, K=8")
page.table("u2_draft_corr", caption="Correlation of each sign with agreement")

# %%
positions = int(page.value("u2_draft_corr", "n", **{"block size": 8}))
low, second = quintiles["agreement by entropy"].iloc[:2]
dip = (second - low) / math.sqrt((low * (1 - low) + second * (1 - second)) / (positions / 5))
ratio = page.value("u2_draft_corr", "r(gap, agreement)", **{"block size": 8}) / page.value("u2_draft_corr", "r(entropy, agreement)", **{"block size": 8})
page.number("dip_se", dip, ".1f", "standard errors", "u2_draftability")
page.number("r_ratio", ratio, ".1f", "times", "u2_draft_corr")
page.say("At K=8 the gap correlates [[r_ratio]] times as strongly as entropy. And the dip of the lowest-entropy quintile, seen on few positions in Act IV-U, is back at [[dip_se]] standard errors (taking positions as "
         "independent, which positions of one block are not).")
page.check("agreement falls with the gap except for one step between neighbors, and rises at first with entropy",
           sum(b > a for a, b in zip(quintiles["agreement by gap"], quintiles["agreement by gap"][1:])) == 1 and second > low)

# %% [markdown]
# **How far this carries.** The next Act evaluated the same adapter at K=4 and could not confirm the lead.

# %%
page.note("Act IV-U3 notes that the gap")

# %%
small = frame("u2_draft_corr").set_index("block size").loc[4]
pair = pd.DataFrame([{"evaluated in": "this Act", "block size": 4, "positions": int(small["n"]), "r(gap, agreement)": small["r(gap, agreement)"], "r(entropy, agreement)": small["r(entropy, agreement)"]},
                     {"evaluated in": "Act IV-U3", "block size": 4, "positions": None, "r(gap, agreement)": u3.value("u3_draft_quint", "r(gap, agreement)", checkpoint="orig400"),
                      "r(entropy, agreement)": u3.value("u3_draft_quint", "r(entropy, agreement)", checkpoint="orig400")}])
page.show(pair, "k4-correlations", "The same adapter at K=4, twice", fmt={"r(gap, agreement)": ".3f", "r(entropy, agreement)": ".3f"}, sources=[page.published, u3])
page.number("r_se", 1 / math.sqrt(small["n"]), ".2f", "standard error of r near zero", "u2_draft_corr")
page.say("This Act's own K=4 figures favor the gap, those of Act IV-U3 entropy. With a standard error of about [[r_se]] for so few positions, neither order is established at K=4.")
page.check("the two evaluations order the signs differently", abs(pair["r(gap, agreement)"].iloc[0]) > abs(pair["r(entropy, agreement)"].iloc[0]) and abs(pair["r(gap, agreement)"].iloc[1]) < abs(pair["r(entropy, agreement)"].iloc[1]))

# %% [markdown]
# ## 11. Negative results
#
# ### Rewind cannot replace stored state

# %%
page.negative("Algebraic rewind can replace", "worst_amplification", "worst amplification of an error in a single backward step",
              {"xAR_rewind_k4": "rewind at K=4, × plain", "xAR_snapshot_k4": "snapshot at K=4, × plain", "fallback_k4_pct": "fallback at K=4, % of head-steps"})

# %% [markdown]
# It is dominated in every column: slower, not smaller, and right only because the states it was to replace are kept as a net.
#
# ### A guard on the write strength alone is not enough

# %%
page.negative("Guarding on beta alone", "rewind_error", "error of a rewound state", {"state_magnitude": "size of the state itself", "g": "decay of that step"})

# %% [markdown]
# The toy repeats it: a harmless write strength, a tiny decay. What the step kept of the old state is below the rounding of what it wrote, so dividing by the decay returns noise.

# %%
tiny = page.published.negative("Guarding on beta alone").numbers["g"]
after, _ = step(committed, unit(SIZE), dice.standard_normal(SIZE).astype(F), 1.0, 0.3)
key, value = unit(SIZE), dice.standard_normal(SIZE).astype(F)
faded, _ = step(after, key, value, tiny, 0.3)
lost = float(np.abs(unstep(faded, key, value, tiny, 0.3) - after).max())
page.number("toy_lost", lost, ".0f", "largest error", "toy")
page.number("toy_size", float(np.abs(after).max()), ".1f", "largest entry", "toy")
page.say("In the toy the rewound state is off by up to [[toy_lost]], where the state's largest entry is [[toy_size]].")
page.check("the error is larger than the state", lost > 3 * float(np.abs(after).max()))

# %% [markdown]
# ### Teacher entropy is not the better sign

# %%
page.negative("Teacher entropy is a good", "r_entropy", "correlation of teacher entropy with agreement at K=8",
              {"r_gap": "of the draftability gap", "entropy_q0": "agreement in the lowest-entropy quintile", "entropy_q1": "in the next"})

# %% [markdown]
# ### The projector does not stand on the left

# %%
page.negative("The projector multiplies on the left", "left_error", "error of the form with the projector on the left", {"right_error": "on the right"})

# %% [markdown]
# A wrong side of a matrix product is the kind of error that a derivation on paper does not reveal and one numeric check does.
#
# ## 12. Verdict

# %%
page.merit()

# %%
page.verdict()

# %% [markdown]
# ## 13. Measured here
#
# Four ways to undo on this repository's own target, in one session: *replay*, *snapshot*, *rewind* as published, and the *innovation tape*. They stand behind one interface, so an arm differs from another of
# its block size in the undo of the verify forward alone. As published, a draft is dropped whole and the verify forward takes $K+1$ rows. Arms follow each other on every prompt; one pass is dropped as warm-up.
#
# The rules of section 15 were committed before these rows, and the rows name their digest.

# %%
rules = criteria.load("act4u2")
if page.measured():
    here = page.rows.name
    decoded, timed, gated, rewound = (page.rows.of(kind) for kind in ("decode", "commit", "gates", "rewind"))
    sizes = page.rows.config["block_sizes"]
    found = undo.outcomes(rules, page.rows)
    for key in ("tokens", "repeats"):
        page.number(f"here_{key}", page.rows.config[key], "d", source=here)
    page.number("here_prompts", len(page.rows.config["prompts"]), "d", "prompts", here)
    page.say(f"[[here_prompts]] prompts, [[here_tokens]] tokens each, [[here_repeats]] repeats (published: {page.published.facts.setup['evaluation']})."
             + (" **This is a reduced run**, shorter than the protocol asks for." if page.rows.config["reduced"] else ""))
    kinds = pd.DataFrame(page.rows.rows)["kind"].value_counts().rename_axis("kind of row").reset_index(name="rows")
    page.show(kinds, "measured-rows", "Rows recorded here", sources=[page.rows])
else:
    found = [criteria.judge(c, None) for c in rules]

# %% [markdown]
# ### Tokens per forward and speed

# %%
if page.rows:
    table = undo.headline(decoded)
    page.show(table, "measured-headline", "The ways to undo in one session: pooled tokens per forward, median speed against the faster plain arm, each with its 95 % interval over prompts",
              {c: ".3f" for c in ("TPF", "TPF low", "TPF high", "x plain", "low", "high")} | {"tok/s": ".1f", "recorded": ".1f", "fallback": ".1f"}, sources=[page.rows])

# %%
if page.rows:
    entries = [{"label": f"K={r['block size']}, {r['mode']}", "value": r["x plain"], "low": r["low"], "high": r["high"], "n": len({d["prompt_id"] for d in decoded})} for r in table.to_dict("records")]
    page.figure(draw.forest(entries, "speed (× faster plain arm)", reference=1.0, fmt=".2f"), "measured-speed", "Measured speed by block size and way to undo, with 95 % intervals over prompts",
                "One mark with an interval for each block size and way to undo, beside a dashed line at the speed of plain decoding.", sources=[page.rows])

# %%
if page.rows:
    by_mode = table.set_index(["block size", "mode"])
    first = 4 if 4 in sizes else sizes[0]
    names = ("replay", "snapshot", "rewind", "innovation tape")
    for name in names:
        page.number(f"here_{name.split()[-1]}", by_mode.loc[(first, name), "x plain"], ".3f", "x faster plain arm", here)
    page.number("here_k", first, "d", source=here)
    page.number("here_replays", by_mode.loc[(first, "replay"), "replayed blocks"], "d", "forwards", here)
    page.number("here_fallback", by_mode.loc[(first, "rewind"), "fallback"], ".1f", "% of head-steps", here)
    page.number("here_unlike", sum(not r["identical_to_ar"] for r in decoded), "d", "rows", here)
    page.number("here_rows", len(decoded), "d", "rows", here)
    page.say("At K=[[here_k]]: replay [[here_replay]], snapshot [[here_snapshot]], rewind [[here_rewind]] and the tape [[here_tape]] times the faster plain arm. Replay ran [[here_replays]] blocks again; rewind fell back in "
             "[[here_fallback]] % of the head-steps it undid. Of [[here_rows]] decoded texts [[here_unlike]] are not those of plain decoding.")

# %% [markdown]
# ### What one commit costs
#
# A commit is a small part of a cycle, so its price is hidden in the speed of a decoder. Here it is timed by itself: from the same caches, a verify forward of so many rows, an evaluation barrier, the commit, a
# second barrier. The four ways take turns on each repetition, and each repetition is on another prompt. For replay the forward over the kept rows is part of the commit.

# %%
if page.rows:
    grid, every = undo.commit_grid(timed), undo.commits(timed)
    counts = {w: {1, (w + 1) // 2, w - 1, w} for w in grid["width"]}
    folded = grid[[k in counts[w] for w, k in zip(grid["width"], grid["kept"])]]
    folded.attrs = grid.attrs
    page.show(folded, "measured-commits", "Median milliseconds of a commit by rows of the verify forward, rows kept and way to undo", {n: ".3f" for n in names}, sources=[page.rows], full=every,
              full_fmt={c: ".4f" for c in ("commit", "p25", "p75", "verify")} | {"recorded": ".1f", "fallback": ".1f", "largest error": ".1e"})

# %%
if page.rows:
    wide = max(page.rows.config["widths"])
    figure, (left, right) = draw.panels(2, height=3.1, sharey=True)
    draw.lines({n: (list(v), list(v.values())) for n, v in undo.by_width(timed).items()}, "rows of the verify forward", "milliseconds of a partial commit", title="all partial counts", ax=left)
    at = grid[(grid["width"] == wide) & (grid["kept"] < wide)]
    draw.lines({n: (at["kept"], at[n]) for n in names}, "rows kept", "", title=f"{wide} rows verified", ax=right)
    left.set_yscale("log")
    left.set_xticks(page.rows.config["widths"])
    right.set_xticks(at["kept"].tolist()[::2])
    page.figure(draw.legend_above(figure, len(names)), "measured-commit", "Median time of a partial commit: by width over all partial counts, and by the rows kept of the widest block; keeping all rows undoes nothing and is left out",
                "Two panels of four lines on a logarithmic scale. Milliseconds of a commit by way to undo, against the width of the verify forward and against the rows kept.", sources=[page.rows])

# %%
if page.rows:
    at5 = 5 if 5 in page.rows.config["widths"] else wide
    cost = undo.by_width(timed)
    for name in names:
        page.number(f"commit_{name.split()[-1]}", cost[name][at5], ".3f", "ms", here)
    page.number("commit_width", at5, "d", "rows", here)
    page.number("commit_verify", float(np.median([v for r in timed if r["width"] == at5 for v in r["verify_ms"]])), ".1f", "ms", here)
    page.number("commit_error", max(e for r in timed if r["scheme"] == "rewind" for e in r["state_error"]), ".1e", "of the largest entry", here)
    page.number("replay_error", max(e for r in timed if r["scheme"] == "replay" for e in r["state_error"]), ".1e", "of the largest entry", here)
    page.say("With [[commit_width]] rows verified, the median partial commit takes [[commit_snapshot]] ms by picking a state, [[commit_tape]] ms from the tape, [[commit_rewind]] ms by running backward and "
             "[[commit_replay]] ms by running the rows again; the verify forward before it takes [[commit_verify]] ms. Against the states that snapshot kept, rewound ones are off by up to [[commit_error]] of the largest entry. "
             "Replayed ones differ by up to [[replay_error]]: a narrower forward may round its matrix products in another order.")

# %% [markdown]
# ### What is held until the commit

# %%
if page.rows:
    held = pd.DataFrame([{"verify width": w} | {undo.NAMES[s]: undo.recorded(timed, s, w) / 1e3 for s in undo.SCHEMES} for w in page.rows.config["widths"]])
    held.attrs["units"] = {n: "kB" for n in names}
    page.show(held, "measured-memory", "Recorded beside the caches and the convolution rows, by rows of the verify forward", {n: ".1f" for n in names}, sources=[page.rows])
    page.number("held_ratio", undo.recorded(timed, "per_token_states", at5) / undo.recorded(timed, "tape", at5), ".1f", "times", here)
    page.number("held_rewind", undo.recorded(timed, "rewind", at5) / undo.recorded(timed, "per_token_states", at5), ".3f", "times", here)
    page.say("The states take [[held_ratio]] times the room of the tape. Rewind takes [[held_rewind]] times that of the states, which are its net.")
    page.check("replay records nothing, and every other way records in proportion to the width",
               all(undo.recorded(timed, "replay", w) == 0 and all(undo.recorded(timed, s, w) * at5 == undo.recorded(timed, s, at5) * w for s in undo.SCHEMES) for w in page.rows.config["widths"]))

# %% [markdown]
# ### The gates of real text
#
# Every head of every recurrent layer, at every position of prompts of the suite and of their plain continuation.

# %%
if page.rows:
    quantiles_here = undo.gates(gated)
    everywhere = quantiles_here[quantiles_here["layer"] == "all"].drop(columns="layer")
    page.show(everywhere, "measured-gates", "Quantiles of the gates and of the amplification of one backward step, over all layers", {q: ".4g" for q in undo.QUANTILES}, sources=[page.rows], full=quantiles_here)
    page.show(undo.gate_shares(gated, sizes), "measured-singular", "Head-steps that are nearly singular, and the blocks that would hold one if head-steps were independent",
              {"share": ".3f"} | {f"blocks of K={k}": ".1f" for k in sizes}, sources=[page.rows])

# %%
if page.rows:
    steep = quantiles_here[(quantiles_here["quantity"] == "amplification") & (quantiles_here["layer"] != "all")]
    figure, ax = draw.panels(height=3.0)
    draw.lines({f"layer {r['layer']}": (range(len(undo.QUANTILES)), [r[q] for q in undo.QUANTILES]) for r in steep.to_dict("records")}, "percentile of head-steps", "amplification in one step", ax=ax)
    ax.axhline(guard, color="#000000", linewidth=0.9, linestyle=(0, (4, 3)))
    ax.annotate("the guard, for a whole block", (0, guard), xytext=(0, 3), textcoords="offset points", fontsize=7.8)
    ax.set_yscale("log")
    ax.set_xticks(range(len(undo.QUANTILES)), list(undo.QUANTILES))
    page.figure(figure, "measured-amplification", "Measured amplification of one backward step by layer and percentile of head-steps", "One rising line a recurrent layer over the percentiles of head-steps, on a "
                "logarithmic scale, with the limit of the guard as a dashed line.", sources=[page.rows])

# %%
if page.rows:
    values = undo.gate_values(gated)
    page.number("gate_steps", len(values["beta"]), ",d", "head-steps", here)
    page.number("gate_median", float(np.median(values["amplification"])), ".2f", "times", here)
    page.number("gate_worst", float(values["amplification"].max()), ".3g", "times", here)
    page.number("gate_ones", sum(r["beta_is_one"] for r in gated), "d", "head-steps", here)
    page.number("gate_zeros", sum(r["decay_is_zero"] for r in gated), "d", "head-steps", here)
    page.say("Of [[gate_steps]] head-steps the median amplifies an error [[gate_median]] times and the worst [[gate_worst]] times. In float32 $\\beta$ rounds to exactly one in [[gate_ones]] of them and $g$ to exactly zero in [[gate_zeros]].")

# %% [markdown]
# ### What the guard lets through
#
# Blocks of the plain continuation, run forward and rewound to their first row, under several limits and without any. The error is the largest of any entry, relative to the largest entry of the true state. The last
# rows guard on the write strength alone.

# %%
if page.rows:
    tolerance = rules["rewind-limit-100"].rule.threshold
    page.number("guard_tolerance", tolerance, "g", "of the largest entry", rules.name)
    page.show(undo.guards(rewound, tolerance), "measured-guards", "Rewinding all rows of a block but the first: fallback and largest error by guard and verify width; within [[guard_tolerance]] or not",
              {"fallback": ".1f", "largest error": ".1e"}, sources=[page.rows, rules])

# %% [markdown]
# ## 14. Threats to validity
#
# - **No raw data.** No committed CSV or JSON stands behind these tables; they come from the reports. The forwards, the memory and the chance of a singular head-step were recomputed above and fit.
# - **A small margin at K=4.** The verdict's speed-up at K=4 is a few percent, from one session, with no interval and with draft noise that was not keyed. Act IV-U4 found sessions to differ by about as much. The
#   gain over *replay* is many times larger and does not depend on that.
# - **Best case for the comparison.** Prompts are short and so is the output; recorded states do not grow with the text, so longer texts should not change the undo, but this was not measured here.
# - **One shape.** The price of recording depends on how many recurrent layers there are and how large their states are. It was measured on one model and one machine.
# - **The innovation tape was not tried there.** Statements about it up to section 12 are arithmetic on shapes and a toy; section 13 measures it, on a small model.
# - **A small model here.** Its states are a thousandth of the published ones in bytes. An undo that moves bytes is cheaper here, one that starts many small operations is not.

# %%
u4 = published.load("act4u4")
between = u4.value("u4_calibration", "sd (n=3)", quantity="K=4 speedup")
page.number("session_sd", between, ".3f", "× plain, standard deviation between three evaluations", "data/published/act4u4.json: u4_calibration")
page.number("margin_k4", xar[4, "snapshot"] - 1, "+.2f", "× plain", "u2_headline")
page.number("gain_over_replay", xar[4, "snapshot"] / xar[4, "replay"], ".2f", "times", "u2_headline")
page.say("In figures: the margin over plain decoding at K=4 is [[margin_k4]], and Act IV-U4 measured a standard deviation of [[session_sd]] between evaluations of one adapter under different draws of the noise. Against replay the factor is [[gain_over_replay]].")
page.check("the margin over plain decoding at K=4 is within one such deviation, the gain over replay is not", xar[4, "snapshot"] - 1 < between < xar[4, "snapshot"] - xar[4, "replay"])

# %% [markdown]
# ## 15. What holds here
#
# The hypotheses of this Act and what became of them. Each verdict in the last columns is computed from the rows of section 13 by its rule, which was fixed before there were rows. A rule must be met, or missed, by the whole
# interval; otherwise it is not decidable. Maxima, counts and bytes have no interval.

# %%
if page.rows:
    made = page.rows.provenance
    setup = page.published.facts.setup
    pairs = [("target", setup["model"], f"{made['target']['name']}, {made['target']['parameters']:,} parameters, {made['target']['dtype']}, frozen"),
             ("machine", setup["hardware"], f"{made['machine']['class']}, MLX {made['versions']['mlx']}, BLAS {made['blas']['name']}"),
             ("drafter", setup["adapter"], f"{made['drafter']['name']}, dropped whole after each draft"),
             ("text", setup["evaluation"], f"{len(page.rows.config['prompts'])} prompts x {page.rows.config['tokens']} tokens x {page.rows.config['repeats']}, greedy, one process"),
             ("recurrent layers x heads", f"{layers} x {heads}", f"{len({r['layer'] for r in gated})} x {gated[0]['heads']}")]
    page.show(pd.DataFrame(pairs, columns=["what", "published", "here"]), "machines", "What differs between the two measurements", sources=[page.published, page.rows])

# %%
sources = [page.published, page.rows, rules] if page.rows else [page.published, rules]
page.show(criteria.table(found), "outcomes", "Hypotheses of this Act: published number and verdict, number with 95 % interval and verdict here, and what could explain a difference", sources=sources)

# %%
if page.rows:
    page.tally(found)
    stand = lambda parts: "established here too" if undo.established(found, parts) else "not established here in full"  # noqa: E731
    page.say(f"**The published verdict**, {page.published.facts.verdict}, asks for four things, and is {stand(undo.PUBLISHED_VERDICT)}: {undo.told(found, undo.PUBLISHED_VERDICT)}.")
    page.say(f"**That rewind is dominated**, as section 11 has it, is {stand(undo.DOMINATION)}: {undo.told(found, undo.DOMINATION)}.")

# %% [markdown]
# ## 16. Provenance

# %%
page.provenance()

# %%
page.finish()
