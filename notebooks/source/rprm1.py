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
# # RPRM Stage 1: the drafter's uncertainty as an early-exit signal
#
# A drafter that knows when it is guessing could stop early: propose fewer tokens where they will be refused, more where they will be kept. This study asked whether it knows.
# Does the entropy of the drafter's own distribution at a position predict that the target will accept the token there, beyond what the mere position in the block predicts?
#
# **Why it matters.** The entropy is free at decode time, so any use of it would be pure gain. But position alone predicts much: the first guess of a block is accepted far more
# often than the last. A signal that repeats what the position says cannot decide when to stop. The study therefore set the bar at an *increment* over position, wrote it down
# before looking, and made the rest of the project depend on it. It failed, and the second stage was not run.
#
# **Contents.** 1 What was run. 2 Method. 3 Criteria. 4 Does the harness reproduce what was known? 5 The signal is real. 6 It is too small. 7 The shuffled control. 8 Other
# corruption levels. 9 Where it works and where not. 10 Other measures of uncertainty. 11 The second stage. 12 Verdict. 13 Measured here. 14 Threats to validity. 15 Provenance.

# %% tags=["parameters"]
target = "tiny-hybrid"   # model that decides every token: a name, folder or hub id
drafter = "uno"          # whose uncertainty: uno, or the path of an adapter
windows = 810            # windows of each stratum; the criteria ask for 512
seed = 20260908          # of the documents, the noise, the rates and the split
dtype = "float32"        # number format of the target: float32 or bfloat16
measure = False          # True: measure again; False: draw from recorded rows
quick = False            # True: a one-minute measurement whose captions say that it is one
rows = ""                # row file; empty: the committed one of the target

# %%
import numpy as np
import pandas as pd

from specdecode_nb import criteria
from specdecode_nb.book import draw, start, uncertainty

page = start("rprm1", globals())
frame = page.published.frame

# %% [markdown]
# ## 1. What was run
#
# Two adapters were scored on the same windows of held-out text: the primary one, trained at blocks of eight, and a replication one, an early adapter with little training. No text
# was generated; every position was scored with the true tokens before the block as context.

# %%
page.opening()

# %%
page.table("rprm_sample", caption="Sample sizes, and the share of test positions where drafter and target agree")

# %%
sample = frame("rprm_sample").set_index("quantity")["value"]
offsets = frame("rprm_within_offset")
page.number("positions", int(sample["positions per stratum"]), ",d")
page.number("windows", int(sample["windows"]), ",d")
page.number("test_positions", int(sample["test positions per stratum"]), ",d")
page.say("Each of [[windows]] windows gives one block with seven speculative positions, so a stratum has [[positions]] positions. They are not independent: seven share a window. Windows, "
         "not positions, were split into fit, validation and test, and windows were resampled for the intervals.")
page.check("windows times speculative offsets are the positions, in all and in the test split",
           sample["windows"] * len(offsets) == sample["positions per stratum"] and sample["test windows"] * len(offsets) == sample["test positions per stratum"])

# %% [markdown]
# ## 2. Method
#
# **Label.** At each speculative position, $y = 1$ if the drafter's best token is the target's best token.
#
# **Signal.** The normalized entropy of the drafter's distribution $q$ over a vocabulary of $V$ tokens:
#
# $$h = -\frac{1}{\ln V} \sum_{v} q(v) \ln q(v), \qquad 0 \le h \le 1.$$
#
# **Two strata.** FULL: every draft position holds noise, as in decoding; it carries the verdict. SCHEDULE: each block has its own corruption rate, as in training; some draft
# positions then hold the true token, which makes the task easier.
#
# **Competitors.** *Progress*: the offset in the block, one indicator each (in SCHEDULE also the corruption of the block). *Draftability gap*: how far the target's distribution
# moves when the context is noised. *Teacher entropy*: the target's own uncertainty. The last two need the target's answer in advance and are there for comparison.
#
# **Models.** Eight logistic regressions on standardized inputs without a penalty, for example model 4:
#
# $$\ln \frac{P(y=1)}{P(y=0)} = \beta_0 + \sum_{o} \beta_o\, 1[\text{offset} = o] + \beta_h h.$$
#
# **Score.** The area under the ROC curve is the chance that a kept position is ranked above a refused one, ties counting half:
#
# $$\mathrm{AUROC} = P(s^{+} > s^{-}) + \tfrac12 P(s^{+} = s^{-}).$$
#
# The question is the increment $\Delta = \mathrm{AUROC}_4 - \mathrm{AUROC}_1$ on the test windows, with a 95 % interval from resampling whole windows.

# %% [markdown]
# ## 3. Criteria, fixed before the run

# %%
page.criteria()

# %%
outcome = {c.id: c.passed for c in page.published.facts.criteria}
page.number("criteria_passed", sum(v is True for v in outcome.values()), "d")
page.number("criteria_failed", sum(v is False for v in outcome.values()), "d")
page.say("[[criteria_passed]] passed and [[criteria_failed]] failed. The one that failed is the one that asks about size, and a strong or a weak pass both needed it.")
page.check("only criterion 3 failed", [k for k, v in outcome.items() if v is False] == ["3"])

# %%
page.note("The results file records FAIL")

# %% [markdown]
# **One row reads better than it is.** Criterion 1 is listed as passed because the primary adapter passed it. The replication adapter did not; section 5 shows where.

# %%
page.note("Criterion 1 fails in the replication adapter")

# %% [markdown]
# ## 4. Does the harness reproduce what was known?
#
# An earlier Act had published how the draftability gap and the teacher entropy correlate with acceptance. Before anything new was measured, the new harness had to find the same.

# %%
page.table("rprm_harness", fmt={"published (n=2,688)": "+.4f", "this harness (n=8,960)": "+.4f"})

# %%
page.table("rprm_quint_repro", fmt={f"q{i}": ".3f" for i in range(5)})

# %%
harness = frame("rprm_harness").set_index("quantity")
page.number("harness_worst", (harness.iloc[:, 1] - harness.iloc[:, 0]).abs().max(), ".3f")
sampling = 1 / np.sqrt(int(sample["test positions per stratum"]))
page.number("harness_noise", sampling, ".3f")
page.say("The largest difference between old and new correlation is [[harness_worst]]; one standard error of a correlation near zero is [[harness_noise]] for the older, smaller sample. The "
         "check was done with the replication adapter: its values are the replication column of the correlations in section 5.")
page.check("signs and order agree between the two harnesses", bool((np.sign(harness.iloc[:, 0]) == np.sign(harness.iloc[:, 1])).all()) and
           harness.iloc[:, 0].rank().tolist() == harness.iloc[:, 1].rank().tolist())
page.check("gap and teacher entropy correlate here as in the replication column", all(
    harness.loc[f"{k} vs acceptance"].iloc[1] == page.value("rprm_pearson", "replication", pair=f"{k} vs acceptance") for k in ("gap", "teacher entropy")))

# %% [markdown]
# ## 5. The signal is real
#
# Sort the positions by the drafter's entropy and cut them into five groups. If the drafter knows, acceptance falls from group to group.

# %%
page.table("rprm_q_entropy", fmt={"mean value": ".3f", "acceptance": ".4f", "CI low": ".4f", "CI high": ".4f"})

# %%
page.table("rprm_q_entropy_rep", fmt={"mean value": ".3f", "acceptance": ".4f", "CI low": ".4f", "CI high": ".4f"})

# %%
def quintiles(*tables):
    """Acceptance with its interval by quintile, as a series to draw."""
    return {name: (f["quintile"] + 1, f["acceptance"], f["CI low"], f["CI high"]) for name, f in ((n, frame(t)) for n, t in tables)}


figure = draw.lines(quintiles(("primary adapter", "rprm_q_entropy"), ("replication adapter", "rprm_q_entropy_rep")), "quintile of the drafter's entropy (1 lowest)", "acceptance",
                    whole_x=True, ylim=(0, 0.5))
page.figure(figure, "entropy-quintiles", "Acceptance by quintile of the drafter's entropy, FULL stratum, test windows, with the published 95 % intervals",
            "Two falling lines with bands. Acceptance is highest in the first quintile, drops steeply to the second, and falls slowly after it; the replication line rises once, from three to four.")

# %%
entropy, again = frame("rprm_q_entropy"), frame("rprm_q_entropy_rep")
page.number("q1", entropy["acceptance"].iloc[0], ".3f")
page.number("q2", entropy["acceptance"].iloc[1], ".3f")
page.number("q5", entropy["acceptance"].iloc[-1], ".3f")
page.number("spread", entropy["acceptance"].iloc[0] / entropy["acceptance"].iloc[-1], ".2f", "x")
page.say("The primary adapter: [[q1]] in the lowest quintile, [[q5]] in the highest, a factor of [[spread]]. Nearly all of it is the first step, from [[q1]] to [[q2]]: the drafter has a group "
         "of positions of which it is sure, and the other four groups differ little.")
page.check("acceptance falls from every quintile to the next", bool((np.diff(entropy["acceptance"]) < 0).all()))
page.check("the five groups hold the test positions and average to the test acceptance", entropy["n"].sum() == sample["test positions per stratum"]
           and abs((entropy["n"] * entropy["acceptance"]).sum() / entropy["n"].sum() - sample["test acceptance FULL primary"]) < 1e-4)

# %% [markdown]
# The two other signals, for comparison. Both also order the positions, less sharply, and neither is monotone.

# %%
page.table("rprm_q_gap", fmt={"mean value": ".3f", "acceptance": ".4f", "CI low": ".4f", "CI high": ".4f"})

# %%
page.table("rprm_q_teacher", fmt={"mean value": ".3f", "acceptance": ".4f", "CI low": ".4f", "CI high": ".4f"})

# %%
figure = draw.lines(quintiles(("drafter's entropy", "rprm_q_entropy"), ("draftability gap", "rprm_q_gap"), ("teacher entropy", "rprm_q_teacher")),
                    "quintile of the signal (1 lowest)", "acceptance", whole_x=True, ylim=(0, 0.5))
page.figure(figure, "three-signals", "Acceptance by quintile of three signals, primary adapter, FULL stratum, test windows, with the published 95 % intervals",
            "Three lines with bands. The drafter's entropy starts far above the others and ends level with them; the gap and the teacher entropy fall gently and not at every step.")

# %%
page.check("neither the gap nor the teacher entropy falls at every step", all((np.diff(frame(t)["acceptance"]) > 0).any() for t in ("rprm_q_gap", "rprm_q_teacher")))

# %%
page.table("rprm_pearson", fmt={"primary": "+.4f", "replication": "+.4f"})

# %%
pearson = frame("rprm_pearson").set_index("pair")
page.number("r_entropy", pearson.loc["denoiser entropy vs acceptance", "primary"], "+.3f")
page.number("r_gap", pearson.loc["gap vs acceptance", "primary"], "+.3f")
page.number("r_between", pearson.loc["gap vs denoiser entropy", "primary"], "+.3f")
page.say("As a single number the drafter's entropy is the best of the three (primary adapter: $r$ = [[r_entropy]], against [[r_gap]] for the gap). It is nearly uncorrelated with the gap "
         "([[r_between]]), so it is not the gap in disguise.")
page.check("for the primary adapter the entropy has the largest correlation with acceptance", pearson["primary"].iloc[:3].abs().idxmax() == "denoiser entropy vs acceptance")

# %% [markdown]
# ### Negative result: not monotone in the replication

# %%
page.negative("The replication adapter shows", "inversion_pp", "rise from the third to the fourth quintile, percentage points")

# %%
steps = np.diff(again["acceptance"])
page.check("there is one inversion, of the published size, and it is larger than the two points allowed", (steps > 0).sum() == 1 and
           abs(100 * steps.max() - page.published.negative("The replication adapter shows").numbers["inversion_pp"]) < 1e-3 and steps.max() > 0.02)
page.check("the intervals of the two quintiles overlap", again["CI low"].iloc[3] < again["CI high"].iloc[2])

# %% [markdown]
# The intervals of the two groups overlap, so the inversion may be chance. The rule did not make an exception for chance, and neither does this page.

# %% [markdown]
# ## 6. It is too small
#
# The eight models on the test windows. Model 1 knows only the position. Model 4 adds the drafter's entropy.

# %%
page.table("rprm_models_full", ["model", "primary AUROC", "primary AUPRC", "primary log loss", "replication AUROC", "replication log loss"],
           caption="Eight models on held-out windows, FULL stratum", fmt={c: ".4f" for c in ("primary AUROC", "primary AUPRC", "primary log loss", "replication AUROC", "replication log loss")})

# %%
models = frame("rprm_models_full").set_index("model")
short = {m: m.split(" ", 1)[1].removesuffix(" (mean of 20)") for m in models.index}
figure = draw.dots([f"{m[0]}  {short[m]}" for m in models.index], {"primary adapter": models["primary AUROC"].tolist(), "replication adapter": models["replication AUROC"].tolist()}, "AUROC (0.5 is chance)")
draw.legend_above(figure, 2)
page.figure(figure, "models", "How well each model ranks kept above refused positions, FULL stratum, test windows",
            "Eight rows of two dots. Models with progress sit well to the right of those without; adding uncertainty moves a model right by a little; the shuffled control is level with progress only.")

# %%
page.table("rprm_deltas", fmt={c: "+.4f" for c in ("delta", "CI low", "CI high")} | {"bar": ".2f"})

# %%
deltas = frame("rprm_deltas")
main = deltas[deltas["comparison"] == "4 vs 1 AUROC"]
bar = main["bar"].iloc[0]
figure = draw.forest([{"label": f"{r['stratum']}, {r['adapter']}", "value": r["delta"], "low": r["CI low"], "high": r["CI high"]} for _, r in main.iterrows()],
                     "AUROC of model 4 minus model 1", reference=bar, fmt="+.3f")
figure.axes[0].axvline(0, color="#767676", linewidth=0.9)
figure.axes[0].set_xlim(-0.004, bar + 0.004)
page.figure(figure, "increment", "What the drafter's entropy adds to position, with 95 % intervals over windows. The dashed line is the bar that was set in advance, the grey line no effect",
            "Four intervals between the grey line at zero and the dashed bar; each estimate is at less than half of the bar, and no interval reaches it.")

# %% [markdown]
# ### Negative result: the entropy is not worth an early-exit mechanism

# %%
page.negative("Denoiser entropy is worth", "auroc_gain", "gain in AUROC over position, primary adapter", {"required": "required", "replication": "gain with the replication adapter"})

# %%
full = main[(main["stratum"] == "FULL") & (main["adapter"] == "primary")].iloc[0]
page.number("gain", full["delta"], "+.4f", "AUROC")
page.number("gain_low", full["CI low"], ".4f", "AUROC")
page.number("gain_high", full["CI high"], ".4f", "AUROC")
page.number("gain_bar", bar, ".2f", "AUROC")
page.number("gain_highest", main["CI high"].max(), ".4f", "AUROC")
page.say("The gain is [[gain]], with a 95 % interval of [[gain_low]] to [[gain_high]]. It is not zero, and it is not [[gain_bar]]: the whole interval lies below the bar. The same holds in the "
         "replication and in the other stratum; the highest upper end of the four is [[gain_highest]]. So this is a measured small effect, not a failure to measure.")
page.check("all four intervals lie above zero and below the bar", bool((main["CI low"] > 0).all() and (main["CI high"] < bar).all()))
page.check("the gain is the difference between models 4 and 1 in the table", abs(models.loc["4 progress + uncertainty", "primary AUROC"] - models.loc["1 progress only", "primary AUROC"] - full["delta"]) < 2e-5)

# %%
page.number("log_loss_gain", deltas.loc[(deltas["comparison"] == "6 vs 5 log-loss reduction") & (deltas["stratum"] == "FULL") & (deltas["adapter"] == "primary"), "delta"].iloc[0], ".4f", "nats")
page.number("auroc_gain_65", deltas.loc[(deltas["comparison"] == "6 vs 5 AUROC") & (deltas["stratum"] == "FULL") & (deltas["adapter"] == "primary"), "delta"].iloc[0], "+.4f", "AUROC")
page.say("Criterion 5 asked whether the entropy adds to the draftability gap. It passed on log loss ([[log_loss_gain]] nats), not on AUROC ([[auroc_gain_65]], interval across zero). The criterion "
         "accepted either.")
page.check("model 6 over model 5 is met by log loss in every case, and by AUROC in one of four", bool(deltas.loc[deltas["comparison"] == "6 vs 5 log-loss reduction", "met"].all())
           and deltas.loc[deltas["comparison"] == "6 vs 5 AUROC", "met"].sum() == 1)

# %% [markdown]
# **What AUROC does not show.** The table also lists the area under the precision-recall curve, which no criterion used. It rises much more, because the entropy is good at one
# thing: picking out the positions with the best chance. This is a remark on the published numbers, not a second verdict.

# %%
page.number("auprc_1", models.loc["1 progress only", "primary AUPRC"], ".3f")
page.number("auprc_4", models.loc["4 progress + uncertainty", "primary AUPRC"], ".3f")
page.say("AUPRC rises from [[auprc_1]] with position alone to [[auprc_4]] with the entropy (primary adapter). For early exit that is the wrong end: "
         "it needs to find the positions to drop, and among the other four quintiles the entropy hardly tells them apart.")
page.check("the gain in AUPRC exceeds the gain in AUROC for both adapters", all(
    models.loc["4 progress + uncertainty", f"{a} AUPRC"] - models.loc["1 progress only", f"{a} AUPRC"] > models.loc["4 progress + uncertainty", f"{a} AUROC"] - models.loc["1 progress only", f"{a} AUROC"]
    for a in ("primary", "replication")))

# %% [markdown]
# ## 7. The shuffled control
#
# The entropy differs between offsets. To make sure that its gain is about the single token, its values were shuffled among positions of the same offset, twenty times, and the
# model was fitted again.

# %%
page.table("rprm_shuffled", fmt={c: ".4f" for c in ("mean AUROC", "2.5 pct", "97.5 pct", "real model 4 AUROC")})

# %%
shuffled, schedule = frame("rprm_shuffled"), frame("rprm_models_schedule").set_index("model")
page.say("Shuffling takes the gain away in every case: the model is then no better than position alone. So the signal is about the token. It is small, and it is genuine.")
page.check("the shuffled model is within 0.0005 of position alone in all four cases", all(
    abs(r["mean AUROC"] - {"FULL": models, "SCHEDULE": schedule}[r["stratum"]].loc["1 progress only", f"{r['adapter']} AUROC"]) < 0.0005 for _, r in shuffled.iterrows()))
page.check("the real model is above the whole shuffled range in all four cases", bool((shuffled["real model 4 AUROC"] > shuffled["97.5 pct"]).all()))

# %% [markdown]
# ## 8. Other corruption levels
#
# In the SCHEDULE stratum position and corruption already predict most of the outcome, presumably because a draft position that holds the true token is easy to follow. The
# increment is as
# small as in FULL (table of increments above).

# %%
page.table("rprm_models_schedule", fmt={c: ".4f" for c in ("primary AUROC", "primary log loss", "replication AUROC", "replication log loss")})

# %%
page.number("progress_full", models.loc["1 progress only", "primary AUROC"], ".3f")
page.number("progress_schedule", schedule.loc["1 progress only", "primary AUROC"], ".3f")
page.say("Progress alone reaches [[progress_schedule]] here, against [[progress_full]] in FULL.")
page.check("position is the better single predictor than the drafter's entropy in both strata and for both adapters", all(
    t.loc["1 progress only", f"{a} AUROC"] > t.loc["2 denoiser uncertainty only", f"{a} AUROC"] for t in (models, schedule) for a in ("primary", "replication")))

# %% [markdown]
# ## 9. Where it works and where not
#
# Within one offset the position says nothing, so a signal stands alone. Half is chance.

# %%
page.table("rprm_within_offset", fmt={c: ".4f" for c in offsets.columns if c != "offset"})

# %%
ahead = [int(o) for o in offsets["offset"]]
figure, axes = draw.panels(2, height=3.2, sharey=True)
for ax, adapter in zip(axes, ("primary", "replication")):
    draw.lines({"drafter's entropy": (ahead, offsets[f"{adapter} AUROC entropy"]), "draftability gap": (ahead, offsets[f"{adapter} AUROC gap"])}, "future offset (tokens ahead)",
               "AUROC within the offset", f"{adapter} adapter", whole_x=True, reference=0.5, ylim=(0.4, 0.75), ax=ax)
axes[1].set_ylabel("")
axes[0].get_legend().remove()
page.figure(figure, "within-offset", "How well two signals rank positions of one offset, FULL stratum, test windows. The dashed line is chance",
            "Two panels of two lines over offsets two to eight. The entropy starts above the gap and falls to about chance at offset seven, where the gap is highest; it recovers at eight only for the primary adapter.")

# %% [markdown]
# ### Negative result: the signal is gone at long horizons

# %%
page.negative("The signal helps at long", "auroc_plus7", "AUROC of the entropy at offset +7, primary adapter", {"auroc_plus6": "at +6", "gap_plus7": "AUROC of the gap at +7"})

# %%
by_offset = offsets.set_index("offset")
page.number("near_entropy", by_offset["primary AUROC entropy"].iloc[:4].min(), ".3f")
page.number("above_chance", int((offsets["primary AUROC entropy"] > 0.5).sum()), "d")
page.number("above_chance_rep", int((offsets["replication AUROC entropy"] > 0.5).sum()), "d")
page.number("offsets", len(offsets), "d")
page.say("For the primary adapter the entropy ranks at [[near_entropy]] or better from +2 to +5. At +6 and +7 it is at chance, and the gap is at its best there. An early exit would have to decide exactly there. Criterion "
         "2 counted offsets above one half: [[above_chance]] of [[offsets]] for the primary adapter and [[above_chance_rep]] for the replication, which passes; it did not ask how far above.")
page.check("the two best offsets of the gap are +6 and +7 for the primary adapter", set(by_offset["primary AUROC gap"].nlargest(2).index) == {"+6", "+7"})
page.check("at +6 and +7 the gap beats the entropy for both adapters", all(by_offset.loc[o, f"{a} AUROC gap"] > by_offset.loc[o, f"{a} AUROC entropy"] for o in ("+6", "+7") for a in ("primary", "replication")))
page.check("criterion 2 counts are as published", (offsets["primary AUROC entropy"] > 0.5).sum() == 6 and (offsets["replication AUROC entropy"] > 0.5).sum() == 5)

# %%
page.note("The draftability gap needs the target")

# %% [markdown]
# So the signal that works far ahead cannot be had while decoding, and the one that can be had does not work there.

# %% [markdown]
# ## 10. Other measures of uncertainty
#
# Three further measures were computed as diagnostics. They could not change the verdict, since only the entropy was registered.

# %%
page.table("rprm_diag", fmt={c: ".4f" for c in ("primary AUROC", "primary increment", "replication AUROC", "replication increment")})

# %% [markdown]
# ### Negative result: top-1 probability does not rescue the idea

# %%
page.negative("Top-1 probability rescues", "primary", "increment over position, primary adapter", {"replication": "replication adapter"})

# %%
diag = frame("rprm_diag")
best = diag[["primary increment", "replication increment"]].to_numpy().max()
page.number("best_increment", best, ".4f", "AUROC")
page.say("The best increment of any measure with any adapter is [[best_increment]], still below [[gain_bar]].")
page.check("no measure reaches the bar with either adapter", best < bar)

# %% [markdown]
# ## 11. The second stage
#
# ### Negative result: early exit was not built

# %%
page.negative("Stage 2 early exit")

# %% [markdown]
# The stop is not only a rule. The drafter here makes all guesses in one forward. Stopping it early saves nothing, because there is no later step to save; only the verify forward
# could be narrowed, and one row of it is cheap (Act IV-U6 measures how cheap). Act IV-S later chose the
# block size from the verifier's entropy and from past acceptance, and found no gain over a fixed one.

# %% [markdown]
# ## 12. Verdict

# %%
page.verdict()

# %%
page.merit()

# %% [markdown]
# ## 13. Measured here

# The same question, asked of our own drafter. A window is the beginning of one held-out document of the grammar, so no two share text; it ends in one block of eight rows, the seed token
# and seven draft positions. The split into fit, validation and test is by window and the same in every stratum. What the target says is read from the true tokens, what the drafter says
# from the corrupted ones.
#
# - **FULL**, `corpus text, full noise`: carries the verdict, as published.
# - **SCHEDULE**, `corpus text, drawn rates`: the same windows, target's answers and noise, each position noise with a rate drawn for the window.
# - **Own text**, `own text, full noise`: the document's beginning, then the target's own greedy continuation, which is what a decoder drafts after. Where the publication repeated the
#   analysis with a second adapter, this page repeats it with a second kind of text.
#
# The rules were fixed in `data/criteria/rprm1.json` before the rows, and the rows carry the digest of the rules. The published six are judged as they were: criterion 3 on the estimate,
# criterion 6 on the lower end of its interval. Further rules judge whole intervals. Intervals resample the test windows, with the models as they were fitted.

# %%
fixed = criteria.load("rprm1")
if page.measured():
    found = uncertainty.strata(page.rows)
    judged = uncertainty.outcomes(page.rows, found)
    word, setting = {o.criterion.id: o for o in judged}, page.rows.config
    chosen = (page.rows, fixed)
    page.show(uncertainty.sizes(found), "measured-sample", "Windows and positions by stratum and part, and the share of test positions where drafter and target agree", {"positions": ",d", "test positions": ",d", "acceptance": ".3f"}, sources=[page.rows])
    trained = setting["trained_block"]
    page.number("trained_to", f"+{trained}" if trained else "not recorded", source=page.rows.name)
    page.say("The last offset that this drafter was trained at: [[trained_to]]. Farther ones are as a wider block would find them." + (" **This is a reduced run**, too short for a verdict." if setting["reduced"] else ""))

# %% [markdown]
# ### Is there a signal?

# %%
if page.rows:
    fifths = uncertainty.groups(found)
    shares = {c: ".3f" for c in ("acceptance", "low", "high")}
    page.show(fifths, "measured-groups", "Acceptance on test positions by fifths of the drafter's entropy, limits from the fit windows, 95 % intervals over windows", shares | {"mean value": ".4f"}, sources=[page.rows])
    series = {s: tuple(pd.to_numeric(g[c]) for c in ("mean value", "acceptance", "low", "high")) for s, g in fifths.groupby("stratum", sort=False)}
    page.figure(draw.lines(series, "normalized entropy of the drafter", "acceptance", ylim=(0, 1)), "measured-groups",
                "Measured here: acceptance over fifths of the drafter's entropy on test positions, each at its mean entropy, with 95 % intervals over windows",
                "One line with a band for each of three strata, acceptance over five groups of growing entropy of the drafter.", sources=[page.rows])

# %%
if page.rows:
    for name in found:
        mine = fifths.loc[fifths["stratum"] == uncertainty.LABELS[name], "acceptance"]
        page.number(f"measured_lowest_{name}", mine.iloc[0], ".2f", "fraction", page.rows.name)
        page.number(f"measured_highest_{name}", mine.iloc[-1], ".2f", "fraction", page.rows.name)
        page.number(f"measured_rises_{name}", found[name].rises()[0], "d", "rises", page.rows.name)
    page.say("From the fifth of lowest to that of highest entropy acceptance goes from [[measured_lowest_full]] to [[measured_highest_full]] on corpus text (rises from one fifth to the next: [[measured_rises_full]]), from "
             "[[measured_lowest_schedule]] to [[measured_highest_schedule]] at drawn rates ([[measured_rises_schedule]]), and from [[measured_lowest_own]] to [[measured_highest_own]] on the target's own text ([[measured_rises_own]]).")

# %%
if page.rows:
    page.show(uncertainty.correlations(found), "measured-pearson", "Correlations over all positions of a stratum", {c: "+.3f" for c in ("r", "low", "high")}, sources=[page.rows])

# %% [markdown]
# ### Does it add to the offset?

# %%
if page.rows:
    scored = {name: uncertainty.models(s) for name, s in found.items()}
    scores = {c: ".4f" for c in ("AUROC", "AUPRC", "log loss", "AUROC, validation")}
    for name, table in scored.items():
        page.show(table, f"measured-models-{name}", f"Eight models on test windows, {uncertainty.LABELS[name]}; model 7 is the mean of its shuffles. The validation windows decide nothing", scores, sources=[page.rows])

# %%
if page.rows:
    named = scored["full"]["model"].tolist()
    figure = draw.dots([f"{m[0]}  {m[2:]}" for m in named], {uncertainty.LABELS[n]: t["AUROC"].tolist() for n, t in scored.items()}, "AUROC (0.5 is chance)")
    draw.legend_above(figure, 3)
    page.figure(figure, "measured-models", "Measured here: how well each model ranks kept above refused positions on test windows",
                "Eight rows of three marks, one row for each model and one mark for each stratum, on an axis of AUROC.", sources=[page.rows])

# %%
if page.rows:
    gains = uncertainty.increments(found)
    page.show(gains, "measured-increments", "What the drafter's entropy adds to the offset (4 over 1) and to offset and gap (6 over 5), 95 % intervals over test windows, and what was asked", {c: "+.4f" for c in ("change", "low", "high")} | {"bar": ".2f"}, sources=[*chosen])
    lines = gains[gains["comparison"] == "4 over 1, AUROC"].to_dict("records")
    figure = draw.forest([{"label": r["stratum"], "value": r["change"], "low": r["low"], "high": r["high"]} for r in lines], "AUROC of model 4 minus model 1", reference=fixed["3"].rule.threshold, fmt="+.3f")
    figure.axes[0].axvline(0, color="#767676", linewidth=0.9)
    page.figure(figure, "measured-increment", "Measured here: what the drafter's entropy adds to the offset, with 95 % intervals over windows. The dashed line is the published bar, the grey line no effect",
                "One mark with its interval for each of three strata, beside a grey line at zero and a dashed line at the bar.", sources=[*chosen])
    page.number("measured_gain", word["3"].text, source=page.rows.name)
    page.number("measured_gain_span", word["3-full"].text, source=page.rows.name)
    page.number("measured_gain_own", word["3-own"].text, source=page.rows.name)
    page.number("measured_gain_trained", word["3-trained"].text, source=page.rows.name)
    page.say("In FULL the gain is [[measured_gain_span]]; on the target's own text it is [[measured_gain_own]]. Criterion 3 asks for [[gain_bar]]: **" + word["3"].word + "**. "
             "Those are averages over all offsets, also those beyond the last that the drafter was trained at. At the trained ones alone, +2 to +5, the gain in FULL is [[measured_gain_trained]].")

# %% [markdown]
# ### The shuffled control

# %%
if page.rows:
    page.show(uncertainty.shuffled(found), "measured-shuffled", "Model 4 with the entropy exchanged among positions of one split and offset (and, at drawn rates, one fifth of the rates), twenty times",
              {c: ".4f" for c in ("mean AUROC", "2.5 pct", "97.5 pct", "model 4 AUROC")}, sources=[page.rows])

# %% [markdown]
# ### Within one offset

# %%
if page.rows:
    inside = {name: uncertainty.by_offset(found[name]) for name in ("full", "own")}
    fine = {c: ".3f" for c in inside["full"].columns if c not in ("offset", "n")}
    for name, table in inside.items():
        page.show(table, f"measured-offsets-{name}", f"Acceptance and the AUROC of two signals alone by offset, {uncertainty.LABELS[name]}, with 95 % intervals over windows", fine, sources=[page.rows])
    figure, axes = draw.panels(2, height=3.2, sharey=True)
    for ax, (name, table) in zip(axes, inside.items()):
        draw.lines({label: (table["offset"], *(pd.to_numeric(table[c]) for c in (s, f"{s} low", f"{s} high"))) for s, label in (("entropy", "drafter's entropy"), ("gap", "draftability gap"))},
                   "future offset (tokens ahead)", "AUROC within the offset", uncertainty.LABELS[name], whole_x=True, reference=0.5, ax=ax)
    axes[1].set_ylabel("")
    axes[0].get_legend().remove()
    page.figure(figure, "measured-within-offset", "Measured here: how well two signals rank positions of one offset, with 95 % intervals over test windows. The dashed line is chance",
                "Two panels, corpus text and the target's own text, each with a line for the drafter's entropy and one for the draftability gap over offsets two to eight.", sources=[page.rows])
    for name in ("near", "far", "far-gap"):
        page.number(f"measured_{name.replace('-', '_')}", word[name].text if word[name].value is not None else "(not known from these rows)", source=page.rows.name)
    page.say("On corpus text the entropy ranks, on average, at [[measured_near]] over +2 to +5 and at [[measured_far]] over +6 and +7. Over these two the gap minus the entropy is [[measured_far_gap]].")
    gap = pd.to_numeric(inside["full"]["gap"])
    page.number("measured_gap_below", int((gap < 0.5).sum()), "d", "offsets", page.rows.name)
    page.number("measured_gap_offsets", int(gap.notna().sum()), "d", "offsets", page.rows.name)
    page.number("measured_gap_r", word["r-gap"].text, source=page.rows.name)
    page.say("The gap is scored as the entropy is: above 0.5 a lower value goes with acceptance. It lies below 0.5 at [[measured_gap_below]] of [[measured_gap_offsets]] offsets, so that within one offset a larger gap goes with *more* acceptance there; "
             "over all positions, offsets mixed, its correlation with acceptance is [[measured_gap_r]].")

# %% [markdown]
# ### Other measures of uncertainty

# %%
if page.rows:
    page.show(uncertainty.diagnostics(found["full"]), "measured-diagnostics", "What each measure adds to the offset, FULL; effective support is the exponential of the entropy in nats", {"AUROC with progress": ".4f"} | {c: "+.4f" for c in ("gain", "low", "high")}, sources=[page.rows])

# %% [markdown]
# ### Published and measured

# %%
if page.rows:
    whole = criteria.table(judged)
    page.show(whole[["id", "hypothesis", "rule", "published number", "measured here", "verdict here"]], "closing", "Hypotheses by the fixed rules: published and measured number with its 95 % interval, and our verdict; in the files also the published verdicts and what differs",
              sources=[page.published, *chosen], full=whole)
    marks = {name: o.value if not o.word.startswith("not decidable") else None for name, o in (("full", word["Verdict"]), ("own", word["Verdict-own"]))}
    for name, mark in marks.items():
        page.number(f"measured_grade_{name}", "not decidable" if mark is None else uncertainty.GRADES[mark], source=page.rows.name)
    page.say("By the published six the grade is **[[measured_grade_full]]** on corpus text and **[[measured_grade_own]]** on the target's own text.")
    if marks["full"] == 1 and word["5"].word == criteria.HOLDS:
        page.say("The published project words the middle grade in two ways: criteria 3 and 4 hold, as judged here, or they hold *without criterion 5*. Criterion 5 holds here, so by the second wording these rows have no grade: too much for weak, too little for strong.")
    page.tally(judged)

# %% [markdown]
# ## 14. Threats to validity
#
# - **Agreement, not acceptance.** The label is agreement at one position given a noised block. In decoding a position also needs all before it to be right, and its context is what
#   the drafter wrote. A signal could be better or worse there.
# - **The bar is a convention.** Nothing derives it from a speed-up. What the published study shows is that the effect is small and how small.
# - **Logistic and linear.** A model that bends could use the sharp first quintile better. The registered one could not.
# - **Seven positions to a window.** Intervals resample windows, so the dependence is handled; the quintile intervals are as published and may not be.
# - **Measured here:** the drafter was trained on blocks of five rows and on the target's own text, so the farther offsets and the corpus text are both new to it. The text is a grammar's, in which
#   some tokens are certain and others free, more sharply than in prose; a signal of certainty may be worth more there. The models' own uncertainty from few fit windows is not in the intervals, which
#   hold them as fitted. One drafter, one launch of its training.
# - **Two adapters of one lineage, one target, one kind of text.** The replication adapter is a weaker version of the same thing.
# - **The machine** is named only as an Apple M-series computer in the source. No time was measured, so little depends on it.

# %% [markdown]
# ## 15. Provenance

# %%
page.provenance()

# %%
page.finish()
