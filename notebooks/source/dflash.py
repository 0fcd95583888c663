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
# # DFlash: a blog post about block-diffusion drafting, decoded
#
# A blog post, "2x Decode From Block-Diffusion Drafting", reports that a small block-diffusion drafter doubled decoding speed after a change of engine had lost speed.
# It ends the published line of work, and it is of another kind than the Acts before it: no raw data, no dates, no named machine, and a results table that is missing from the text.
#
# This page shows everything the post reports, and then reads it slowly. Three things come out. One factor of the headline is clean and the others cannot be separated.
# The curve that the post reads as decay *with context* is a decay with *generated tokens*. And three quantities are all called acceptance.
#
# The last part asks the same questions of a small model that this repository carries, with a drafter trained for it.

# %% tags=["parameters"]
target = "tiny-hybrid"               # model that decides every token: a name, folder or hub id
blocks = [4, 5, 8, 16]               # block widths of the drafter in rows, the anchor counted
tokens = 128                         # new tokens a prompt
repeats = 1                          # passes over the prompts, arms interleaved
prompts = 27                         # prompts of the suite, 1 to 27
dtype = "float32"                    # number format of the target: float32 or bfloat16
part = "sweep"                       # what measure=True measures: the sweep over blocks and rules, the rest, or peers
block = 8                            # rest and peers: block width in rows
rest_prompts = 4                     # rest: prompts of every section but the contexts
contexts = [512, 2048, 8192, 26000]  # rest: tokens of the prompt
lengths = [64, 256, 1024]            # rest: new tokens a prompt
measure = False                      # True: measure again; False: draw from recorded rows
quick = False                        # True: a short measurement whose captions say that it is one
rows = ""                            # row file; empty: the committed one of the target

# %%
import numpy as np
import pandas as pd

from specdecode_nb import criteria, statistics
from specdecode_nb.book import block as blockwise
from specdecode_nb.book import beside, draw, measures, overview, palette, peers, published, regimes, staging, start, sweep
from specdecode_nb.book.origin import Computed

page = start("dflash", globals())


def elsewhere(what: str) -> list:
    """The facts of this Act as the origin of an item that comes from another machine than the post's."""
    return [Computed(page.published.name, page.published.digest, f"published: {what}")]


page.opening()

# %%
page.note("The post gives no dates")

# %% [markdown]
# ## Why it matters
#
# The Acts before this one spent two full forwards of the target on every cycle, one to draft and one to verify. A drafter of a few layers removes most of the first.
# If the post is right, that is worth a factor of two on a large quantized model at a long context, which no change of serving engine had given.
# So it matters to know which of its numbers say that.

# %% [markdown]
# ## Criteria
#
# The post has no preregistered criteria. These are the claims of its text, put as criteria.

# %%
page.criteria(caption="The claims of the post, put as criteria")

# %% [markdown]
# ## Method: how such a drafter works
#
# What follows was **read** in the code of several public implementations, which agree on it; it is not in the post.
#
# 1. A block of $B$ rows goes in: the last committed token, then $B-1$ mask tokens. They are embedded with the target's own embedding.
# 2. The residual stream of a few tapped target layers, at every committed position, is concatenated and projected to the drafter's width. It serves as context.
# 3. The drafter's five layers attend from the block to that context and, in both directions, within the block. One forward fills the whole block.
# 4. The target's own output head turns rows into tokens. Row $i$ predicts the token at its *own* position; row 0 is the known token.
# 5. The target verifies the $B$ rows in one forward. With $a$ leading matches, $a+1$ tokens are committed: the matches and the target's own next token.
# 6. The target's caches, recurrent states included, are set back to the committed prefix.
#
# So drafting costs one small forward whatever the width; the verify forward carries the cost.
#
# ### Three quantities called acceptance
#
# Over $R$ rounds let $D$ tokens be drafted, $A$ of them accepted, and $E$ tokens emitted. Every round emits its accepted tokens and one more, so $E = A + R$. Then
#
# $$\text{tokens per cycle} \;=\; \frac{E}{R}, \qquad \frac{A}{E} \;=\; 1 - \frac{1}{E/R}, \qquad \frac{A}{D} \;=\; \frac{E/R - 1}{B - 1}.$$
#
# The second, accepted over *emitted*, is the share of the output that came from the drafter. It says nothing about how much was drafted in vain, and it saturates: from 10 tokens
# per cycle to 7 it moves only from 0.90 to 0.86. The third, accepted over *drafted*, is what other systems call acceptance.
#
# ### Speed
#
# If a cycle takes $c$ plain decoding steps,
#
# $$\text{speedup} \;=\; \frac{E/R}{c}.$$

# %%
cycle_tokens = np.array([7.0, 10.0])
page.check("accepted/emitted is 0.857 at 7 tokens per cycle and 0.900 at 10", np.allclose(1 - 1 / cycle_tokens, [0.857, 0.900], atol=5e-4))

# %% [markdown]
# ## What the post reports

# %%
page.table("df_incumbent", caption="The incumbent: an 8-bit checkpoint with its own multi-token head")
page.table("df_headline", caption="The headline: decode at about 26k context")

# %%
page.table("df_decomposition", caption="How the post splits the win")
page.table("df_ratios", caption="Ratios implied by the stated ranges")

# %%
plain4 = page.value("df_decomposition", "low", step="4-bit, no drafting")
short = [page.value("df_decomposition", end, step="4-bit with drafting") for end in ("low", "high")]
long = [page.value("df_headline", f"decode {end}", configuration="block-diffusion drafting") for end in ("low", "high")]
incumbent = [page.value("df_headline", f"decode {end}", configuration="incumbent (MTP depth 3)") for end in ("low", "high")]
drafting, combined = [s / plain4 for s in short], [long[0] / incumbent[1], long[1] / incumbent[0]]
ratios = page.published.frame("df_ratios")
page.check("the published ratios follow from the stated ranges", np.allclose([drafting, combined], ratios[["low", "high"]].values, atol=5.1e-3))

# %%
page.note("The post does not say what ranges")

# %%
places = [("8-bit, native head, 26k prompt", "mtp", incumbent), ("4-bit, plain, short prompt", "ar", [plain4, plain4]),
          ("4-bit, block diffusion, short prompt", "dflash", short), ("4-bit, block diffusion, 26k prompt", "dflash", long)]
figure, ax = draw.panels(height=2.4)
for i, (name, method, (low, high)) in enumerate(places):
    look = palette.style(method)
    ax.plot([low, high], [i, i], color=look.color, linewidth=2.2, marker=look.marker, markersize=6)
    ax.annotate(f"{low:g} to {high:g}" if high > low else f"{low:g}", (high, i), xytext=(7, 0), textcoords="offset points", va="center", fontsize=8)
ax.set_yticks(range(len(places)), [name for name, _, _ in places])
ax.set_ylim(len(places) - 0.5, -0.5)
ax.set_xlim(20, 100)
ax.set_xlabel("decode (tok/s)")
page.figure(figure, "ranges", "Every decode speed the post states for its own machine, as the ranges it states; they are not confidence intervals",
            "Four rows of ranges: 8-bit with native head 28 to 34, 4-bit plain 40.6, 4-bit with block diffusion 80 to 86 on a short prompt and 62 to 67 on a 26k prompt.")

# %%
page.merit()
merit = {m.name: m.value for m in page.published.facts.figures_of_merit}
page.check("two figures of merit are midpoints of ranges",
           merit["decode with drafting at 26k"] == sum(long) / 2 and merit["incumbent decode at 26k"] == sum(incumbent) / 2)

# %%
page.table("df_drafter", caption="The drafter and its runtime")
page.table("df_acceptance", caption="Acceptance and block size as the post gives them")

# %% [markdown]
# What led to the drafter was a failed attempt: another serving engine, reported in an earlier post, and an estimate of what any rewrite could win.

# %%
page.table("df_engine", caption="The engine replacement")
page.table("df_limits", caption="What an engine rewrite can win at best, as quoted")

# %%
pull_request = elsewhere("a server's pull request as quoted by the post, preliminary; a smaller machine, not named; undated")
page.table("df_pr", caption="Preliminary numbers from the pull request that would bring such drafting to a mature server", sources=pull_request)
pr = page.published.frame("df_pr").set_index("mode")["decode"]
page.figure(draw.bars(list(pr.index), {"decode": list(pr)}, "decode (tok/s)", fmt=".2f", reference=pr["plain autoregressive"]), "pull-request",
            "The three modes of the pull request; the dashed line is plain decoding",
            "Three bars: block diffusion 19.30, plain decoding 11.05, native multi-token head 9.80 tokens per second, below the dashed line.", sources=pull_request)

# %%
page.number("pr_ratio", pr["block-diffusion backend"] / pr["plain autoregressive"], ".3f", "x", "df_pr")
page.number("pr_head", pr["native multi-token head"] / pr["plain autoregressive"], ".3f", "x", "df_pr")
page.say("There drafting runs at [[pr_ratio]] times plain decoding and the native head at [[pr_head]]. These are somebody else's preliminary numbers on another machine; the post quotes them.")
page.check("the quoted ratio is the quotient of the two rates", abs(pr["block-diffusion backend"] / pr["plain autoregressive"] - merit["preliminary PR ratio, drafting over AR"]) < 1e-3)

# %%
page.table("df_bad_baseline", caption="A baseline that the author threw away")

# %% [markdown]
# ## Which comparisons exist
#
# Three things differ between the two ends of the headline: the precision of the weights, the drafting, and, in the middle of the decomposition, the length of the prompt.
# Two levels each make eight cells.

# %%
stated = {("8-bit", "drafted", "26k"): f"{incumbent[0]:g} to {incumbent[1]:g}, by its native head", ("4-bit", "plain", "short"): f"{plain4:g}",
          ("4-bit", "drafted", "short"): f"{short[0]:g} to {short[1]:g}, by block diffusion", ("4-bit", "drafted", "26k"): f"{long[0]:g} to {long[1]:g}, by block diffusion"}
cells = pd.DataFrame([{"weights": w, "prompt": p, "decoding": d, "published (tok/s)": stated.get((w, d, p), "does not exist")}
                      for w in ("8-bit", "4-bit") for p in ("short", "26k") for d in ("plain", "drafted")])
page.show(cells, "cells", "The eight cells of precision, drafting and prompt length, and what the post states for each")

# %%
exist = cells["published (tok/s)"] != "does not exist"
page.number("cells_exist", exist.sum(), "d", "cells")
page.number("cells_all", len(cells), "d", "cells")
page.number("drafting_low", drafting[0], ".2f", "x", "df_decomposition")
page.number("drafting_high", drafting[1], ".2f", "x", "df_decomposition")
page.number("prompt_low", long[0] / short[1], ".2f", "x", "df_headline, df_decomposition")
page.number("prompt_high", long[1] / short[0], ".2f", "x", "df_headline, df_decomposition")
page.say("[[cells_exist]] of [[cells_all]] cells exist, and the one drafted cell at 8 bits uses *another drafter*. Two pairs differ in one thing only:\n\n"
         "- **Drafting**, 4-bit weights, short prompt: [[drafting_low]] to [[drafting_high]] times. This is the clean factor of the post.\n"
         "- **Prompt length**, 4-bit weights, drafted: [[prompt_low]] to [[prompt_high]] times from short to 26k.\n\n"
         "Nothing else is identified. The step that the post calls quantization, from the 8-bit incumbent to the 4-bit plain run, changes three things at once: the precision, the "
         "drafting (a native head against none) and the prompt (26k against short). And no interaction can be estimated: whether drafting is worth more or less at 4 bits than at 8.")
levels = [("4-bit", "none", "short"), ("4-bit", "block", "short"), ("4-bit", "block", "26k"), ("8-bit", "head", "26k")]
pairs = [sum(x != y for x, y in zip(a, b)) for i, a in enumerate(levels) for b in levels[i + 1:]]
page.check("exactly two pairs of existing cells differ in one factor only, the drafter of the 8-bit cell counted as another", pairs.count(1) == 2)

# %%
page.note("With 4-bit weights held fixed")

# %% [markdown]
# ### The missing row that would decide
#
# The post concludes that drafting is still worth about 2 at 26k, better than a published decay would have it. For that one needs plain decoding of the 4-bit checkpoint *at 26k*,
# and that row is not there. Let it be $P$. The factor at 26k is then the drafted speed over $P$.

# %%
quoted = page.published.frame("df_published_decay")
bar = float(quoted["multiplier"].iloc[-1])
P = np.linspace(28, 42, 57)
figure, ax = draw.panels(height=3.0)
draw.lines({"dflash": ([], [])}, "", "", ax=ax)
ax.fill_between(P, long[0] / P, long[1] / P, color=palette.style("dflash").color, alpha=0.35, linewidth=0, label="drafted at 26k over P")
ax.axhline(bar, color=palette.BLACK, linewidth=0.9, linestyle=(0, (4, 3)), label=f"{bar:g}, the multiplier to beat")
ax.axvline(plain4, color=palette.GREY, linewidth=1.2, linestyle=":", label=f"plain on a short prompt, {plain4:g}")
ax.set_xlabel("P, plain 4-bit decoding at 26k (tok/s), not measured")
ax.set_ylabel("drafting factor at 26k")
page.figure(draw.legend_above(figure), "missing-row", "The drafting factor at 26k as a function of the row that is missing",
            "A band falls from about 2.3 at P = 28 to about 1.5 at P = 42 and crosses the dashed line at 1.77 between 35 and 38 tokens per second.")

# %%
s4 = published.load("act4s")
kept = s4.value("s_context", "decode-only", context=16384, arm="ar") / s4.value("s_context", "decode-only", context=512, arm="ar")
page.number("p_low", long[0] / bar, ".1f", "tok/s", "df_headline, df_published_decay")
page.number("p_high", long[1] / bar, ".1f", "tok/s", "df_headline, df_published_decay")
page.number("loss_low", 100 * (1 - long[1] / bar / plain4), ".0f", "%", "df_headline, df_published_decay, df_decomposition")
page.number("loss_high", 100 * (1 - long[0] / bar / plain4), ".0f", "%", "df_headline, df_published_decay, df_decomposition")
page.number("act4s_loss", 100 * (1 - kept), ".0f", "%", "data/published/act4s.json: s_context")
page.say("The factor at 26k lies below the quoted 1.77 if $P$ is above [[p_low]] to [[p_high]] tok/s, that is if a 26k prompt slows plain decoding by less than [[loss_low]] to [[loss_high]] %. "
         "For scale only, since it is another model on another machine: in Act IV-S plain decoding lost [[act4s_loss]] % between 512 and 16,384 tokens of context. "
         "So the existing rows do not decide the question, and criterion DF-decay compares with a baseline that is 8-bit and drafted.")
page.check("the quoted multiplier falls inside the band for some speed between the incumbent's and the short-prompt plain run", incumbent[1] < long[0] / bar < plain4)

# %%
page.show(s4.frame("s_context").query("arm == 'ar'")[["context", "decode-only"]], "context-act4s", "Plain decoding by context in Act IV-S, for scale", sources=[s4])

# %% [markdown]
# ## The decay that was by output length
#
# The post quotes multipliers for a newer chip: they fall while acceptance hardly moves, and the post reads the column as context.

# %%
page.table("df_published_decay", caption="The multipliers as the post quotes them", sources=elsewhere("quoted by the post from elsewhere, 'a newer chip'; undated"))

# %%
benchmarks = elsewhere("4-bit and unquantized Qwen targets; Apple M5 Max; upstream README as read, undated")
page.table("df_upstream", caption="Rows of an upstream README on 27B targets; the column is generated tokens", sources=benchmarks)
page.table("df_upstream_small", caption="Rows of the same README on small dense targets", sources=benchmarks)

# %%
page.note("The multipliers 2.37x")

# %%
big, small = page.published.frame("df_upstream"), page.published.frame("df_upstream_small")
same = big[big["model"] == "Qwen3.5-27B-4bit"].set_index("generated tokens")["speedup"]
page.check("all three quoted multipliers are rows of one model in that README, at the same numbers of tokens",
           all(same[t] == m for t, m in zip(quoted["tokens"], quoted["multiplier"])))

# %% [markdown]
# That the post took its multipliers from these rows is **our inference**, from three equal numbers at three equal lengths. What the column means is not inference: it was **read** in the
# upstream benchmark records, in which the prompt of those rows has about a hundred tokens and the column is the limit on new tokens.

# %%
known = published.read("dflash")
page.show(known.frame(), "read", "Read in the code and benchmark records of the upstream project, not in the post", sources=[known])

# %%
families = {m: g for m, g in pd.concat([big, small]).groupby("model", sort=False)}
figure = draw.lines({m: (g["generated tokens"], g["speedup"]) for m, g in families.items()}, "generated tokens (prompt of about a hundred)", "speedup over plain", log_x=True,
                    reference=1.0)
figure.axes[0].plot(quoted["tokens"], quoted["multiplier"], linestyle="none", marker="o", markersize=12, markerfacecolor="none", markeredgecolor=palette.BLACK, label="quoted by the post")
page.figure(draw.legend_above(figure), "decay", "Speedup by generated tokens in the upstream README; circles are the three multipliers that the post quotes as decay with context",
            "Four lines over 1,024 to 16,384 generated tokens. Qwen3.5-27B falls from 2.37 to 1.34 and carries three circles; Qwen3.6-27B stays near 3; the 9B falls from 4.4 to 2.2.",
            sources=benchmarks)

# %%
newer = families["Qwen3.6-27B-4bit"]["speedup"]
page.number("newer_low", newer.min(), ".2f", "x", "df_upstream")
page.number("newer_high", newer.max(), ".2f", "x", "df_upstream")
page.say("Nor is the decay a law. On the same page a newer target with a newer drafter stays between [[newer_low]] and [[newer_high]] up to sixteen thousand tokens.")
page.check("the newer pair loses less over 16 times the length than the older pair over 4 times", newer.iloc[-1] / newer.iloc[0] > same[4096] / same[1024])

# %% [markdown]
# ### What falls: tokens per cycle, or the price of a cycle?
#
# Because the README's ratio is accepted over emitted, each row can be taken apart. Tokens per cycle follow from the ratio, the cycle's time from the drafted rate, and its price in
# plain steps from the plain rate.

# %%
BLOCK = known.facts.blocks  # read upstream; the block of the newer drafter was not
parts = pd.concat([big, small], ignore_index=True)
parts["tokens/cycle"] = 1 / (1 - parts["acceptance"] / 100)
parts["accepted/drafted"] = [100 * (t - 1) / (BLOCK[m] - 1) if m in BLOCK else None for m, t in zip(parts["model"], parts["tokens/cycle"])]
parts["cycle"] = 1000 * parts["tokens/cycle"] / parts["drafted"]
parts["plain steps a cycle"] = parts["cycle"] * parts["baseline"] / 1000
shown = parts[["model", "generated tokens", "speedup", "acceptance", "tokens/cycle", "accepted/drafted", "cycle", "plain steps a cycle"]].rename(columns={"acceptance": "accepted/emitted"})
shown.attrs = {"units": {"accepted/emitted": "%", "accepted/drafted": "%", "cycle": "ms"}}
page.show(shown, "recomputed", "The upstream rows taken apart, computed here from the published table and the block width read upstream",
          fmt={"tokens/cycle": ".2f", "accepted/drafted": ".1f", "cycle": ".1f", "plain steps a cycle": ".2f"}, sources=benchmarks)

# %%
figure, (left, right) = draw.panels(columns=2, height=3.2)
groups = {m: parts[parts["model"] == m] for m in families}
draw.lines({m: (g["generated tokens"], g["tokens/cycle"]) for m, g in groups.items()}, "generated tokens", "tokens per cycle", log_x=True, ax=left)
draw.lines({m: (g["generated tokens"], g["plain steps a cycle"]) for m, g in groups.items()}, "generated tokens", "price of a cycle (plain steps)", log_x=True, ax=right)
for ax in (left, right):
    ax.tick_params(axis="x", labelsize=7)
    ax.set_ylim(0, None)
page.figure(draw.legend_above(figure, 4), "taken-apart", "The speedup is the left panel over the right one: tokens per cycle, and what a cycle costs in plain steps",
            "Left, tokens per cycle of Qwen3.5-27B fall from 10 to 7 while the others stay between 6 and 10. Right, its cycle costs 4.3 to 5.3 plain steps, the others 2 to 3.3.",
            sources=benchmarks)

# %%
old = groups["Qwen3.5-27B-4bit"].set_index("generated tokens")
for length in (1024, 8192):
    page.number(f"emitted_{length}", old.loc[length, "acceptance"], ".1f", "% accepted/emitted", "df_upstream")
    page.number(f"tokens_{length}", old.loc[length, "tokens/cycle"], ".1f", "tokens per cycle", "df_upstream")
    page.number(f"drafted_{length}", old.loc[length, "accepted/drafted"], ".0f", "% accepted/drafted", "df_upstream")
    page.number(f"price_{length}", old.loc[length, "plain steps a cycle"], ".1f", "plain steps", "df_upstream")
page.number("tokens_fall", 100 * (1 - old.loc[8192, "tokens/cycle"] / old.loc[1024, "tokens/cycle"]), ".0f", "%", "df_upstream")
page.number("cycle_rise", 100 * (old.loc[8192, "cycle"] / old.loc[1024, "cycle"] - 1), ".0f", "%", "df_upstream")
page.say("From 1,024 to 8,192 generated tokens the 27B's accepted/emitted moves from [[emitted_1024]] to [[emitted_8192]] %, which looks like nothing. It is a fall from [[tokens_1024]] to "
         "[[tokens_8192]] tokens per cycle ([[tokens_fall]] %), and in accepted/drafted from [[drafted_1024]] to [[drafted_8192]] %. The time of a cycle rises by [[cycle_rise]] %. "
         "So the reading that acceptance holds and only verification becomes dearer is half right.")
page.check("the 27B's tokens per cycle fall by more than a quarter while accepted/emitted moves by less than five points",
           old.loc[8192, "tokens/cycle"] < 0.75 * old.loc[1024, "tokens/cycle"] and old.loc[1024, "acceptance"] - old.loc[8192, "acceptance"] < 5)

# %%
dense = parts[parts["model"].isin(["Qwen3.5-4B", "Qwen3.5-9B"]) & (parts["generated tokens"] == 1024)]["plain steps a cycle"]
page.number("price_small", dense.mean(), ".1f", "plain steps", "df_upstream_small")
page.say("The right panel holds the second lesson. At 1,024 tokens a 16-row cycle costs about [[price_small]] plain steps on the small targets and [[price_1024]] on the 4-bit 27B. Quantized weights make "
         "the one-row step cheap and leave the sixteen-row forward to arithmetic. That is a reason, on such targets, for narrow blocks.")
page.check("a cycle of the 4-bit 27B costs more plain steps than one of any small target at any length",
           old["plain steps a cycle"].min() > parts[parts["model"].isin(["Qwen3.5-4B", "Qwen3.5-9B"])]["plain steps a cycle"].max())

# %%
quotient = parts["drafted"] / parts["baseline"]
off = parts.assign(quotient=quotient, gap=(quotient - parts["speedup"]).abs()).query("gap > 0.0051")[["model", "generated tokens", "speedup", "quotient"]]
page.show(off, "quotients", "Upstream rows in which the speedup is not the quotient of the two rates beside it", fmt={"quotient": ".3f"}, sources=benchmarks)
page.say("The README's speedups are not always the quotient of the rates printed beside them. A median of ratios is not a ratio of medians, which may be all there is to it; the page does not say. "
         "One of the rows is the first that the post quotes.")
page.check("the row with 2.37 is among them", ((off["model"] == "Qwen3.5-27B-4bit") & (off["speedup"] == 2.37)).any())

# %% [markdown]
# ## 70 to 75 %, or 82.5 %?
#
# The identity above says which of the post's acceptances can be which.

# %%
values = page.published.frame("df_acceptance").set_index("quantity")["value"]
ceiling = {b: 100 * (b - 1) / b for b in (4, 5, 16)}
at_five, low, high = values["acceptance at block size 5 (%)"], values["acceptance low (%)"], values["acceptance high (%)"]
shown_low, shown_high = values["published acceptance low (%)"], values["published acceptance high (%)"]
for name, value in {"accept_low": low, "accept_high": high, "accept_shown_low": shown_low, "accept_shown_high": shown_high}.items():
    page.number(name, value, "g", "%", "df_acceptance")
for block, limit in ceiling.items():
    page.number(f"ceiling_{block}", limit, ".1f" if limit % 1 else ".0f", "% accepted/emitted")
page.number("at_five", at_five, ".1f", "%", "df_acceptance")
page.say("The post gives an acceptance of [[accept_low]] to [[accept_high]] % with blocks of four to five, another of [[at_five]] % at block 5, and compares with [[accept_shown_low]] to "
         "[[accept_shown_high]] % published. If all of these were one quantity, the first two would contradict each other.")
page.say("A round of block $B$ emits at most $B$ tokens, so accepted/emitted is at most $1-1/B$: [[ceiling_4]] % at block 4, [[ceiling_5]] % at block 5, [[ceiling_16]] % at block 16. "
         "**[[at_five]] % at block 5 cannot be accepted/emitted.** It can be accepted/drafted.")
page.check("82.5 % is above the ceiling of block 5, and 70 to 75 % is not", at_five > ceiling[5] > values["acceptance high (%)"])

# %%
reading = [{"figure": f"{at_five:g} % at block 5", "read as": "accepted/drafted", "block": 5, "tokens per cycle": f"{1 + 4 * at_five / 100:.2f}"},
           {"figure": f"{at_five:g} % at block 5", "read as": "accepted/emitted", "block": 5, "tokens per cycle": "impossible"},
           {"figure": f"{low:g} to {high:g} %", "read as": "accepted/emitted", "block": "any", "tokens per cycle": f"{1 / (1 - low / 100):.2f} to {1 / (1 - high / 100):.2f}"},
           {"figure": f"{low:g} to {high:g} %", "read as": "accepted/drafted", "block": "4 to 5", "tokens per cycle": f"{1 + 3 * low / 100:.2f} to {1 + 4 * high / 100:.2f}"},
           {"figure": f"{shown_low:g} to {shown_high:g} % published", "read as": "accepted/emitted", "block": 16,
            "tokens per cycle": f"{1 / (1 - shown_low / 100):.1f} to {1 / (1 - shown_high / 100):.1f}"}]
page.show(pd.DataFrame(reading), "readings", "What each acceptance of the post would mean in tokens per cycle, computed here")

# %%
t = np.linspace(1, 12, 111)
figure, ax = draw.panels(height=3.4)
curves = {"accepted/emitted, any block": 100 * (1 - 1 / t)} | {f"accepted/drafted, block {b}": np.where(t <= b, 100 * (t - 1) / (b - 1), np.nan) for b in (16, 5, 4)}
for i, (name, ys) in enumerate(curves.items()):
    look = palette.style(name, i)
    ax.plot(t, ys, color=look.color, linestyle=look.dash, label=name)
ax.axhspan(low, high, color="#e8e8e8", zorder=0)
ax.axhline(at_five, color=palette.BLACK, linewidth=0.9, linestyle=(0, (4, 3)))
ax.annotate(f"{at_five:g} %", (11.9, at_five + 1.5), ha="right", fontsize=7.6)
ax.annotate(f"{low:g} to {high:g} %", (7, (low + high) / 2), va="center", fontsize=7.6)
ax.axvline(5, color=palette.GREY, linewidth=0.9, linestyle=":")
ax.annotate("most that block 5 can emit", (5.1, 6), fontsize=7.6)
ax.set_xlabel("tokens per cycle")
ax.set_ylabel("acceptance (%)")
ax.set_ylim(0, 102)
page.figure(draw.legend_above(figure, 2), "acceptances", "One drafter, several acceptances: the same tokens per cycle under each name; the grey band and the dashed line are the post's two figures",
            "Accepted/emitted rises steeply and flattens; accepted/drafted rises linearly with a slope set by the block. At 5 tokens per cycle accepted/emitted is [[ceiling_5]] percent, under the dashed line at [[at_five]].")

# %%
page.say("The reading that fits best is that two counters are mixed: [[at_five]] % as accepted/drafted and [[accept_low]] to [[accept_high]] % as accepted/emitted. That is **our inference**; the post does not "
         "define the word. Either way the comparison with [[accept_shown_low]] to [[accept_shown_high]] % is not one: at block 5 accepted/emitted cannot exceed [[ceiling_5]] %, however good the drafter.")

# %% [markdown]
# ## Negative results
#
# ### An engine rewrite is not the way to faster decoding

# %%
page.negative("An engine rewrite", "decode_loss_low", "decoding speed lost by the replacement, at least (%)",
              {"prefill_low": "prefill won, from (%)", "prefill_high": "to (%)", "decode_loss_high": "decoding lost, at most (%)", "port_pct": "a kernel-level port reached, % of the mature framework"})

# %% [markdown]
# Decoding one token at a time is bound by reading the weights, and every engine reads the same weights. The ceilings quoted above say as much: nothing to win on decode.

# %% [markdown]
# ### The combined ratio does not measure drafting

# %%
page.negative("The combined ratio", "quant_baseline", "4-bit decoding without any drafting, tok/s: faster than the drafted 8-bit incumbent",
              {"incumbent_low": "incumbent, from (tok/s)", "incumbent_high": "to (tok/s)"})

# %% [markdown]
# The post says this itself, and ran the baseline that shows it. What it could not see from that one row is that the baseline differs from the incumbent in three ways (the cells above).

# %% [markdown]
# ### The published decay does not extrapolate to 26k

# %%
page.negative("The published decay curve", "measured", "factor at 26k as the post has it", {"published_4k": "published at 4k"})

# %% [markdown]
# Of all results on this page this is the one that does not carry its label. The curve was never by context, and the factor at 26k has no plain row under it. Nothing has been extrapolated, so
# nothing has been refuted.

# %% [markdown]
# ### The published acceptance does not carry over

# %%
page.negative("Published acceptance", "observed_high", "acceptance observed, at most (%)", {"observed_low": "observed, from (%)", "published_low": "published, from (%)", "published_high": "to (%)"})

# %% [markdown]
# True as a statement about two printed figures. As a statement about drafters it compares block 16 with block 4 to 5 under a ratio whose ceiling depends on the block.

# %% [markdown]
# ### A baseline of 1.87 tok/s is no baseline

# %%
page.negative("An earlier 1.87", "value", "tok/s reported by the discarded run")

# %% [markdown]
# A drafter compared with that run would have looked twenty times faster. The author found two faults in it (heat and process priority) and threw it away.

# %%
page.number("absurd", plain4 / page.value("df_bad_baseline", "value", quantity="reported tok/s"), ".0f", "x", "df_decomposition, df_bad_baseline")
page.say("Plain 4-bit decoding alone would have been [[absurd]] times that baseline.")

# %% [markdown]
# ### The released package does not know the model

# %%
page.negative("The package-index release")

# %% [markdown]
# The number of a version does not identify the code. That is why the raw rows of this repository carry a digest of the package.

# %% [markdown]
# ### Two projects with one command cannot share an environment

# %%
page.negative("Two projects")

# %% [markdown]
# Neither reports the collision; one simply shadows the other.

# %% [markdown]
# ### No drafter exists for the production checkpoint

# %%
page.negative("A draft exists")

# %% [markdown]
# So the headline is about a checkpoint that is not the one in production. What acceptance a modified target would see is unknown.

# %% [markdown]
# ### A native multi-token head is slower than plain decoding on the smaller machine

# %%
page.negative("The native multi-token head", "mtp", "tok/s with the native head, on the smaller machine of the pull request", {"ar": "plain", "dflash": "block diffusion"})

# %% [markdown]
# A drafter that comes with the model is not free. On this machine its rounds cost more than they commit.

# %% [markdown]
# ## Verdict

# %%
page.verdict()
page.note("The post carries no formal")

# %%
page.note("The strategic position")

# %% [markdown]
# ## Measured here
#
# What to measure is clear from the cells above: precision and drafting crossed, one drafter in all cells, prompt and output length varied apart, arms interleaved on every prompt. A drafter of the
# kind described above was trained for this repository's own small target, and so was a chained head. The rules were fixed in `data/criteria/dflash.json` and
# `data/criteria/dflash_rest.json`, those of its peers in `data/criteria/dflash_peers.json`, before the rows, and the rows carry their digests. Verdicts are *holds*, *does NOT hold* and *not decidable*; with an interval, all of it has to say the same.
#
# Names: **block B** is the block-diffusion drafter with $B$ rows, the anchor counted, so $B-1$ drafted tokens. **MTP-3** is the head of three chained links. **K=4** is the adapter of
# [Act IV-U](act4u.ipynb), which drafts with a full forward of the target. In the sweep, speed is against the faster of two plain loops. A prompt is **loop-free** if plain decoding of it hardly repeats itself (the detector of
# [Act IV-S](act4s.ipynb)); **TPF** is tokens per forward, drafts and prefill counted. No time below can be compared with one above.

# %%
def told(file, *ids: str) -> None:
    """Verdicts of criteria as a list, each with its number; ``file``: the rows that they were judged on."""
    page.told(judged[file.act], *ids, file=file, prefix=file.act)


def among(names) -> str:
    """Names in a sentence, "none" without any."""
    return ", ".join(names) or "none"


judged = {}
if page.measured():
    decoded = blockwise.sweep_rows(page.rows)
    free, control, widths_ = statistics.loop_free(decoded), statistics.plain_arm(decoded), blockwise.fixed(decoded)
    judged["dflash"] = {o.criterion.id: o for o in blockwise.outcomes(page.rows)}
    best, config = blockwise.best(decoded), page.rows.config
    page.number("sweep_prompts", len(config["prompts"]), "d", "prompts", page.rows.name)
    page.number("sweep_tokens", config["tokens"], "d", "tokens", page.rows.name)
    page.number("sweep_clean", len({r["prompt_id"] for r in free}), "d", "prompts", page.rows.name)
    page.number("sweep_control", palette.label(control), source=page.rows.name)
    page.number("sweep_best", palette.label(best), source=page.rows.name)
    page.say(f"The sweep: [[sweep_prompts]] prompts ([[sweep_clean]] of them loop-free), [[sweep_tokens]] new tokens, {config['dtype']}. The faster plain loop is *[[sweep_control]]*; the fastest fixed "
             "block is *[[sweep_best]]*." + (" **This is a reduced run**, shorter than the protocol asks for." if config["reduced"] else ""))

# %% [markdown]
# ### What a cycle has to commit before it pays
#
# This needs no drafter that is any good, only one that runs. A cycle of $B$ rows is a draft forward, a verify forward and a commit; their sum in plain decoding steps is the number of tokens that the
# cycle must commit. Single forwards of each width were timed in the same run at the end of a few prompts.

# %%
if page.rows:
    table, step = blockwise.break_even(page.rows), blockwise.plain_step(decoded)
    timed = staging.Costs(page.rows.of("cost")).table()
    figure, (left, right) = draw.panels(2, height=3.3)
    draw.lines({f: tuple([v / s for v in timed.loc[timed["forward"] == f, c]] for c, s in (("rows", 1), ("median", step), ("p25", step), ("p75", step))) for f in ("verify", "draft")},
               "rows of the forward", "plain steps", whole_x=True, reference=1.0, ylim=(0, None), ax=left)
    drafts = table[table["rows"] > 1]
    done = table.dropna(subset=["tokens per cycle"])
    draw.lines({"needed to pay": (drafts["rows"], drafts["plain steps"]), "committed": (done["rows"], done["tokens per cycle"]), "if all were accepted": (drafts["rows"], drafts["rows"])},
               "rows of a cycle", "tokens per cycle", whole_x=True, ylim=(0, None), ax=right)
    page.figure(figure, "break-even", "Left, what a verify and a draft forward cost in plain decoding steps by width, medians with the middle half as a band. Right, the tokens that a cycle must commit to be as "
                "fast as plain decoding, those that each fixed block does commit, and the most it could",
                "Two panels over rows: the cost of both forwards in plain steps beside a dashed line at one, and three curves of tokens per cycle, needed, committed and possible.", sources=[page.rows])

# %%
if page.rows:
    page.show(done[["rows", "draft", "verify", "commit", "cycle", "plain steps", "must accept", "tokens per cycle", "predicted", "measured", "error"]], "break-even",
              "Each decoded block taken apart: milliseconds of the cycle's forwards, their sum in plain steps, the share of drafted tokens that must be accepted to pay, what was committed, and "
              "the speed-up that follows beside the measured one, both without prefill",
              {c: ".2f" for c in ("draft", "verify", "commit", "cycle", "plain steps", "tokens per cycle")} | {c: ".3f" for c in ("must accept", "predicted", "measured")} | {"error": "+.1f"},
              sources=[page.rows], full=table)

# %%
if page.rows:
    widest, narrowest = done.iloc[-1], done.iloc[0]
    for which, line in (("narrow", narrowest), ("wide", widest)):
        page.number(f"{which}_rows", int(line["rows"]), "d", "rows", page.rows.name)
        page.number(f"{which}_steps", line["plain steps"], ".2f", "plain steps", page.rows.name)
        page.number(f"{which}_commits", line["tokens per cycle"], ".2f", "tokens per cycle", page.rows.name)
    paying, faster = ([f"block {int(r)}" for r in done.loc[done[c] > 1, "rows"]] for c in ("predicted", "measured"))
    page.number("blocks_paying", among(paying), source=page.rows.name)
    page.number("blocks_faster", among(faster), source=page.rows.name)
    page.say("A cycle of [[narrow_rows]] rows has to commit [[narrow_steps]] tokens and commits [[narrow_commits]]; one of [[wide_rows]] rows has to commit [[wide_steps]] and commits [[wide_commits]]. By "
             "this reckoning these pay: [[blocks_paying]]. Faster than plain decoding, measured without prefill: [[blocks_faster]].")
    told(page.rows, "price", "narrow", "cost-model")

# %% [markdown]
# ### Speed

# %%
if page.rows:
    page.show(blockwise.speeds(decoded), "speed", "Median throughput, and speed over the faster plain arm on all prompts and on loop-free ones, with 95 % intervals over prompts",
              {"tok/s": ".1f"} | {c: ".3f" for c in ("x plain", "low", "high", "x plain, loop-free", "low, loop-free", "high, loop-free", "x plain, decode", "TPF")}, sources=[page.rows])

# %%
if page.rows:
    compared = [arm for arm in statistics.by(decoded, "arm") if arm != control]
    figure, ax = draw.panels(height=0.9 + 0.36 * len(compared))
    for rows_, shift, hollow, name in ((decoded, -0.13, False, "all prompts"), (free, 0.2, True, "loop-free prompts")):
        for i, arm in enumerate(compared):
            value, low_, high_, _ = blockwise.ratio(rows_, arm, statistics.plain_arm(rows_)) if rows_ else (None, None, None, 0)
            if value is None:
                continue
            look = palette.style(arm)
            if low_ is not None:
                ax.plot([low_, high_], [i + shift] * 2, color=look.color, linewidth=1.0 if hollow else 2.0, linestyle=(0, (2, 1.5)) if hollow else "-")
            ax.plot([value], [i + shift], color=look.color, marker=look.marker, markersize=6.5, linestyle="none", markerfacecolor="white" if hollow else look.color)
            if not hollow:
                ax.annotate(f"{value:.2f}" + (f" [{low_:.2f}, {high_:.2f}]" if low_ is not None else ""), (1.01, i), xycoords=("axes fraction", "data"), va="center", fontsize=7.6)
    ax.axvline(1, color=palette.BLACK, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    for goal in (2.0, 2.5):
        ax.axvline(goal, color=palette.GREY, linewidth=0.9, linestyle=":", zorder=1)
    ax.set_yticks(range(len(compared)), [palette.label(a) for a in compared])
    ax.set_ylim(len(compared) - 0.4, -0.6)
    ax.set_xlabel("speed (× faster plain arm), end to end")
    page.figure(figure, "speed", "Speed over the faster plain arm (dashed) with 95 % intervals over prompts: filled and solid on all prompts, with the number beside it, hollow and broken on loop-free ones. "
                "Dotted: the thresholds 2.0 (loop-free) and 2.5 (all prompts)",
                "One row for each arm with two marks and their intervals, beside a dashed line at one and dotted lines at 2.0 and 2.5.", sources=[page.rows])

# %%
if page.rows:
    told(page.rows, "speed", "speed-loop-free", "head", "over-head", "over-adapter", "lookup", "identity")

# %% [markdown]
# Which factor is short? Speed without prefill is tokens per cycle over the cycle's price in plain steps. Where that misses the threshold, the *price* is to blame if even a cycle whose every draft is
# accepted would miss it, and *acceptance* if it would not. Where only the speed end to end misses it, *prefill* is, which no drafter shortens.

# %%
if page.rows:
    arms_ = dict.fromkeys([best, measures.fastest(decoded, sweep.drafting(decoded))])
    asked = [("all", decoded, arm, float(judged["dflash"]["speed"].criterion.rule.threshold)) for arm in arms_]
    asked += [("loop-free", free, arm, float(judged["dflash"]["speed-loop-free"].criterion.rule.threshold)) for arm in arms_] if free else []
    table = blockwise.goals(asked)
    page.show(table, "short", "The fastest fixed block, and the fastest arm where that is another: speed end to end, its two factors and their quotient, pooled without prefill, and what each would have to be for the threshold if the other stayed",
              {c: ".2f" for c in ("end to end", "tokens per cycle", "cycle", "speed", "tokens needed", "cycle affordable", "speed, all accepted")} | {"wanted": ".1f"}, sources=[page.rows])
    page.number("short_factor", table["short"].iloc[0], source=page.rows.name)
    page.say("What keeps *[[sweep_best]]* from the threshold on all prompts: **[[short_factor]]**.")
    page.check("speed is tokens per cycle over the price of the cycle", np.allclose(table["speed"], table["tokens per cycle"] / table["cycle"]))

# %% [markdown]
# ### Acceptance under its three names

# %%
if page.rows:
    table = blockwise.acceptances(decoded)
    page.show(table, "acceptance", "Cycles pooled: one decoder, and everything that is called acceptance. The fifth column has to be the fourth",
              {"drafted per cycle": ".2f", **{c: ".3f" for c in ("accepted / drafted", "accepted / emitted", "1 - 1/(tokens per cycle)", "tokens per cycle")}}, sources=[page.rows])
    wide_arm = widths_[max(widths_)]
    drafted_, accepted_, emitted_, cycles_ = blockwise.counts(sweep.arm_rows(decoded, wide_arm))
    for key, value in {"drafted": drafted_, "accepted": accepted_, "emitted": emitted_, "cycles": cycles_}.items():
        page.number(f"count_{key}", value, ",d", "cycles" if key == "cycles" else "tokens", page.rows.name)
    page.number("share_drafted", 100 * accepted_ / drafted_, ".1f", "% accepted/drafted", page.rows.name)
    page.number("share_emitted", 100 * accepted_ / emitted_, ".1f", "% accepted/emitted", page.rows.name)
    page.number("tokens_wide", emitted_ / cycles_, ".3f", "tokens per cycle", page.rows.name)
    page.say("The widest block in whole numbers: [[count_drafted]] tokens drafted in [[count_cycles]] cycles, [[count_accepted]] of them accepted, [[count_emitted]] emitted. So [[share_drafted]] % of what was "
             "drafted was accepted, and [[share_emitted]] % of what was emitted had been drafted, which is $1 - 1/[[tokens_wide]]$ and nothing else. K=4 is the exception in the table: its first proposal is the "
             "target's own token, which is not drafted, and is emitted.")
    page.check("accepted + cycles = emitted for the widest block, so accepted/emitted is one less the inverse of tokens per cycle", accepted_ + cycles_ == emitted_)
    told(page.rows, "accounting", "acceptance-falls", "carry-over")

# %%
if page.rows:
    figure, (left, right) = draw.panels(2, height=3.6)
    reach = blockwise.survival(decoded)
    draw.survival(reach, ax=left)
    draw.lines({arm: (range(1, len(v) + 1), statistics.conditional(sweep.arm_rows(decoded, arm), len(v))) for arm, v in reach.items()}, "position j", "P(j accepted | all before it)", whole_x=True,
               ylim=(0, 1.02), ax=right)
    page.figure(draw.legend_above(figure), "survival", "Left, the probability that at least j drafted tokens are accepted. Right, that token j is accepted where all before it were; far positions rest on few cycles",
                "Two panels over position: falling survival curves, and conditional acceptance, for each fixed width of three drafters.", sources=[page.rows])

# %%
if page.rows:
    table = blockwise.conditional(decoded)
    page.show(table, "conditional", "Conditional acceptance as numbers, the rules and lookup too: probability that token j is accepted where it was drafted and all before it were accepted",
              {c: ".3f" for c in table.columns if c.startswith("j=")}, sources=[page.rows])

# %% [markdown]
# ### Rules that choose the width
#
# The first rule expects tokens from acceptance so far, counted by position, divides by costs that were measured in the warm-up of the same run, and may choose not to draft. The other two are the threshold
# rules **read** in two public runtimes. All are compared with the best *fixed* block, which is chosen on these very rows; that favours it.

# %%
if page.rows:
    page.show(blockwise.chosen(decoded), "rules", "Each rule against the best fixed block of the same run ([[sweep_best]]), ratio of medians with its 95 % interval over prompts, and the widths it chose: shares of its cycles",
              {c: ".3f" for c in ("speed", "low", "high")} | {c: ".2f" for c in ("mean width", "no draft", "2 to 5", "6 to 8", "9 or more")}, sources=[page.rows])
    told(page.rows, "rule-value", "rule-mlx-vlm", "rule-dflash-mlx")

# %% [markdown]
# ### A real language model beside it
#
# The same sweep on SmolLM2-135M-Instruct, attention alone, whose weights come out of a package registry, with English prompts and a drafter trained on the model's own continuations. One origin a
# column; costs are in plain steps of that column's own run.

# %%
real = page.borrowed("dflash", beside.REAL)
if page.rows and real and real.target != page.rows.target:
    sweeps = {f.target: blockwise.sweep_rows(f) for f in (page.rows, real)}
    shared = [b for b in blockwise.fixed(sweeps[real.target]) if b in blockwise.fixed(decoded)]
    arms_ = {f"block {b}": f"dflash_b{b}" for b in shared} | {"K=4": blockwise.ADAPTER, "lookup": blockwise.LOOKUP}
    ratios = {"block 5": {("block 5", "× plain"): f"{page.value('df_ratios', 'low', comparison='drafting alone (4-bit with / without drafting)'):.2f} to "
                                                 f"{page.value('df_ratios', 'high', comparison='drafting alone (4-bit with / without drafting)'):.2f}"}}
    origins = {"published (the post)": ratios["block 5"]} | {name: beside.measured(rows_, {n: a for n, a in arms_.items() if sweep.arm_rows(rows_, a)}) for name, rows_ in sweeps.items()}
    page.show(beside.columns(origins), "beside", "Block diffusion on three models, one origin a column: speed-up over the faster plain arm with its 95 % interval over prompts, acceptance, and what a cycle costs",
              sources=[page.published, page.rows, real])
    told_ = {o.criterion.id: o for o in beside.outcomes(None, real)}
    page.number("real_dflash", told_["dflash"].text, source=real.name)
    page.say(f"The rule fixed for the real model: {told_['dflash'].criterion.statement}: **{told_['dflash'].word}**, [[real_dflash]].")
    rows_ = statistics.loop_free(sweeps[real.target])
    page.show(blockwise.goals([("loop-free", rows_, blockwise.best(rows_), float(told_["dflash"].criterion.rule.threshold))]), "beside-short",
              "The real model's fastest block on loop-free text: its two factors, and what each would have to be for the threshold if the other stayed",
              {c: ".2f" for c in ("end to end", "tokens per cycle", "cycle", "speed", "tokens needed", "cycle affordable", "speed, all accepted")} | {"wanted": ".1f"}, sources=[real])
elif page.rows and not real:
    page.say("No rows of the real model have been measured here yet: `specdecode-nb run dflash -p measure=true -p target=smollm2-135m` makes them.")

# %% [markdown]
# ### Precision and drafting, crossed
#
# From here on, the second measurement: one drafted arm beside this package's plain loop. The same target in full precision, in 8 bits and in 4, each decoded plain and with the same drafter, on the same
# prompts, in one interleave. So each factor is identified, and so is their interaction: the combined factor over the product of the two.

# %%
more = page.parts["rest"]
if page.measured("rest"):
    judged["dflash_rest"] = {o.criterion.id: o for o in regimes.outcomes(criteria.load("dflash_rest"), more)}
    crossed, config_ = regimes.of_precision(more), more.config
    lower = [name.removeprefix("quantising_") for name in crossed if name.startswith("quantising_")]
    page.number("rest_prompts", len(config_["prompts"]), "d", "prompts", more.name)
    page.number("rest_tokens", config_["tokens"], "d", "tokens", more.name)
    page.number("rest_block", config_["block"], "d", "rows", more.name)
    page.say("Block [[rest_block]], [[rest_prompts]] prompts, [[rest_tokens]] new tokens unless said otherwise. Intervals resample prompts."
             + (" **This is a reduced run**, shorter than the protocol asks for." if config_["reduced"] else ""))

# %%
if more:
    entries = [("drafting, full precision", "drafting_full")]
    for name in lower:
        bits = name.replace("bit", " bits")
        entries += [(f"{bits} alone", f"quantising_{name}"), (f"drafting at {bits}", f"drafting_{name}"), (f"{bits} and drafting", f"combined_{name}"), (f"interaction at {bits}", f"interaction_{name}")]
    page.figure(draw.forest([{"label": text, **dict(zip(("value", "low", "high", "n"), crossed[metric]))} for text, metric in entries], "factor", reference=1.0, fmt=".2f"), "precision",
                "Every factor of precision and drafting, against plain decoding at full precision; drafting at a precision is against plain decoding at that precision. Interaction: combined / (precision x drafting)",
                "Marks with intervals beside a dashed line at one: drafting, each precision alone, drafting at it, both together, and the interaction.", sources=[more])
    page.check("each combined factor is precision alone, times drafting at full precision, times the interaction",
               all(np.isclose(crossed[f"combined_{n}"][0], crossed[f"quantising_{n}"][0] * crossed["drafting_full"][0] * crossed[f"interaction_{n}"][0]) for n in lower))
    told(more, "drafting-4bit", "drafting-4bit-two", "quantising-4bit", "combined-is-drafting", "interaction-one")

# %% [markdown]
# Speed is not all that a precision changes. Quantising changes the model, so it may change the text; drafting must not.

# %%
if more:
    page.show(regimes.text_effects(more), "texts", "By precision: speed, acceptance, agreement with full precision along its own text, mean tokens before greedy text departs from it, surprise at held-out text, and drafted texts unlike the plain ones of the same precision",
              {"plain": ".1f", "drafted": ".1f", "acceptance": ".3f", "argmax agreement": ".4f", "tokens as at full precision": ".1f", "held-out text": ".4f"}, sources=[more])
    told(more, "text-4bit", "text-8bit", "nats-4bit", "acceptance-4bit", "text-drafted")

# %%
spans = {"drafting, 4-bit, short prompt": (short[0] / plain4, short[1] / plain4, "nothing else"), "8-bit to 4-bit": (plain4 / incumbent[1], plain4 / incumbent[0], "the drafter (native head to none) and the prompt (26k to short)"),
         "both, at 26k": (long[0] / incumbent[1], long[1] / incumbent[0], "the drafter (native head to block diffusion)"), "both / (first x second)": (long[0] / short[1], long[1] / short[0], "this is no interaction: all cancels but the prompt, short to 26k")}
page.show(pd.DataFrame([{"factor": name, "low": low_, "high": high_, "what else differs": text} for name, (low_, high_, text) in spans.items()]), "post-factors",
          "The post's own figures by the same reckoning, from the ends of its ranges", {"low": ".2f", "high": ".2f"})
page.say("The corner that is missing in the post is the drafted 8-bit cell with the *same* drafter, with plain decoding beside it (*Which comparisons exist*, above). Without it the quotient that should show the interaction shows the "
         "prompt length: [[prompt_low]] to [[prompt_high]].")
page.check("combined over the product of the post's two steps is its drafted speed at 26k over that on a short prompt",
           all(np.isclose((d / i) / ((plain4 / i) * (s / plain4)), d / s) for d in long for i in incumbent for s in short))

# %% [markdown]
# ### Prompt length and output length, apart
#
# The post reads three published multipliers as a decay with context; their source has them by generated tokens (*The decay that was by output length*, above). Here one length is varied while the other stays: prompts
# made of the target's own grammar with few new tokens, and the ordinary prompts with more and more new tokens. Decoding alone is compared by prompt length, since prefill is most of the time there. By output
# length the comparison is end to end, as published; a short output then carries its prefill, which no drafter shortens, so some rise of the factor with the output comes from that alone.
#
# By prompt length there is a third arm: the same drafter reading every context row instead of its window (the published key is `draft_window_size`). Positions beyond the length of its training are new to it, and
# every row has to be tapped, after the last layer too, whose attention a plain prefill never computes.

# %%
if more:
    grown, far = regimes.lengths(more), regimes.contexts(more)
    figure, (left, right) = draw.panels(2, height=3.0)
    filled = lambda t, x: (t[x], t["factor"]) + ((t["low"], t["high"]) if t[["low", "high"]].notna().all(axis=None) else ())  # noqa: E731
    everything = regimes.contexts(more, whole=True)
    without = {"decoding alone, no window": filled(everything, "prompt")} if len(everything) else {}
    draw.lines({"decoding alone": filled(far, "prompt"), "end to end": (far["prompt"], far["factor end to end"])} | without, "prompt (tokens)", "speed (× plain)", log_x=True, reference=1.0, ylim=(0, None), ax=left)
    draw.lines({"end to end": filled(grown, "new tokens")}, "new tokens", "speed (× plain)", log_x=True, reference=1.0, ylim=(0, None), ax=right)
    page.figure(figure, "lengths", "Speed over plain decoding: left by prompt length at a fixed output, right by output length on the ordinary prompts; bands are 95 % intervals over texts",
                "Two panels beside a dashed line at one: speed by prompt length, of decoding alone with and without the drafter's window and end to end, and speed by output length.", sources=[more])

# %%
if more:
    page.show(regimes.varied(more), "lengths", "Both lengths varied apart. Speeds and factor: of decoding alone where the prompt varies, end to end where the output does; prefill: of the drafted arm over that of the plain one",
              {"plain": ".1f", "drafted": ".1f", **{c: ".3f" for c in ("factor", "low", "high", "factor end to end", "acceptance", "prefill", "loop fraction")}}, sources=[more])
    told(more, "context-speed", "context-trend", "context-acceptance", "context-prefill", "window-acceptance", "window-prefill", "length-trend", "length-acceptance", "length-loops")

# %% [markdown]
# ### The same drafter on a modified target
#
# The post's production checkpoint has no drafter, and what acceptance one would see there is unknown. Here the drafter is kept while the target is trained further, a few steps at a time, on other text. Its
# check that a drafter belongs to a target is switched off for this on purpose.

# %%
if more:
    page.show(regimes.modified(more), "modified", "By training steps on other text: relative change of the weights, speeds, factor with its interval, acceptance",
              {"change": ".4f", "plain": ".1f", "drafted": ".1f", **{c: ".3f" for c in ("factor", "low", "high", "acceptance", "mean accepted prefix")}}, sources=[more])
    told(more, "modified-acceptance", "modified-ratio", "modified-pays")

# %% [markdown]
# ### A degraded machine
#
# The post threw a baseline away for heat and priority. Two ways to spoil one on purpose: a low priority beside busy processes, and another process spinning on a core. What matters is whether a *paired* ratio
# survives where tokens per second do not.

# %%
if more:
    words = {"low_priority": "low priority", "busy_core": "busy core"}
    page.show(regimes.machine(more).replace({"condition": words}), "machine", "By condition: speeds, each over its quiet one, the factor with its interval and over the quiet one",
              {"plain": ".1f", "drafted": ".1f", **{c: ".3f" for c in ("factor", "low", "high", "acceptance", "mean accepted prefix", "plain / quiet", "drafted / quiet", "factor / quiet")}}, sources=[more])
    told(more, "machine-priority", "machine-priority-ratio", "machine-core", "machine-core-ratio")

# %% [markdown]
# ### Peers beside it
#
# Three other projects on the same target and prompts. [mlx-lm](https://github.com/ml-explore/mlx-lm)'s `speculative_generate_step` drafts with a small model, token by token; it has to trim every cache of its
# target, and says so where it cannot, as with a recurrent state. Where it decodes, this package's decoder drafts with the same small model beside it, so the two loops can be told from the drafter.
# [dflash-mlx](https://github.com/bstnxbt/dflash-mlx) and the MLX part of [dflash](https://github.com/z-lab/dflash), by the authors of such drafters, are runtimes for block drafters, written for Apple GPUs.
# They get our drafter and our block. They patch mlx-lm's classes, so each is measured in a process of its own, beside plain decoding there, and only where it is installed; `environment.md` says what was
# found about both on this platform.
# Equal texts do not prove equal states, so each runtime also undoes a part of a verified block, after which its caches are compared with those of plain steps.
# All rows pass the same audit; an arm of which one text leaves plain decoding by more than a tie has no speed.

# %%
with_peers = ([page.parts["peers"]] if page.measured("peers") else []) + [file for name, file in overview.rows_of("dflash_peers").items() if name != target]
for file in with_peers:
    key = f"peers_{file.target}".replace("-", "_")
    page.number(f"{key}_prompts", len(file.config["prompts"]), "d", "prompts", file.name)
    page.number(f"{key}_tokens", file.config["tokens"], "d", "tokens", file.name)
    page.say(f"On **{file.target}**, {file.config['dtype']}: [[{key}_prompts]] prompts, [[{key}_tokens]] new tokens" + (", **a reduced run**." if file.config["reduced"] else "."))
    page.show(peers.speeds(file), f"peers-{file.target}", f"Peers on {file.target}: speed against the faster plain loop of the same process with its 95 % interval over prompts, acceptance, tokens per cycle, and the audit",
              {"tok/s": ".1f", **{c: ".3f" for c in ("x plain", "low", "high", "accepted / drafted")}, "tokens per cycle": ".2f"}, sources=[file])
    if len(undone := peers.states(file)):
        page.show(undone, f"peers-states-{file.target}", "Caches of the runtimes once a part of a verified block is undone, against those of one row at a time: largest error of any cache, relative to its largest entry",
                  {c: ".1e" for c in undone.columns[2:]}, sources=[file])

# %%
if with_peers:
    page.show(peers.told(with_peers), "peers-told", "Which peers ran, and what stopped the others in their own words", sources=with_peers)
    page.show(peers.closing(with_peers), "peers-closing", "Peers: hypotheses by rules fixed before the rows", sources=[criteria.load("dflash_peers"), *with_peers])

# %% [markdown]
# ### Every hypothesis, both verdicts

# %%
def closing(which: str, file, id: str, caption: str) -> None:
    """The closing table of one row file: folded on the page, whole in its files."""
    whole = criteria.table(judged[which].values())
    page.show(whole[["hypothesis", "published number", "measured here", "verdict here"]], id, f"{caption}: hypotheses by rules fixed before the rows, published and measured number with its 95 % interval over "
              "prompts, and our verdict. In the files also the rules, the published verdicts, and what differs for each", sources=[page.published, criteria.load(which), file], full=whole)


if page.rows:
    closing("dflash", page.rows, "closing", "The sweep")

# %%
if more:
    closing("dflash_rest", more, "rest-closing", "The rest")

# %%
every = [o for found in judged.values() for o in found.values()]
if every:
    page.tally(every, file=page.rows or more)

# %%
file = page.rows or more
if file:
    p, drafter, setup = file.provenance, file.provenance["drafter"], page.published.facts.setup
    recipe = drafter.get("recipe", {})
    versions = p.get("versions", {})
    differing = {"target": (setup["target"], f"{p['target']['name']}, {p['target']['parameters']:,} parameters, {p['target']['dtype']}" + ("; 8 and 4 bits made from it in memory" if more else "")),
                 "drafter": (setup["draft"], f"{recipe.get('layers', '?')} layers, trained on this target's own text; taps layers {', '.join(map(str, recipe.get('taps', [])))}"),
                 "runtime": (setup["runtime"], f"this package on MLX {versions.get('mlx', '?')}; no kernels of its own for quantised rows"),
                 "machine": (setup["hardware"], p.get("machine", {}).get("class", "not recorded")),
                 "prompts": (setup["prompt"], f"{len(file.config['prompts'])} prompts of the suite" + (f"; {', '.join(map(str, more.config['contexts']))} tokens where the prompt varies" if more else "")),
                 "repeats": ("not stated; ranges of unknown meaning", "arms interleaved on each prompt; 95 % intervals over prompts"),
                 "baseline": ("an 8-bit incumbent with its own head; one plain run on a short prompt", "plain decoding beside every drafted row"),
                 "identity": ("stated", "each drafted row compared with plain decoding token by token")}
    page.show(pd.DataFrame([{"what": what, "in the post": a, "here": b} for what, (a, b) in differing.items()]), "machines", "What differs between the post's machine and ours", sources=[page.published, file])

# %% [markdown]
# ## Threats to validity
#
# **Of the post.** One prompt, one machine that is not named, no number of repeats, ranges of unknown meaning, no dates. Losslessness is stated and not tested. The drafted 8-bit cell and the drafted
# 4-bit cells use different drafters. The results table is missing from the text we have; the rows here were rebuilt from the prose, so the table may have held a row that we miss.
#
# **Of this reading.** That the post's multipliers come from that README, and that its two acceptances are two counters, are inferences. The recomputed columns assume that every emitted token belongs to a round
# and that the block is the one read upstream; for the newer drafter the block was not read and its column stays empty. Upstream has its own faults (the table of facts read above).
#
# **Of the measured part.** One small target, one drafter trained once on that target's own text, few prompts. A row costs arithmetic on these cores, where the post's target waits for its weights, so
# ratios of forwards do not carry over. The best block is chosen on the rows it is judged on. Long prompts are made of the target's grammar and are far longer than the drafter's windows of training. After a
# long prompt the first draft computes the taps of its last rows, which counts as decoding, so a part of what the window saves in prefill is paid there. The
# quantised products of this CPU unpack their weights, so what a precision is worth in speed says little about a GPU; what it does to the text hangs on the model, and this one is small.

# %% [markdown]
# ## Provenance

# %%
page.provenance()

# %%
page.finish()
