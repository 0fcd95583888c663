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
# # Act IV-U6: decoupling draft width from verify width
#
# Until now one number K set both how many tokens are drafted and how many are verified. This Act separates them. A wide draft is cheap, so one could draft eight tokens, verify the
# first few, and go on to the rest only if those were all accepted. Or one could draft wide and throw the end away, if a wider canvas makes the first tokens better. Does either
# beat drafting four and verifying four?
#
# **Why it matters.** Most cycles reject early, so most of a wide verify forward is wasted. Verifying in stages avoids the waste and commits more tokens per cycle. Whether that is
# faster depends on what a narrow forward costs against a wide one, and this is measured here in milliseconds before the idea is tried. The Act is also a model of cheap refusal:
# three gates, each of which could have ended it before the long run, and a written prediction of the outcome.
#
# **Contents.** 1 What was run. 2 Method. 3 Criteria. 4 How much is noise? 5 Does a wider draft help the first tokens? 6 What a forward costs. 7 The bound with a perfect drafter.
# 8 The pilot. 9 The decisive run. 10 Where the time goes. 11 Same tokens, other forwards. 12 The prediction. 13 Is the output still the target's? 14 The control, once more.
# 15 Verdict. 16 Measured here. 17 Threats to validity. 18 Provenance.

# %% tags=["parameters"]
target = "tiny-hybrid"   # model that decides every token: a name, folder or hub id
drafter = "uno"          # who drafts: uno, or the path of an adapter
drafts = [4, 6, 8, 16]   # draft widths D of the diagnostic
tokens = 64              # new tokens a prompt
repeats = 2              # passes over the prompts, arms interleaved
cost_repeats = 3         # timings of every forward at each prompt's context
prompts = 27             # prompts of the suite, 1 to 27
dtype = "float32"        # number format of the target: float32 or bfloat16
measure = False          # True: measure again; False: draw from recorded rows
quick = False            # True: a one-minute measurement whose captions say that it is one
rows = ""                # row file; empty: the committed one of the target

# %%
import re

import numpy as np
import pandas as pd

from specdecode_nb import criteria, statistics
from specdecode_nb.book import draw, published, staging, start

page = start("act4u6", globals())
frame, setup = page.published.frame, page.published.facts.setup
STAGED = ("S(6,4)", "S(8,4)", "S(6,3)", "S(8,2)")

# %% [markdown]
# ## 1. What was run

# %%
page.opening()

# %%
page.table("u6_sessions", caption="Five sessions, in this order", fmt={"wall": ",.1f", "native AR": ".2f"})

# %%
page.note("Criteria, floor and pilot")

# %% [markdown]
# ## 2. Method
#
# **Arms.** D is the draft width, V the verify width, both counted as in earlier Acts: the first drafted token is the target's own, the others are guesses. B is the incumbent, (4,4).
# B_dec is the same thing run through the new code, to price the code itself.
#
# - **T(D,V)**, truncate: draft D, verify V, drop the rest.
# - **S(D,V)**, staged: draft D, verify the first V. Go on only if all of these were accepted, the target's next token equals the next drafted one, and drafted tokens are left. Each
#   further stage verifies up to V more, with the last committed token in front. Nothing is free in a further stage: its first row has to be computed again.
#
# **Cost.** A forward over $w$ rows costs a fixed part and a part for each row:
#
# $$t(w) = F + m\, w.$$
#
# If $F$ is large, two narrow forwards cost nearly twice as much as one wide one.
#
# **Bound with a perfect drafter.** If every guess were accepted, a cycle with stage widths $w_1, w_2, \ldots$ would take
#
# $$T = t_{\text{draft}}(D) + \sum_i \left( t_{\text{verify}}(w_i) + t_{\text{commit}}(w_i) + h \right)$$
#
# with $h$ the host's overhead. An arm whose tokens per millisecond are below the incumbent's even then can be dropped unmeasured.
#
# **Comparison.** Arms are interleaved on every prompt. Differences in throughput to B are taken pairwise over prompt and repeat, and their mean is resampled for a 95 % interval:
#
# $$\Delta = 100 \cdot \frac{\overline{r_{\text{arm}} - r_B}}{\overline{r_B}}.$$
#
# **Break-even.** In pooled terms an arm is faster only if its tokens per cycle grow by more than its milliseconds per cycle:
#
# $$\frac{c_{\text{arm}}}{c_B} > \frac{t_{\text{arm}}}{t_B}.$$

# %% [markdown]
# ## 3. Criteria, fixed before the runs

# %%
page.criteria()

# %%
passed = {c.id: c.passed for c in page.published.facts.criteria}
page.number("criteria_passed", sum(v is True for v in passed.values()), "d")
page.number("criteria_failed", sum(v is False for v in passed.values()), "d")
page.say("[[criteria_passed]] held and [[criteria_failed]] failed: the wider draft does not help the first tokens (U6-1), and no decoupled arm beats K=4 (U6-4). Everything that guards the "
         "measurement passed, and the prediction of the failure came true.")
page.check("the failed criteria are U6-1 and U6-4", [k for k, v in passed.items() if v is False] == ["U6-1", "U6-4"])

# %% [markdown]
# ## 4. How much is noise?
#
# Two identical incumbent arms, B and B2, were run side by side. Their difference is what the harness calls nothing. The floor that a win must exceed was computed from it and
# written into a slot that the criteria had left open.

# %%
page.table("u6_calibration", fmt={"value": ".4f"})

# %%
floor = frame("u6_calibration").set_index("quantity")["value"]
raw = 100 * max(abs(floor["CI low"]), abs(floor["CI high"])) / floor["mean incumbent tok/s"]
page.number("floor_raw", raw, ".2f", "percent")
page.number("floor", floor["floor used"], ".1f", "percent")
page.number("noise_mean", 100 * floor["mean difference B2 - B"] / floor["mean incumbent tok/s"], ".2f", "percent")
page.say("The mean difference is [[noise_mean]] %. The larger end of its interval is [[floor_raw]] % of the mean; rounded up to the next half this is the floor, [[floor]] %.")
page.check("the raw floor follows from the interval, and the used one is it rounded up to a half, at least one", abs(raw - floor["raw floor"]) < 1e-3
           and floor["floor used"] == max(1.0, np.ceil(2 * raw) / 2))

# %% [markdown]
# ### Negative result: the medians of two identical arms do not agree

# %%
page.negative("Medians of two identical", "paired_diff_tok_s", "mean paired difference of the two arms, tok/s", {"median_b": "median of B, tok/s", "median_b2": "median of B2, tok/s"})

# %%
page.number("median_gap", 100 * (floor["median B2"] / floor["median B"] - 1), ".1f", "percent")
page.say("By their medians B2 would be [[median_gap]] % faster than itself. An effect of that size is larger than any that this Act could hope to find, so the comparisons here are of paired "
         "means. Act IV-S quotes medians, and its headline must be read with this in mind.")
page.check("the medians are further apart than the floor", abs(floor["median B2"] / floor["median B"] - 1) > floor["floor used"] / 100)

# %% [markdown]
# ## 5. Does a wider draft help the first tokens?
#
# The first gate. At each of many contexts the drafter proposed at widths 4, 6, 8 and 16, and the first four tokens were compared with the target's greedy continuation. A redraw of the
# noise at width 4 shows how much they move for no reason.

# %%
page.table("u6_prefix4", fmt={c: "+.4f" for c in ("mean change", "CI low", "CI high")} | {"mean prefix4": ".4f"})

# %%
change = frame("u6_prefix4")
figure = draw.forest([{"label": {"redraw D4": "D=4, noise redrawn"}.get(r["condition"], r["condition"].replace("D", "D=")), "value": r["mean change"], "low": r["CI low"], "high": r["CI high"]}
                      for _, r in change.iterrows()], "change of the accepted prefix in the first four slots (tokens)", fmt="+.3f")
page.figure(figure, "wide-draft", "Change of the leading matches in the first four slots when the draft is wider, with paired 95 % intervals over the contexts; the last row redraws the noise "
            "at the old width", "Four intervals around zero, three wider drafts and one redraw; all contain zero and the wider drafts move no more than the redraw's own interval.")

# %%
kept = [c for _, c in change.iterrows() if c["condition"] != "redraw D4" and c["CI low"] > 0]
page.say("No width passes. The gate asked for an interval above zero; none of the three has one. The truncating arms T were dropped here, without a run.")
page.check("no wider draft has an interval above zero", not kept)

# %% [markdown]
# **Why it cannot help.** The draft forward is causal: row 4 does not see row 5. If the noise is the same, the first four rows compute the same thing at every width, up to the
# order of additions in bf16. A second measurement shared the noise between widths.

# %%
page.table("u6_aligned", ["width", "slot 1", "slot 2", "slot 3", "slot 4", "max |dlogit| slot 1", "slot 4 dlogit", "mean prefix4"], fmt={f"slot {i}": ".3f" for i in range(1, 5)} |
           {"max |dlogit| slot 1": ".3f", "slot 4 dlogit": ".3f", "mean prefix4": ".3f"}, caption="With shared noise: share of contexts where a slot proposes the same token as at D=4, and the largest "
           "difference of a logit")

# %%
page.table("u6_decoder_slot_id", fmt={f"slot {i}": ".3f" for i in range(1, 5)}, caption="With the decoder's own noise, which differs between widths: the same share")

# %%
page.table("u6_slot_agree", fmt={f"slot {i}": ".3f" for i in range(1, 5)})

# %%
aligned, own_noise = frame("u6_aligned").set_index("width"), frame("u6_decoder_slot_id").set_index("condition")
slots = [f"slot {i}" for i in range(1, 5)]
page.number("aligned_low", aligned[slots].to_numpy().min(), ".3f")
page.number("aligned_high", aligned[slots].to_numpy().max(), ".3f")
page.number("wide_slot4", own_noise.loc["D8", "slot 4"], ".3f")
page.number("redraw_slot4", own_noise.loc["redraw D4", "slot 4"], ".3f")
page.say("With shared noise [[aligned_low]] to [[aligned_high]] of the slots are identical at every width, and the logits differ by small amounts even where the inputs are the same. With the decoder's noise slot 4 keeps its token in [[wide_slot4]] "
         "of contexts at D=8, and in [[redraw_slot4]] if only the noise is redrawn. What changes is the noise, not the width.")
page.check("with shared noise every slot at every width is identical in at least 97 % of contexts", aligned[slots].to_numpy().min() > 0.97)

# %% [markdown]
# ### Negative result: a wider canvas does not improve the tokens that are verified

# %%
page.negative("A wider draft canvas", "D8_change", "change of the prefix at D=8, tokens", {"redraw": "change by a redraw", "aligned_slot4_d8": "slot 4 identical at D=8 with shared noise"})

# %%
page.say("The estimate at D=8 is positive, and its interval reaches well below zero. The redraw's mean is exactly zero, so the second half of the rule asked for nothing; the first half decided.")
page.check("the interval of D=8 contains zero", change.set_index("condition").loc["D8", "CI low"] < 0 < change.set_index("condition").loc["D8", "CI high"])

# %% [markdown]
# ## 6. What a forward costs
#
# The second gate. Verify and draft forwards were timed at many widths in shuffled order; section 1 lists contexts and repeats.

# %%
page.table("u6_verify_cost", fmt={c: ".2f" for c in ("median", "p25", "p75", "mean")} | {"commit median": ".3f"})

# %%
page.table("u6_draft_cost", fmt={c: ".2f" for c in ("median", "p25", "p75", "mean")})

# %%
page.table("u6_fits", fmt={"fixed": ".3f", "marginal": ".4f", "R2": ".4f"})

# %%
verify, drafting = frame("u6_verify_cost"), frame("u6_draft_cost")
figure = draw.lines({"verify": (verify["width"], verify["median"], verify["p25"], verify["p75"]), "draft": (drafting["width"], drafting["median"], drafting["p25"], drafting["p75"])},
                    "width (tokens in the forward)", "ms per forward", whole_x=True, ylim=(0, 70))
fitted = statistics.line(*(verify.loc[verify["width"] <= 9, c] for c in ("width", "median")))
figure.axes[0].plot([0, 17], [fitted["intercept"], fitted["intercept"] + 17 * fitted["slope"]], color="#000000", linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
page.figure(figure, "cost-curve", "Milliseconds of a verify and of a draft forward by width: medians, with the middle half as a band. The dashed line is the fit to verify widths 2 to 9",
            "Two curves that rise slowly and nearly together up to widths 12 and 13, then jump to about twice the value at widths 16 and 17; the dashed fit goes on rising slowly.")

# %%
fits = frame("u6_fits").set_index("pass")
page.number("fixed", fitted["intercept"], ".1f", "ms")
page.number("marginal", fitted["slope"], ".2f", "ms per token")
page.number("fit_r2", fitted["r2"], ".3f")
page.number("fixed_in_tokens", fitted["intercept"] / fitted["slope"], ".0f", "tokens")
page.say("Up to width 9 a verify forward costs [[fixed]] ms plus [[marginal]] ms per token (R² [[fit_r2]]). The fixed part is worth [[fixed_in_tokens]] tokens of width: reading the weights "
         "once is nearly all there is to pay.")
page.check("the published fit is least squares through the medians of widths 2 to 9", abs(fitted["intercept"] - fits.loc["verify", "fixed"]) < 1e-3 and abs(fitted["slope"] - fits.loc["verify", "marginal"]) < 1e-4
           and abs(fitted["r2"] - fits.loc["verify", "R2"]) < 1e-4)

# %% [markdown]
# **The line through the draft widths is not a model.** It was fitted across the jump at width 16, and its low R² says so. Without that point the same forward shows nearly the
# same shape as the verify forward.

# %%
plain = statistics.line(*(drafting.loc[drafting["width"] <= 12, c] for c in ("width", "median")))
page.number("draft_fixed", plain["intercept"], ".1f", "ms")
page.number("draft_marginal", plain["slope"], ".2f", "ms per token")
page.number("draft_r2_all", fits.loc["draft", "R2"], ".2f")
page.say("Widths 2 to 12 give [[draft_fixed]] ms plus [[draft_marginal]] ms per token; with width 16 included R² is [[draft_r2_all]]. The shorter fit is ours.")
page.check("the published draft fit is least squares through all six medians", abs(statistics.line(drafting["width"], drafting["median"])["intercept"] - fits.loc["draft", "fixed"]) < 1e-3)

# %% [markdown]
# ### Negative result: cost is not proportional to width, there is a cliff

# %%
page.negative("Wider widths cost proportionally", "w17", "verify forward at width 17, ms", {"w13": "verify forward at width 13, ms", "draft16": "draft forward at width 16, ms"})

# %%
wide = verify.set_index("width")["median"]
page.number("cliff", wide[17] / (fitted["intercept"] + 17 * fitted["slope"]), ".2f", "x")
page.number("cliff13", wide[13] / (fitted["intercept"] + 13 * fitted["slope"]), ".2f", "x")
page.say("At width 13 the forward takes [[cliff13]] times what the line says, at width 17 [[cliff]] times. The jump lies somewhere between the two, and where is not known: no width "
         "between was timed. It is the likely reason why K=16 was slow in Act IV-S.")
page.check("the cost nearly doubles between widths 13 and 17", wide[17] / wide[13] > 1.8)

# %% [markdown]
# ### What this means for stages

# %%
page.table("u6_fixed_share", fmt={"total": ".2f", "fixed share": ".1f"})

# %%
page.table("u6_compare_cost", fmt={"staged": ".2f", "single": ".2f"})

# %%
page.table("u6_extra_draft", fmt={"extra": ".3f"})

# %%
page.table("u6_overhead", fmt={"median": ".3f", "mean": ".3f"})

# %%
compare = frame("u6_compare_cost")
page.number("two_for_one", (compare["staged"] / compare["single"]).iloc[1], ".2f", "x")
page.number("extra_draft_8", frame("u6_extra_draft")["extra"].iloc[1], ".2f", "ms")
page.number("snapshot", page.value("u6_overhead", "median", quantity="snapshot + restore per cycle"), ".3f", "ms")
page.say("Two narrow verify forwards in place of a wide one cost [[two_for_one]] times as much for S(8,4). Drafting eight in place of four adds [[extra_draft_8]] ms, and taking a snapshot of the "
         "state for each stage [[snapshot]] ms. The only large number is the second forward.")
page.check("the comparisons are sums of the medians above", np.allclose(compare["staged"], [2 * wide[3], wide[5] + wide[4], 3 * wide[3]], atol=2e-3)
           and np.allclose(compare["single"], [wide[5], wide[9], wide[9]], atol=1e-4))
page.check("extra draft cost and fixed share follow as well", np.allclose(frame("u6_extra_draft")["extra"], drafting.set_index("width")["median"].loc[[6, 8]] - drafting.set_index("width")["median"][4], atol=1e-3)
           and np.allclose(frame("u6_fixed_share")["fixed share"], [100 * fitted["intercept"] / wide[w] for w in (5, 9)], atol=0.06))

# %% [markdown]
# ## 7. The bound with a perfect drafter
#
# Before any run: would staging win if every guess were right?

# %%
page.table("u6_perfect", fmt={"ms": ".2f", "tokens per ms": ".4f"})

# %%
perfect = frame("u6_perfect")
commit, forward = verify.set_index("width")["commit median"], drafting.set_index("width")["median"]
host = {}
for _, r in perfect.iterrows():
    widths = [int(w) for w in r["stage widths"].split("+")]
    draft_width = 4 if "incumbent" in r["arm"] else int(r["arm"][2])
    host[r["arm"]] = (r["ms"] - forward[draft_width] - sum(wide[w] + commit[w] for w in widths)) / len(widths)
page.number("host_ms", np.mean(list(host.values())), ".2f", "ms")
page.say("Only S(8,4) would: nine tokens for two verify forwards. The other three lose even with a perfect drafter. The rule kept staging alive if one arm passed, so all four were run; the "
         "three others had lost already. The milliseconds contain [[host_ms]] ms of host overhead a stage, as in earlier Acts.")
page.check("draft, verify and commit medians explain every bound up to the same overhead a stage", np.ptp(list(host.values())) < 2e-3)
page.check("exactly one staged arm beats the perfect incumbent", perfect["beats perfect incumbent"].eq(True).sum() == 1 and bool(perfect.set_index("arm").loc["S(8,4)", "beats perfect incumbent"]))

# %% [markdown]
# ## 8. The pilot
#
# The third gate: one repeat. If every staged arm had been clearly below the floor, the long run would have been skipped.

# %%
page.table("u6_pilot", fmt={c: "+.2f" for c in ("percent", "CI low", "CI high")})

# %%
pilot = frame("u6_pilot")
page.number("pilot_clear", int(pilot["clearly below -1.0%"].eq(True).sum()), "d")
page.say("[[pilot_clear]] of four were clearly below. The other two were not, so the run went ahead. Even the equal arm B_dec has an interval just below zero here; with more repeats that went away.")
page.check("an arm counts as clearly below exactly if its upper end is below minus the floor", all((r["CI high"] < -floor["floor used"]) == bool(r["clearly below -1.0%"]) for _, r in pilot.iterrows() if r["arm"] in STAGED))

# %% [markdown]
# ## 9. The decisive run

# %%
page.table("u6_decisive", ["arm", "percent", "CI low", "CI high", "median", "xAR", "TPF", "passes"], fmt={c: "+.2f" for c in ("percent", "CI low", "CI high")} | {"median": ".2f", "xAR": ".3f", "TPF": ".3f"},
           caption="Paired change of mean throughput against the incumbent K=4, all 81 units; the loop-free columns are in the figure and in the files")

# %%
decisive = frame("u6_decisive").set_index("arm")
order = ["B_dec (4,4)", *STAGED]
figure, axes = draw.panels(1, height=4.6, rows=2)
for ax, prefix, title in zip(axes, ("", "loop-free "), ("all prompts", "loop-free prompts only")):
    names = {"": ("percent", "CI low", "CI high")}.get(prefix, ("loop-free percent", "loop-free CI low", "loop-free CI high"))
    draw.forest([{"label": a, "value": decisive.loc[a, names[0]], "low": decisive.loc[a, names[1]], "high": decisive.loc[a, names[2]]} for a in order], "change of mean throughput against K=4 (%)" if prefix else "",
                title=title, ax=ax)
    ax.set_xlim(-13, 1.5)
    ax.axvline(floor["floor used"], color="#767676", linewidth=0.9, linestyle=(0, (1, 2)))
page.figure(figure, "decisive", "Change of mean throughput against the incumbent, paired, with 95 % intervals. Dashed: no difference; dotted: the floor that a win had to exceed",
            "Two panels of five intervals. The decoupled code at (4,4) sits at zero; all four staged arms lie left of zero with S(8,2) far left, on all prompts and on loop-free ones.")

# %%
page.table("u6_arm_means", fmt={"mean": ".2f", "loop-free mean": ".2f"})

# %%
means = frame("u6_arm_means").set_index("arm")
base = means.loc["B incumbent"]
page.number("best_staged", decisive.loc[list(STAGED), "percent"].max(), "+.2f", "percent")
page.number("worst_staged", decisive.loc[list(STAGED), "percent"].min(), "+.2f", "percent")
page.number("b_dec", decisive.loc["B_dec (4,4)", "percent"], "+.2f", "percent")
page.number("loopfree_s84", decisive.loc["S(8,4)", "loop-free percent"], "+.2f", "percent")
page.number("all_s84", decisive.loc["S(8,4)", "percent"], "+.2f", "percent")
page.say("The best staged arm runs at [[best_staged]] %, the worst at [[worst_staged]] %. The new code costs [[b_dec]] %, nothing that can be told from zero. Without prompts on which plain "
         "decoding repeats itself S(8,4) falls from [[all_s84]] to [[loopfree_s84]] %; S(6,4) and S(8,2) lose more as well, S(6,3) does not. Our reading: the long accepted runs that feed a second "
         "stage are more common in repeated text.")
page.check("every staged interval is below zero, on all prompts and on loop-free ones", bool((decisive.loc[list(STAGED), ["CI high", "loop-free CI high"]].astype(float) < 0).all().all()))
page.check("three of the four staged arms lose more on loop-free prompts, all but S(6,3)", [a for a in STAGED if decisive.loc[a, "loop-free percent"] > decisive.loc[a, "percent"]] == ["S(6,3)"])
page.check("percentages are the changes of the mean throughputs", all(abs(100 * (means.loc[a, c] / base[c] - 1) - decisive.loc[a, p]) < 1e-3
           for a in order for c, p in (("mean", "percent"), ("loop-free mean", "loop-free percent"))))

# %% [markdown]
# ### Negative result: decoupling does not speed decoding

# %%
page.negative("Decoupling draft width", "S_6_4", "the best staged arm, S(6,4), percent against K=4", {"S_8_4": "S(8,4)", "S_6_3": "S(6,3)", "S_8_2": "S(8,2)"})

# %% [markdown]
# ## 10. Where the time goes
#
# The staged arms do what they were built for: they commit more per cycle.

# %%
page.table("u6_cycle", ["arm", "committed per cycle", "committed change", "CI low", "CI high", "accepted per cycle", "added verify", "added draft"],
           fmt={c: ".3f" for c in ("committed per cycle", "committed change", "CI low", "CI high", "accepted per cycle")} | {"added verify": ".2f", "added draft": ".2f"},
           caption="Committed tokens per cycle (means over units) with the paired change against B, and the milliseconds that a cycle gains")

# %%
page.note("Mean accepted per cycle here")

# %%
page.table("u6_stages", ["arm", "cycles", "mean stages", "second-stage rate", "verify tokens per committed", "unused draft tokens per cycle", "cycle mean", "cycle sd"],
           fmt={c: ".3f" for c in ("mean stages", "second-stage rate", "verify tokens per committed", "unused draft tokens per cycle")} | {"cycle mean": ".2f", "cycle sd": ".2f"})

# %%
page.table("u6_forwards", fmt={"verify forwards per token": ".3f", "draft forwards per token": ".3f", "second-stage rate": ".1f"})

# %% [markdown]
# **Two averages.** The table of committed tokens averages over units, one value for each prompt and repeat. Pooling all cycles gives lower numbers, because a unit with long accepted
# runs needs fewer cycles and then counts for less. Act IV-S pooled. Both come from the same cycles: B has here exactly as many as K=4 had there.

# %%
stages = frame("u6_stages").set_index("arm")
earlier = published.load("act4s")
units, tokens_each = int(re.search(r"\((\d+) units", page.published.table("u6_decisive").title)[1]), int(re.search(r"x (\d+) tokens", setup["suite"])[1])
total = units * tokens_each
pooled = total / stages["cycles"]
cycle = frame("u6_cycle").set_index("arm")
four = lambda column: earlier.value("s_ksweep", column, arm="uno_k4")  # noqa: E731
both = f"{page.published.name}; {earlier.name}"
page.show(pd.DataFrame({"average": ["over units, this Act (B)", "pooled over cycles, this Act (B_dec)", "pooled over cycles, Act IV-S (K=4)"], "cycles": [None, stages.loc["B_dec", "cycles"], four("cycles")],
                        "committed per cycle": [cycle.loc["B", "committed per cycle"], pooled["B_dec"], four("committed per cycle")],
                        "accepted per cycle": [cycle.loc["B", "accepted per cycle"], None, four("mean accepted prefix")]}), "two-averages",
          "One decoder, two ways to average. A cycle accepts a guesses and commits a + 2 tokens, except the last of a run, which is cut at the budget",
          {"cycles": ",.0f", "committed per cycle": ".4f", "accepted per cycle": ".4f"}, sources=[page.published, earlier])
page.number("accepted_units", cycle.loc["B", "accepted per cycle"], ".3f", "tokens")
page.number("accepted_pooled", four("mean accepted prefix"), ".3f", "tokens", both)
page.say("So [[accepted_units]] here and [[accepted_pooled]] in Act IV-S are the same decoder. To ask where time went, the pooled ones are the right ones: total tokens over total cycles, and total "
         "milliseconds over total cycles.")
page.check("pooled tokens per cycle are those of Act IV-S", stages.loc["B_dec", "cycles"] == four("cycles") and abs(pooled["B_dec"] - four("committed per cycle")) < 1e-4)

# %%
trade = pd.DataFrame({"arm": list(STAGED), "tokens per cycle, change": [100 * (pooled[a] / pooled["B_dec"] - 1) for a in STAGED],
                      "ms per cycle, change": [100 * (stages.loc[a, "cycle mean"] / stages.loc["B_dec", "cycle mean"] - 1) for a in STAGED]})
trade["throughput, follows"] = 100 * ((1 + trade["tokens per cycle, change"] / 100) / (1 + trade["ms per cycle, change"] / 100) - 1)
trade["throughput, published"] = [decisive.loc[a, "percent"] for a in STAGED]
trade.attrs["units"] = dict.fromkeys(trade.columns[1:], "%")
page.show(trade, "trade", "What a cycle gains in tokens and in milliseconds against B_dec, pooled, the change of throughput that follows, and the published one against B", {c: "+.2f" for c in trade.columns[1:]})

# %%
figure = draw.scatter({a: ([r["ms per cycle, change"]], [r["tokens per cycle, change"]]) for a, (_, r) in zip(STAGED, trade.iterrows())}, "milliseconds per cycle, change (%)",
                      "tokens per cycle, change (%)", diagonal=True)
figure.axes[0].set_xlim(0, 14)
figure.axes[0].set_ylim(0, 7)
figure.axes[0].annotate("break-even: faster above, slower below", (5.6, 5.6), xytext=(8, -6), textcoords="offset points", fontsize=7.6, rotation=0)
page.figure(figure, "trade", "What each staged arm gains per cycle and what it pays, pooled over all cycles. On the dashed line both grow alike and nothing is won",
            "Four points below a dashed diagonal: S(6,4) and S(8,4) nearest to it, S(6,3) further off, S(8,2) far to the right, with much more time for the same tokens as S(8,4).")

# %%
worst = (trade["throughput, follows"] - trade["throughput, published"]).abs().max()
page.number("trade_error", worst, ".2f", "points")
page.number("s84_tokens", trade.set_index("arm").loc["S(8,4)", "tokens per cycle, change"], ".1f", "percent")
page.number("s84_ms", trade.set_index("arm").loc["S(8,4)", "ms per cycle, change"], ".1f", "percent")
page.number("s84_needed", pooled["B_dec"] * stages.loc["S(8,4)", "cycle mean"] / stages.loc["B_dec", "cycle mean"], ".2f", "tokens")
page.number("s84_has", pooled["S(8,4)"], ".2f", "tokens")
page.say("S(8,4) commits [[s84_tokens]] % more per cycle and takes [[s84_ms]] % longer. To break even it would need [[s84_needed]] tokens per cycle; it has [[s84_has]]. This arithmetic, which is "
         "ours, gives every published loss to within [[trade_error]] points, so nothing else needs to be explained.")
page.check("every arm lies below break-even, and what follows agrees with what was published within half a point", bool((trade["throughput, follows"] < 0).all()) and worst < 0.5)

# %% [markdown]
# ### Negative result: more tokens per cycle is not faster

# %%
page.negative("Committing more tokens", "percent", "throughput of S(8,4) against K=4, percent", {"committed_change": "tokens per cycle gained (mean over units)", "added_verify_ms": "verify ms added per cycle",
              "added_draft_ms": "draft ms added per cycle"})

# %%
profile = stages.loc[list(STAGED)]
figure = draw.stacked(list(STAGED), {f"{n} stage{'s' * (n > 1)}": (100 * profile[f"{n} stage{'s' * (n > 1)}"] / profile["cycles"]).tolist() for n in (1, 2, 3)}, "share of cycles (%)")
page.figure(figure, "stages", "How many verify stages a cycle took in the decisive run",
            "Four stacked bars that add to one hundred percent; one stage makes up nearly all cycles of S(6,4) and S(8,4), less with S(6,3), and about two thirds with S(8,2), which alone has a third stage.")

# %% [markdown]
# ### Negative result: a second stage is rare

# %%
page.negative("A second stage happens", "v4", "cycles with a second stage at V=4 and D=8, percent", {"v3": "at V=3", "v2": "at V=2"})

# %%
second = 1 - stages["1 stage"] / stages["cycles"]
page.say("The trap is closed on both sides. With wide stages the second one is rare, so the wider draft is mostly unused. With narrow stages it is frequent, and each costs a whole forward.")
page.check("second-stage rates follow from the cycle counts, and forwards per token from both", all(abs(second[a] - stages.loc[a, "second-stage rate"]) < 1e-5 for a in STAGED)
           and all(abs(stages.loc[a, "cycles"] * stages.loc[a, "mean stages"] / total - page.value("u6_forwards", "verify forwards per token", arm=a)) < 6e-4 for a in STAGED))

# %% [markdown]
# ## 11. Same tokens, other forwards
#
# For a fixed draft width the verify width should change how the tokens are verified and not which.

# %%
page.table("u6_staging_identity")

# %% [markdown]
# ### Negative result: staging cannot commit more than a coupled block

# %%
page.negative("Staging can commit more", "identical", "units with identical commits per cycle", {"units": "of units"})

# %%
identity = frame("u6_staging_identity").set_index("pair")
page.number("identical_s", int(identity["units identical"].iloc[2]), "d")
page.number("units_s", int(identity["units"].iloc[2]), "d")
page.say("Within this session the commits agree in every unit. Against the coupled K=8 of Act IV-S [[identical_s]] of [[units_s]] units agree: that run verified nine rows at once, and another "
         "width breaks bf16 ties differently, after which the continuations differ.")
page.check("at fixed draft width all units are identical", bool((identity["units identical"].iloc[:2] == identity["units"].iloc[:2]).all()))

# %% [markdown]
# ## 12. The prediction
#
# The design document had written down what would come out.

# %%
page.table("u6_predictions", fmt={"predicted": "+.1f", "observed there": "+.2f"}, names={"measured": "observed there"})

# %%
page.table("u6_predicted_tokens", fmt={"predicted tokens per cycle": ".3f", "predicted ms per cycle": ".1f"}, caption="Predicted tokens and milliseconds per cycle; the T arms were never run")

# %%
prediction = frame("u6_predictions")
page.number("prediction_error", (prediction["measured"] - prediction["predicted"]).abs().max(), ".2f", "points")
expected = frame("u6_predicted_tokens").set_index("arm")
page.number("cycle_error", max(abs(expected.loc[a, "predicted ms per cycle"] - stages.loc[a, "cycle mean"]) for a in STAGED), ".2f", "ms")
page.say("The throughput came out within [[prediction_error]] points and the cycle times within [[cycle_error]] ms. It took the survival curve of Act IV-S and the cost curve of section 6: the "
         "outcome of this Act was in the data before the run.")
page.check("all four predictions hold within 0.3 points", (prediction["measured"] - prediction["predicted"]).abs().max() <= 0.3)

# %% [markdown]
# ## 13. Is the output still the target's?
#
# Where a decoded text leaves the plain one, the two contested logits are compared. One unit in the last place of bf16 is what another order of additions can do.

# %%
page.table("u6_divergence")

# %%
page.table("u6_arm_divergence")

# %%
page.note("The per-arm divergence counts")

# %%
split, session = frame("u6_arm_divergence"), frame("u6_divergence").set_index("session")
page.number("diverged", int(session.loc["decisive", "divergences"]), "d")
page.number("diverged_of", units * len(split), "d")
page.say("[[diverged]] of [[diverged_of]] runs of the decisive session leave plain decoding somewhere, none by more than one unit in the last place. The incumbent's count is not listed in the "
         "source; it is the rest to the total.")
page.check("the counts by arm add up to the session's, and nothing is beyond one unit", split["divergences"].sum() == session.loc["decisive", "divergences"] and split["beyond one ULP"].sum() == 0
           and session["beyond one ULP"].sum() == 0)

# %% [markdown]
# ## 14. The control, once more
#
# The incumbent was measured afresh, so the headline of Act IV-S was tested for a fourth time.

# %%
page.table("u6_reproduction", fmt={"xAR": ".3f"})

# %%
again = frame("u6_reproduction")["xAR"]
merits = {m.name: m for m in page.published.facts.figures_of_merit}
page.number("xar_low", again.min(), ".3f", "x AR")
page.number("xar_high", again.max(), ".3f", "x AR")
page.number("xar_here", again.iloc[-1], ".3f", "x AR")
page.say("The speed-up of K=4 was [[xar_low]] to [[xar_high]] over four sessions, [[xar_here]] here.")
top, bottom = (float(x) for x in re.search(r"\(([\d.]+) vs ([\d.]+)", merits["incumbent K=4 speedup (reproduction)"].unit).groups())
page.check("the figure here is the ratio of the medians quoted with it", abs(top / bottom - again.iloc[-1]) < 6e-4 and top == decisive.loc["B incumbent (4,4)", "median"])

# %%
k8 = earlier.value("s_ksweep", "throughput median", arm="uno_k8") / four("throughput median")
page.number("coupled_k8", k8, ".3f", "x K=4", earlier.name)
page.number("staged_k8", 1 + decisive.loc["S(8,4)", "percent"] / 100, ".3f", "x K=4")
page.say("One thing staging does achieve: a draft of eight verified in stages runs at [[staged_k8]] of K=4, the coupled K=8 of Act IV-S at [[coupled_k8]]. It removes most of the cost of a wide "
         "block, and leaves none of the reason to want one. The comparison crosses sessions, and sets a ratio of means beside a ratio of medians.")
page.check("the coupled figure is the one published with the comparison", f"{k8:.3f}" in merits["S(8,4) relative to coupled K=8 (cross session)"].unit)

# %% [markdown]
# ## 15. Verdict

# %%
page.verdict()

# %%
page.note("Verdict chosen by rule 3")

# %%
page.check("rule 3 holds: no arm passes, some arm commits significantly more per cycle, and for it the added verify time exceeds the added draft time",
           not decisive["passes"].eq(True).any() and any(r["CI low"] > 0 and r["added verify"] > r["added draft"] for _, r in frame("u6_cycle").iterrows() if r["arm"] in STAGED))

# %%
page.merit()

# %%
page.note("Addendum: the project closed")

# %% [markdown]
# ## 16. Measured here
#
# The same questions, asked of our own target and drafter on our own machine. A staged block here is a wrapper around the drafter: it drafts D tokens, hands V to the verifier, and hands on
# the rest while everything so far was committed as drafted. Decoder, verifier and transaction are those of every other arm. One thing differs from the published form: the draft forward
# leaves the seed's row in the caches, so the first stage verifies V rows, not V + 1. A further stage has no such row and verifies its seed again.
#
# The rules were fixed in `data/criteria/act4u6.json` before the rows, and the rows carry the digest of the rules.

# %%
fixed = criteria.load("act4u6")
if page.measured():
    own, wide, costs = page.rows.of("decode"), page.rows.of("wide_draft"), staging.Costs(page.rows.of("cost"))
    judged = staging.outcomes(page.rows)
    word, short = {o.criterion.id: o for o in judged}, page.rows.config["reduced"]
    per_cent = {c: "+.2f" for c in ("change", "low", "high", "loop-free change")}
    page.number("measured_prompts", len(page.rows.config["prompts"]), "d", "prompts", page.rows.name)
    for key in ("tokens", "repeats"):
        page.number(f"measured_{key}", page.rows.config[key], "d", source=page.rows.name)
    page.number("published_tokens", tokens_each, "d", "tokens")
    page.say("[[measured_prompts]] prompts, [[measured_tokens]] tokens each ([[published_tokens]] published), [[measured_repeats]] repeats, arms interleaved on every prompt."
             + (" **This is a reduced run**, shorter than the protocol asks for." if short else ""))

# %% [markdown]
# ### Noise floor
#
# The same arm twice under two names in the interleave. Their paired difference is what this harness calls nothing.

# %%
if page.rows:
    noise, limit = staging.percent(own, staging.DUPLICATE), staging.floor(own)
    for key, value in zip(("measured_noise", "measured_noise_low", "measured_noise_high"), noise):
        page.number(key, value, "+.2f", "percent", page.rows.name)
    page.number("measured_floor", limit, ".1f", "percent", page.rows.name)
    page.say("B2 against B: [[measured_noise]] %, 95 % interval [[measured_noise_low]] to [[measured_noise_high]]. By the published rule, with prompts resampled, the floor for a win is [[measured_floor]] %.")

# %% [markdown]
# ### Does a wider draft help the first tokens?
#
# Contexts lie eight tokens apart along plain continuations. Three conditions of the noise: drawn at the draft's own width, as published (`decoder`); the beginning of one block that all
# widths share (`aligned`, which is also what this package's decoder does); and the first again with another seed at D=4 (`redraw`).

# %%
if page.rows:
    page.show(staging.diagnostic(wide), "measured-wide-draft", "First proposals by condition of the noise and draft width: leading matches in slots 2 to 4 with the change against D=4, share of "
              "contexts where a slot is the target's, and where it is what D=4 proposes", {"mean prefix4": ".3f", **{c: "+.3f" for c in ("change", "low", "high")}, "max |dlogit|": ".2g",
              **{f"{w} {j}": ".3f" for w in ("right", "as D=4,") for j in range(1, 5)}}, sources=[page.rows])

# %%
if page.rows:
    kinds = [("decoder", w) for w in page.rows.config["drafts"] if w > 4] + [("redraw", 4)]
    moved = [staging.change(wide, *c) for c in kinds]
    page.figure(draw.forest([{"label": f"D={w}" if c == "decoder" else "D=4, noise redrawn", "value": m[0], "low": m[1], "high": m[2]} for (c, w), m in zip(kinds, moved)],
                            "change of the accepted prefix in the first four slots (tokens)", fmt="+.3f"), "measured-wide-draft",
                "Measured here: change of the leading matches in the first four slots when the draft is wider, 95 % intervals over prompts; the last row redraws the noise",
                "Marks with intervals for each wider draft and for a redraw of the noise, beside the line of no change.", sources=[page.rows])

# %% [markdown]
# ### What a forward costs
#
# Single forwards of every width, in shuffled order, each at the end of a prompt and the beginning of its continuation.

# %%
if page.rows:
    page.number("cost_after", max(r["at"] for r in page.rows.of("wide_draft")), "d", "tokens", page.rows.name)
    page.say("The continuation is [[cost_after]] tokens long where the forwards are timed.")

# %%
if page.rows:
    page.show(costs.table(), "measured-costs", "Milliseconds of a forward by rows; the commit keeps half of the rows, a draft contains its own", {c: ".2f" for c in ("median", "p25", "p75", "mean")} | {"commit": ".3f"},
              sources=[page.rows])
    lines = [{"forward": f, "rows": f"{lo}-{hi}", **costs.fit(f, lo, hi)} for f, lo, hi in (("verify", 1, 17), ("verify", 2, 9), ("draft", 1, 16), ("draft", 2, 16), ("draft", 2, 9))]
    fit = pd.DataFrame([{"forward": e["forward"], "rows fitted": e["rows"], "fixed": e["intercept"], "marginal": e["slope"], "fixed part, in rows": e["intercept"] / e["slope"], "R2": e["r2"]} for e in lines])
    fit.attrs["units"] = {"fixed": "ms", "marginal": "ms per row"}
    page.show(fit, "measured-fits", "Lines through the medians: ms = fixed + marginal x rows", {"fixed": ".2f", "marginal": ".3f", "fixed part, in rows": ".1f", "R2": ".3f"}, sources=[page.rows])

# %%
if page.rows:
    curve = costs.table()
    series = {f: tuple(curve.loc[curve["forward"] == f, c] for c in ("rows", "median", "p25", "p75")) for f in ("verify", "draft")}
    figure = draw.lines(series, "rows of the forward", "ms per forward", whole_x=True)
    short_line = costs.fit("verify", 2, 9)
    figure.axes[0].plot([0, 17], [short_line["intercept"], short_line["intercept"] + 17 * short_line["slope"]], color="#000000", linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    figure.axes[0].set_xlim(0, 17.5)
    figure.axes[0].set_ylim(0)
    verified = curve[curve["forward"] == "verify"]
    widest = verified.loc[((verified["p75"] - verified["p25"]) / verified["median"]).idxmax()]
    page.number("measured_band", 100 * (widest["p75"] - widest["p25"]) / widest["median"], ".0f", "% of the median", page.rows.name)
    page.number("measured_band_rows", int(widest["rows"]), "d", "rows", page.rows.name)
    page.figure(figure, "measured-cost-curve", "Measured here: milliseconds of a verify and of a draft forward by width, medians with the middle half as a band. The dashed line is the fit to verify widths 2 to 9",
                "Two curves of milliseconds over the rows of a forward, each with a band, that of verify being widest at [[measured_band_rows]] rows, [[measured_band]] % of its median; a dashed straight line is fitted to two to nine rows.", sources=[page.rows])
    for key, value, fmt, unit in (("measured_fixed", short_line["intercept"], ".2f", "ms"), ("measured_marginal", short_line["slope"], ".2f", "ms per row"), ("measured_r2", short_line["r2"], ".3f", ""),
                                  ("measured_fixed_in_rows", short_line["intercept"] / short_line["slope"], ".1f", "rows"), ("measured_cliff", costs.cliff()[0], ".2f", "x"),
                                  ("measured_two_for_one", costs.two_for_one()[0], ".2f", "x")):
        page.number(key, value, fmt, unit, page.rows.name)
    page.say("From 2 to 9 rows a verify forward costs [[measured_fixed]] ms plus [[measured_marginal]] ms per row (R² [[measured_r2]]): the fixed part is worth [[measured_fixed_in_rows]] rows, against "
             "[[fixed_in_tokens]] on the published machine. At 17 rows it costs [[measured_cliff]] times what the line says. The two verify forwards of S(8,4) cost [[measured_two_for_one]] times the single one that they replace.")

# %% [markdown]
# ### Bound, pilot and decisive run

# %%
if page.rows:
    bound = staging.bounds(costs, own)
    page.show(pd.DataFrame([{"arm": staging.name(a), "stages, rows": "+".join(map(str, staging.stage_rows(*map(int, a.removeprefix("staged_d").split("v"))))), "tokens per ms, x incumbent": v[0],
                             "low": v[1], "high": v[2]} for a, v in bound.items()]), "measured-perfect", "If every guess were right: tokens a millisecond over the incumbent's, 95 % intervals over prompts",
              {c: ".3f" for c in ("tokens per ms, x incumbent", "low", "high")}, sources=[page.rows])
    pilot_rows = [r for r in own if r["repeat"] == 0]
    page.show(pd.DataFrame([{"arm": staging.name(a), "change": v[0], "low": v[1], "high": v[2], "clearly below": staging.clearly_below(v, limit)}
                            for a in (staging.DECOUPLED, *staging.STAGED) for v in [staging.percent(pilot_rows, a)]]), "measured-pilot", "The first repeat as the pilot: change of mean throughput in percent of B's", {c: "+.2f" for c in ("change", "low", "high")}, sources=[page.rows])

# %%
if page.rows:
    page.show(staging.decisive(own), "measured-decisive", "All repeats, against the incumbent K=4: paired change of mean throughput with intervals over prompts, tokens and milliseconds a draft (pooled), what a draft adds in verify and draft time",
              per_cent | {"x plain": ".3f", "tokens per draft": ".3f", "ms per draft": ".2f", "second stage": ".1f", "added verify": "+.2f", "added draft": "+.2f"}, sources=[page.rows])
    compared = (staging.DUPLICATE, staging.DECOUPLED, *staging.STAGED, *staging.TRUNCATED)
    figure = draw.forest([{"label": staging.name(a), "value": v[0], "low": v[1], "high": v[2], "n": v[3]} for a in compared for v in [staging.percent(own, a)]], "change of mean throughput against K=4 (%)", fmt="+.1f")
    figure.axes[0].axvline(limit, color="#767676", linewidth=0.9, linestyle=(0, (1, 2)))
    page.figure(figure, "measured-decisive", "Measured here: change of mean throughput against the incumbent, paired, 95 % intervals. Dotted: the floor that a win has to reach",
                "Marks with intervals for the duplicate, the decoupled code, four staged and two truncating arms, beside the line of no difference and a dotted floor.", sources=[page.rows])

# %%
if page.rows:
    fired = staging.rule(own, bool(staging.helping(wide)))
    page.number("measured_rule", fired, "d", "", page.rows.name)
    page.number("measured_verdict", staging.VERDICTS[fired], source=page.rows.name)
    page.say("By the published rules, in their order, the first that holds on these rows is number [[measured_rule]]: **[[measured_verdict]]**.")

# %% [markdown]
# ### Published and measured
#
# Every hypothesis with the published number and verdict, ours with its interval and the verdict that the fixed rule gives, and what differs between the machines that could explain a
# difference. An interval that spans the threshold decides nothing. Three differences come back often and are named shortly in the last column:
#
# - *a smaller model*: reading its weights is a smaller share of a forward, so the fixed part of a forward is worth fewer rows.
# - *another drafter*: trained at five slots here and at eight there, and on text of the kinds of the suite. It is accepted more often inside five slots, and was not trained beyond them.
# - *the seed's row kept*: the first stage verifies one row less here, since the draft leaves the seed's row in the caches. A further stage does not.

# %%
if page.rows:
    page.show(criteria.table(judged), "closing", "Hypotheses by the fixed rules: published, measured, and what differs", sources=[page.published, fixed, page.rows])

# %% [markdown]
# ## 17. Threats to validity
#
# - **One machine.** The whole argument is the ratio of fixed to marginal cost of a forward. On a machine where a forward over few rows is limited by arithmetic rather than by
#   reading weights, two narrow forwards may cost no more than a wide one, and the verdict may turn.
# - **One drafter each.** Published second stages are rare because acceptance falls quickly. A drafter with a flat survival curve would fill them; section 7 says that S(8,4) could then win.
# - **Small published effects.** The two better published arms lose by little more than the published floor. That they do not win is clear; how much they lose is less so.
# - **Published units are not all independent.** Three repeats of a prompt decode the same tokens. The published intervals resample units as if they were separate, which makes them too
#   narrow for a claim about prompts at large; ours resample prompts.
# - **The diagnostic looks at contexts, not at runs.** It scored first proposals at fixed contexts; the causal argument covers the rest.
# - **Widths between 13 and 17 were not timed** in the published run, so the place of its jump is unknown.
# - **Our drafter was trained on blocks of up to five rows and drafts up to sixteen here.** Slots beyond the fifth are outside its training. Whether there is a second stage is decided by the
#   first V slots, which it was trained on; what is smaller than with a drafter trained on wide blocks is what a second stage commits. What a forward costs does not depend on this.
# - **Our contexts lie along plain continuations of the suite's prompts**, several to a prompt. Their intervals resample prompts, but the text is narrower than the published windows.
# - **Our pilot is the first repeat of the one run**, so it could not have stopped it.
# - **One small model on two cores.** Its forwards are limited more by arithmetic than those of the published model, which is the first thing to look at where the verdicts differ.

# %%
if page.rows:
    lost = [-staging.percent(own, a)[0] for a in staging.STAGED]
    rate = [100 * t[2] / t[1] for t in (staging.totals(own, a).sum(axis=0) for a in staging.STAGED)]
    for key, value, unit in (("measured_least_lost", min(lost), "percent"), ("measured_most_lost", max(lost), "percent"), ("measured_fewest_second", min(rate), "% of drafts"), ("measured_most_second", max(rate), "% of drafts")):
        page.number(key, value, ".0f", unit, page.rows.name)
    page.say("Here the effects are not small and second stages not rare: the staged arms lose [[measured_least_lost]] to [[measured_most_lost]] % against a floor of [[measured_floor]] %, and [[measured_fewest_second]] to "
             "[[measured_most_second]] % of their drafts have a second stage.")
    page.check("every staged arm loses more than the floor here", min(lost) > limit)

# %% [markdown]
# ## 18. Provenance

# %%
page.provenance()

# %%
page.finish()
