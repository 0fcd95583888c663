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
# # Act III: training both objectives at once
#
# Act I showed that an adapter trained on denoising alone ruins ordinary decoding, and Act II that a small adapter with uniform noise
# does not learn to denoise unseen text. Act III changes three things at once: it adds the autoregressive loss, it masks tokens instead of
# replacing them, and it gives the adapter far more capacity. The recipe follows FLARE in outline.
#
# **Why it matters.** It is the first run that fills gaps in unseen text, and the first in which the autoregressive side improves while the
# denoiser learns. It is also a recorded failure: one of seven criteria, fixed beforehand, did not hold. The author judges that criterion
# ill-chosen and leaves the failure on record. So does this page.

# %% tags=["parameters"]
target = "tiny-hybrid"  # model that the adapters are trained on: a name, folder or hub id
seeds = 1               # launches of each arm
steps = 250             # training steps of the run without a conditioner
bias_steps = 60         # training steps of the runs that compare sizes of the timestep bias
lr = 1e-3               # learning rate; published for the large target: 1e-4
windows = 12            # held-out windows that launches are judged on
prompts = 6             # of them, those whose canvas is sampled
measure = False         # True: measure again; False: draw from recorded rows
quick = False           # True: a short measurement whose captions say that it is one
rows = ""               # row file; empty: the committed one of the target

# %%
import math
import re


from specdecode_nb import criteria
from specdecode_nb.book import denoising, draw, published, start

page = start("act3", globals())
page.opening()

# %% [markdown]
# Act III was reported in a journal and a criteria file; no raw data are committed for it. What this page computes, it computes from
# the published tables.
#
# ## Method
#
# A window is a clean prefix and a canvas of $C$ tokens. A share $t$ of the canvas, exactly $\mathrm{round}(tC)$ positions $M$, is replaced by a mask
# token, an unused row of the embedding. The loss is the sum of two means,
#
# $$L = L_{\mathrm{AR}} + \lambda\, L_{\mathrm{diff}},$$
#
# where $L_{\mathrm{AR}}$ is ordinary next-token cross entropy on the clean window and
#
# $$L_{\mathrm{diff}} = -\frac{1}{|M|}\sum_{i\in M} \log p_\theta\left(x^{(i)} \mid x_{\setminus M}\right)$$
#
# scores masked positions only. Each window is used in two *complementary views*, masked at $M$ and at the canvas without $M$, so that every canvas
# token is supervised once. In run 1 a small network added a bias for the noise level $t$ to the token embeddings. Run 2 has none.
#
# ## What is measured
#
# - *Masked accuracy*: share of masked positions filled with the right token, at a given $t$.
# - *Visible preservation*: share of visible canvas positions where the output repeats the visible token.
# - *Canvas L1*: how far the output distribution moves, in total absolute difference (at most two), when the visible canvas tokens are scrambled. Near zero
#   means that the model no longer reads the canvas.
# - *AR perplexity*: ordinary next-token perplexity on held-out text, adapter on.

# %%
page.note("Documented deviations from FLARE")

# %% [markdown]
# ## Criteria
#
# Seven criteria for the end of the run, and a rule for stopping early. The rule for the outcome was fixed too.

# %%
page.criteria(caption="Criteria, fixed before the run; the last line is the stop rule that ended run 1")
page.note("The outcome rule said")
seven = [c for c in page.published.facts.criteria if c.id.isdigit()]
page.number("criteria_passed", sum(c.passed for c in seven))
page.number("criteria", len(seven))
page.say("Run 2 passed [[criteria_passed]] of [[criteria]]. By the rule that is a failure.")
page.check("only criterion 3 failed at the end of run 2", [c.id for c in seven if not c.passed] == ["3"])

# %% [markdown]
# ## Where it started

# %%
page.table("act3_init")
init = page.published.frame("act3_init").set_index("quantity")["value"]
act2 = published.load("act2")
conditioner = int(re.search(r"timestep conditioner \(([\d,]+)\)", act2.facts.setup["adapter"])[1].replace(",", ""))
run2 = int(page.value("act3_cost", "value", quantity="trainable parameters"))
page.number("conditioner", conditioner, ",", "parameters", "data/published/act2.json: setup")
page.say("The table counts the parameters of run 1. Run 2 trains fewer: exactly the [[conditioner]] of the timestep conditioner, as counted in Act II, are gone.")
page.check("the two counts differ by the timestep conditioner of Act II", int(init["trainable parameters"]) - run2 == conditioner)

# %% [markdown]
# ## Run 1, aborted
#
# ### Negative result: a timestep conditioner helps under masking
#
# Within the first evaluation interval the model stopped reading its canvas, while its ordinary perplexity looked better than ever. The stop rule ended the run. The
# cause: the bias that tells the model $t$ had grown to many times the norm of a token embedding and drowned it. Under masking the model can see
# how much is hidden; it needs no one to tell it.

# %%
page.table("act3_run1")
page.table("act3_run1_bias")
page.negative("A timestep conditioner", "canvas_l1_after", "canvas L1 at the first evaluation",
              names={"bias_norm": "norm of the bias", "embed_norm": "mean norm of a token embedding", "ratio": "their ratio as published (×)", "canvas_l1_before": "canvas L1 before",
                     "grad_norm_conditioner": "gradient norm of the conditioner", "grad_norm_largest_lora": "largest gradient norm of a LoRA tensor"})

# %%
conditioned = page.published.negative("A timestep conditioner").numbers
bias = page.published.frame("act3_run1_bias").iloc[-1]
ts = [c for c in page.published.frame("act3_run1_bias").columns if c.startswith("t=")]
norms = [bias[c] for c in ts]
figure, ax = draw.panels(height=2.4)
page.figure(draw.bars(ts, {"bias": norms}, "norm of the bias", reference=conditioned["embed_norm"], fmt=".1f", ax=ax), "bias-norm",
            "Norm of the timestep bias at the aborted step of run 1, by noise level; the dashed line is the mean norm of a token embedding",
            "Three bars of thirteen to fifteen by noise level, against a dashed line below one: the bias dwarfs the embeddings it is added to.")

# %%
ratios = {c: n / conditioned["embed_norm"] for c, n in zip(ts, norms)}
page.number("ratio_published", conditioned["ratio"], ".1f", "x", "data/published/act3.json: negative result")
page.number("ratio_largest", max(ratios.values()), ".1f", "x", "data/published/act3.json: act3_run1_bias")
page.number("ratio_t", next(c for c, v in ratios.items() if round(v, 1) == conditioned["ratio"]), "", "", "data/published/act3.json: act3_run1_bias")
page.say("A small slip in the published numbers: the ratio of [[ratio_published]] belongs to [[ratio_t]]. The norm quoted beside it is that of the lowest noise level, for which the ratio is [[ratio_largest]] "
         "(computed here). The conclusion is the same.")
page.check("the published ratio is the one at [[ratio_t]], and the quoted norm is the one at t=0.1",
           round(ratios["t=0.5"], 1) == conditioned["ratio"] and round(norms[0], 1) == conditioned["bias_norm"])
run1 = page.published.frame("act3_run1")
page.check("perplexity fell while the canvas was lost", run1["AR perplexity"].iloc[-1] < run1["AR perplexity"].iloc[0] and run1["canvas L1"].iloc[-1] < 0.1 < run1["canvas L1"].iloc[0])

# %% [markdown]
# ## Run 2: it learns
#
# Without the conditioner, masked accuracy rises fast and then slowly, at every noise level. Canvas L1 stays high: the model reads what is visible.

# %%
page.table("act3_dynamics", names={"t=0.10": "masked accuracy t=0.10", "t=0.50": "masked accuracy t=0.50", "t=0.90": "masked accuracy t=0.90"})
dynamics = page.published.frame("act3_dynamics")
step = dynamics["step"].tolist()
page.figure(draw.lines({f"t = {c[2:]}": (step, dynamics[c].tolist()) for c in ("t=0.10", "t=0.50", "t=0.90")}, "training step", "masked accuracy (%)", ylim=(0, 62)), "dynamics",
            "Held-out masked accuracy over training, run 2, by noise level",
            "Three rising curves. At low noise accuracy climbs to nearly sixty percent, at half noise to about forty, at high noise to thirteen; most of the gain comes in the first five hundred steps.")

# %%
figure, (left, right) = draw.panels(2, height=2.9)
draw.lines({"run 2": (step, dynamics["canvas L1 at t=0.50"].tolist()), "run 1 (aborted)": (run1["step"].tolist(), run1["canvas L1"].tolist())},
           "training step", "canvas L1 (max 2)", reference=0.5, ylim=(-0.06, 2), title="Reading the canvas", ax=left)
draw.lines({"run 2": (step, dynamics["AR perplexity"].tolist()), "run 1 (aborted)": (run1["step"].tolist(), run1["AR perplexity"].tolist())},
           "training step", "AR perplexity", ylim=(0, 9.6), title="Ordinary decoding", ax=right)
page.figure(figure, "canvas-and-ar", "Canvas L1 and held-out AR perplexity over training, both runs; the dashed line is the least canvas L1 of criterion 5. The canvas L1 of run 2 is at t = 0.50; "
            "the source does not say at which level that of run 1 was taken",
            "Left: canvas L1 of run 2 stays between 1.6 and 1.9, that of run 1 drops to almost zero at its second point. Right: AR perplexity of both runs falls from about nine to about five.")

# %%
limit = float(next(c.threshold for c in seven if c.id == "5").removeprefix("canvas L1 >= "))
page.check("canvas L1 of run 2 never falls below the limit of criterion 5, which the dashed line shows", dynamics["canvas L1 at t=0.50"].min() >= limit == 0.5)
page.check("masked accuracy never falls from one evaluation to the next, at any noise level", all((dynamics[c].diff().dropna() >= 0).all() for c in ("t=0.10", "t=0.50", "t=0.90")))

# %%
page.table("act3_losses")
losses = page.published.frame("act3_losses")
page.check("both terms of the loss fell", (losses["last"] < losses["first"]).all())

# %% [markdown]
# ## Held-out result
#
# Accuracy falls with noise, as it must if the model uses what it sees. Compare Act II, whose arms were nearly flat.

# %%
page.table("act3_heldout")
held = page.published.frame("act3_heldout")
t = held["noise level t"].tolist()
flat = act2.frame("act2_phase3_accuracy").set_index("arm").loc["A causal"]
flat_t = [float(c.removeprefix("t=")) for c in flat.index]
page.figure(draw.lines({"Act III, masked accuracy": (t, held["masked accuracy"].tolist()), "Act III, visible preservation": (t, held["visible preservation"].tolist()),
                        "Act II, causal arm": (flat_t, flat.tolist())}, "noise level t", "accuracy (%)", ylim=(0, 62)), "heldout",
            "Held-out accuracy by noise level: Act III on masked positions, and what it outputs at visible ones; beside it Act II's causal arm on replaced positions, another corruption and data set",
            "Act III's masked accuracy falls from nearly sixty percent at low noise to five at full masking. Visible preservation lies near three percent throughout. Act II's causal arm is flat near seven percent.",
            sources=[page.published, act2])

# %%
low, half, high = (page.value("act3_heldout", "masked accuracy", **{"noise level t": x}) for x in (0.1, 0.5, 0.9))
page.number("accuracy_low", low, ".1f", "%", "data/published/act3.json: act3_heldout")
page.number("accuracy_half", half, ".1f", "%", "data/published/act3.json: act3_heldout")
page.number("accuracy_high", high, ".1f", "%", "data/published/act3.json: act3_heldout")
page.say("Masked accuracy is [[accuracy_low]] %, [[accuracy_half]] % and [[accuracy_high]] % at $t$ = 0.10, 0.50 and 0.90.")
page.check("criterion 1 holds on the table: each gap is at least 3 points", low - half >= 3 and half - high >= 3)
page.check("criterion 2 holds on the table", low >= 25)

# %% [markdown]
# Criterion 4 compares with the start. The sources give two starting values for masked accuracy at half noise; the criterion holds with either.

# %%
page.number("start_init", init["masked accuracy at t=0.5 (%)"], ".2f", "%", "data/published/act3.json: act3_init")
page.number("start_run2", dynamics["t=0.50"].iloc[0], ".1f", "%", "data/published/act3.json: act3_dynamics")
page.number("gain_init", half / init["masked accuracy at t=0.5 (%)"], ".1f", "x", "data/published/act3.json: act3_heldout, act3_init")
page.number("gain_published", next(c.observed for c in seven if c.id == "4").removesuffix("x"), "", "x", "data/published/act3.json: criterion 4")
page.say("The published factor of [[gain_published]] is over the run's own first evaluation, [[start_run2]] % as rounded in the table. Over the [[start_init]] % of the initialization table it is [[gain_init]].")
page.check("the published factor fits the rounded start of the run, and criterion 4 holds with either start",
           half / (dynamics["t=0.50"].iloc[0] + 0.05) <= float(page.numbers.text("gain_published")) <= half / (dynamics["t=0.50"].iloc[0] - 0.05) and half >= 2 * init["masked accuracy at t=0.5 (%)"])

# %% [markdown]
# ### Negative result: the model preserves visible tokens
#
# Criterion 3 asked that the output at a *visible* position repeat the visible token. It almost never does. The loss scores masked positions only, and at visible ones
# nothing was ever asked of the model; there, as we read it, it still names the *next* token, as it did before. A decoder that keeps the visible tokens by
# construction, as the sampler does, is not hurt by this. The criterion stays failed.

# %%
page.negative("The model preserves visible tokens", "t010_pct", "visible preservation at t = 0.10 (%)",
              names={"t050_pct": "at t = 0.50 (%)", "required_pct": "required at both (%)"})
page.check("visible preservation is under three percent at every noise level", held["visible preservation"].max() < 3)
page.check("it was zero before training as well", init["visible preservation at t=0.5 (%)"] == 0)

# %% [markdown]
# ## What it can and cannot do
#
# Filling gaps with real context on both sides works.

# %%
page.note("Infilling on unseen text")
note = next(n for n in page.published.facts.notes if n.startswith("Infilling"))
percent, masked, of_tokens = (float(x) for x in re.search(r"([\d.]+)% masked accuracy on a (\d+)%-masked (\d+)-token", note).groups())
n = round(masked / 100 * of_tokens)
right = round(percent / 100 * n)
share, half_width = right / n, 1.96 * math.sqrt(right / n * (1 - right / n) / n)
page.number("infill_right", right, source="data/published/act3.json: note on infilling")
page.number("infill_of", n, source="data/published/act3.json: note on infilling")
page.number("infill_half", 100 * half_width, ".0f", "pp", "computed from the counts, normal approximation")
page.say("That sample is [[infill_right]] of [[infill_of]] tokens. Taken as independent draws it carries an uncertainty of about ± [[infill_half]] points; it is an example, not a measurement.")
page.check("the published percentage is this count, and lies with the held-out accuracy at t = 0.25 within the uncertainty",
           round(100 * share, 1) == percent and abs(share - page.value("act3_heldout", "masked accuracy", **{"noise level t": 0.25}) / 100) < half_width)

# %% [markdown]
# ### Negative result: the denoiser can generate a block from scratch
#
# With everything masked there is only the prefix to go by, and the output is a repetition of frequent tokens.

# %%
page.table("act3_freegen")
page.negative("The denoiser can generate a block", "t100_masked_acc_pct", "masked accuracy with the whole canvas masked (%)", names={"t100_ce": "cross entropy there"})
page.note("Canvas L1 of 0")
page.check("full masking is the worst level by far, below half of the accuracy at t = 0.90", held["masked accuracy"].iloc[-1] < high / 2)

# %% [markdown]
# For drafting this is the case that matters: a drafter has no right-hand context. The later Acts therefore train a short block of noisy rows after a clean
# prefix, and let the target model verify every token.

# %% [markdown]
# ## Cost

# %%
page.table("act3_cost")
cost = page.published.frame("act3_cost").set_index("quantity")["value"]
published_steps = int(page.published.facts.setup["steps"])
prepared, length, prefix, canvas = (int(x.replace(",", "")) for x in re.search(r"([\d,]+) windows of (\d+) tokens \((\d+) prefix \+ (\d+) canvas\)", page.published.facts.setup["data"]).groups())
used = int(cost["diffusion supervision"]) // canvas
page.number("windows_used", used, ",", "windows", "data/published/act3.json: act3_cost, setup")
page.number("windows", prepared, ",", "windows", "data/published/act3.json: setup")
page.number("batch", used // published_steps, "", "windows a step", "data/published/act3.json: act3_cost, setup")
page.number("rate", cost["diffusion supervision"] / cost["wall clock"] / 60, ".0f", "tok/s", "data/published/act3.json: act3_cost")
page.number("rate_published", cost["canvas throughput"], ".0f", "tok/s", "data/published/act3.json: act3_cost")
page.say("The supervision counts say what the run saw: [[windows_used]] windows, [[batch]] a step, out of the [[windows]] prepared, so no window had to be seen twice. Over the whole wall clock that is [[rate]] canvas tokens a second; "
         "the published [[rate_published]] presumably leaves out evaluations and start-up (our inference).")
page.check("canvas and AR supervision agree on the number of windows", used * canvas == cost["diffusion supervision"] and used * (length - 1) == cost["AR supervision"])
page.check("less than one pass over the data", used < prepared and length == prefix + canvas)

# %% [markdown]
# ## Ordinary decoding improved, with a caveat
#
# AR perplexity fell well below its start instead of rising. The adapter was trained with an AR loss on the same corpus, so this is what ordinary fine-tuning on that corpus would
# do as well. It shows that the denoising loss did not undo this gain; whether it added to it or cost some of it cannot be told. There is no arm without it.

# %%
page.number("ppl_start", dynamics["AR perplexity"].iloc[0], ".2f", "", "data/published/act3.json: act3_dynamics")
page.number("ppl_end", dynamics["AR perplexity"].iloc[-1], ".2f", "", "data/published/act3.json: act3_dynamics")
page.number("ppl_run1", run1["AR perplexity"].iloc[-1], ".2f", "", "data/published/act3.json: act3_run1")
page.number("ppl_step", run1["step"].iloc[-1], "", "", "data/published/act3.json: act3_run1")
page.say("From [[ppl_start]] to [[ppl_end]]. Most of it came in the first [[ppl_step]] steps, and run 1, whose denoiser was broken, reached the same [[ppl_run1]] by then. That speaks for the corpus, not for the denoising.")
page.check("both runs had the same perplexity at step 125", run1["AR perplexity"].iloc[-1] == dynamics.loc[dynamics["step"] == run1["step"].iloc[-1], "AR perplexity"].iloc[0])

# %% [markdown]
# ## Figures of merit and verdict

# %%
page.merit()
page.verdict()

# %% [markdown]
# ## Measured here
#
# The same objective, layout, masks, adapter and block-end readout on the target of this repository; documents of the seeded grammar in the place of WikiText, the padding token as the mask, a larger learning rate and fewer
# steps, since the target is small. Everything is judged on held-out documents, whose names and numbers do not occur in training. Intervals resample the held-out windows; they say nothing of another launch, so each launch of
# the comparison is listed by itself.

# %%
rules = criteria.load("act3")
page.rules(rules, "rules", "Rules fixed before the rows; 1 to 7 are the published ones, thresholds unchanged")

# %%
judged: dict = {}


if page.measured():
    judged = {o.criterion.id: o for o in denoising.masked(page.rows)}
    config, whole_runs = page.rows.config, denoising.launches(page.rows, "none")
    for key, value in (("n_steps", config["steps"]), ("n_bias_steps", config["bias_steps"]), ("n_seeds", len(config["seeds"])), ("n_windows", config["windows"]), ("n_prompts", config["prompts"])):
        page.number(key, value, ",", "", page.rows.name)
    page.say("Launches without a conditioner: [[n_seeds]], of [[n_steps]] steps, judged on [[n_windows]] windows." + (" **This is a reduced run**, shorter than the protocol asks for." if config["reduced"] else ""))
    stopped = [r for r in page.rows.of("masked_launch") if r["stopped"]]
    page.say("\n".join(f"- Launch {r['arm']} at seed {r['seed']} ended early and is not judged: {r['stopped']}" for r in stopped) or "No launch ended early.")
    met = [f"- {r['arm']} at seed {r['seed']}, {text}" for r in page.rows.of("masked_launch") if r["stopped"] is None and (text := denoising.aborts(r))]
    page.say("The published rules for aborting a run ended no launch here: all were trained to their last step and are judged there. By those rules, looked at where the canvas was, "
             + ("these would have been aborted:\n\n" + "\n".join(met) if met else "none would have been aborted."))
    page.show(denoising.heldout_table(whole_runs), "measured-heldout", "Held-out result at the end, without a conditioner, by noise level",
              {"t": ".2f", "masked accuracy": ".1f", "canvas L1": ".3f", "cross entropy": ".3f", "visible preserved": ".1f", "visible, next token": ".1f"}, sources=[page.rows])
    page.told(judged, "1", "2", "3", "4", "5", "6", "7", "next-token")

# %%
if page.rows:
    passed = [judged[str(i)].word == criteria.HOLDS for i in range(1, 8)]
    page.number("seven_hold", sum(passed), "d", "", page.rows.name)
    failed = [judged[i].word == criteria.FAILS for i in ("1", "3", "5")]
    verdict = "SUCCESS" if all(passed) else "FAILURE" if any(failed) else "PARTIAL" if passed[0] and passed[2] and passed[4] else "not decided"
    page.number("seven_verdict", verdict, source=page.rows.name)
    reached = denoising.reached(judged.values())
    page.number("seven_reached", len(reached), "d", "", page.rows.name)
    page.number("seven_alone", ", ".join(str(len(ids)) for ids in denoising.reached_alone(page.rows).values()), source=page.rows.name)
    page.say("[[seven_hold]] of the seven hold with their whole interval. By the published rule for the outcome that is **[[seven_verdict]]**. Judged by their numbers alone, as the published run was, [[seven_reached]] reach their threshold"
             + (f" (not: {', '.join(i for i in '1234567' if i not in reached)})" if len(reached) < 7 else "") + ", in the mean over launches; in each launch by itself: [[seven_alone]].")
    figure, (left, right) = draw.panels(2, height=3.2)
    draw.lines({f"t = {t:.2f}": denoising.dynamics(whole_runs, t, "hidden_right") for t in (0.1, 0.5, 0.9, 1.0)}, "training step", "masked accuracy (%)", ax=left)
    draw.lines({"AR perplexity": denoising.perplexities(whole_runs)}, "training step", "AR perplexity, adapter on", ax=right)
    page.figure(figure, "measured-dynamics", "Held-out masked accuracy by noise level, and ordinary perplexity with the adapter on, over training without a conditioner; means over launches",
                "Two panels over training steps: four lines of masked accuracy by noise level, and one line of ordinary perplexity.", sources=[page.rows])

# %%
if page.rows:
    first_run = whole_runs[0]
    width = max(1, len(first_run["ar"]) // 40)
    smooth = lambda values: [sum(values[i : i + width]) / len(values[i : i + width]) for i in range(0, len(values), width)]  # noqa: E731
    at_steps = [i + width / 2 for i in range(0, len(first_run["ar"]), width)]
    page.figure(draw.lines({"ordinary loss": (at_steps, smooth(first_run["ar"])), "masked loss": (at_steps, smooth(first_run["diff"]))}, "training step", "loss (nats)"), "measured-losses",
                "Both training losses of the first launch without a conditioner, averaged over short stretches of steps",
                "Two lines over training steps, the ordinary loss and the masked loss.", sources=[page.rows])

# %% [markdown]
# ### The cause of the aborted run, as a comparison
#
# Run 1 was aborted when its bias had grown to twenty times the norm of an embedding. That is one run, in which much else happened too. Here three arms train for a shorter time on the same windows, masks and first adapter: a
# conditioner whose bias grows as it will, and two whose bias is held at the norm of 1 or of 20 embeddings. The last two differ in that number alone.

# %%
if page.rows:
    page.say("[[n_bias_steps]] steps each.")
    page.show(denoising.bias_table(page.rows), "measured-bias", "Launches with a conditioner at their end: size of the bias, and what the readout does",
              {"largest bias": ".2f", "canvas L1": ".3f", "masked, t = 0.10": ".1f", "masked, t = 0.50": ".1f", "AR perplexity": ".2f", "seed": "d"}, sources=[page.rows])
    arms = {arm: denoising.launches(page.rows, arm) for arm in denoising.BIASED}
    arms = {arm: group for arm, group in arms.items() if group}
    figure, (left, right) = draw.panels(2, height=3.2)
    draw.lines({denoising.ARMS[arm]: denoising.dynamics(group, 0.5, "canvas_l1") for arm, group in arms.items()}, "training step", "canvas L1 at t = 0.50",
               reference=float(judged["stop-canvas"].criterion.rule.threshold), ax=left)
    draw.lines({denoising.ARMS[arm]: denoising.dynamics(group, 0.1, "hidden_right") for arm, group in arms.items()}, "training step", "masked accuracy at t = 0.10 (%)", ax=right)
    page.figure(draw.legend_above(figure), "measured-bias", "Canvas L1 and masked accuracy over training for three sizes of the timestep bias; the dashed line is the published stop rule",
                "Two panels of three lines over training steps, one a size of the bias: canvas L1 with a dashed line at one tenth, and masked accuracy.", sources=[page.rows])
    page.told(judged, "free-bias", "stop-canvas", "small-bias", "bias-l1", "bias-accuracy")

# %% [markdown]
# ### From a full mask
#
# The sampler fills a canvas after the prefix of a held-out window. The target scores what it wrote, token by token, as it scores the true continuation and its own. A text that repeats itself can cost
# few nats, so repetition is counted beside them.

# %%
if page.rows:
    fills = denoising.fills_table(page.rows)
    page.show(fills, "measured-fills", "Canvases after [[n_prompts]] prefixes: nats a token under the target, distinct tokens, share of repeated 8-grams, rows right, confidence of the open rows",
              {"nats a token": ".2f", "distinct": ".3f", "looped": ".2f", "rows right": ".1f", "confidence first": ".3f", "confidence last": ".3f"}, sources=[page.rows])
    page.figure(draw.scatter({name: ([nats], [distinct]) for name, nats, distinct in zip(fills["canvas"], fills["nats a token"], fills["distinct"])}, "nats a token under the target", "distinct tokens / all"), "measured-fills",
                "Every kind of canvas by what the target says of it and by how much it repeats",
                "One mark for each of six kinds of text: the horizontal place is the target's nats a token, the vertical one the share of distinct tokens.", sources=[page.rows])
    page.told(judged, "from-nothing", "sampler-nats", "sampler-own", "sampler-distinct", "infill", "forwards")

# %% [markdown]
# ### Every hypothesis

# %%
if page.rows:
    whole = criteria.table(judged.values())
    page.show(whole[["id", "hypothesis", "published number", "measured here", "verdict here"]], "closing",
              "Published and measured side by side: hypotheses by rules fixed before the rows, with 95 % intervals over held-out windows", sources=[rules, page.published, page.rows], full=whole)
    page.tally(judged.values())

# %% [markdown]
# ### The first run
#
# These rules were first judged on a shorter run with one seed. Its verdicts were known when the steps were raised towards the published ones, and seeds, windows and prompts for narrower intervals; rules and thresholds stayed. Both runs
# stand side by side, where these are the committed rows. A changed verdict can come from more steps, more seeds or more windows. But numbers that move with the steps say that a threshold reached or missed at one length tells little of another.

# %%
page.first_run(denoising.masked)

# %% [markdown]
# ## Threats to validity
#
# - **Three changes at once.** Masking, the AR term and the larger adapter came together; no arm tells them apart. The author credits masking, which denies
#   an echo its free score (see Act I).
# - **One run.** One seed, one data set, no repeat; run 2 followed run 1 with knowledge of its failure.
# - **A criterion that the objective cannot meet.** Criterion 3 was fixed without noticing that nothing trains it. Reading the run as a success means setting
#   aside a criterion after the fact, which is why the record says failure.
# - **Same corpus for training and test.** Held-out windows are of the same WikiText; nothing is known about other text.
# - **Starting values differ** between the initialization table, run 1 and run 2. The published tables do not say why; none of the criteria turns on it.
# - **No raw data.** No intervals can be computed for the held-out table; the number of its windows is not in the published tables.
# - **Measured here** on a small target, on text whose rules it knows from its own training: filling a gap in a list that the prefix announces is easier than filling one in an encyclopedia. The two fixed
#   sizes of the bias start from a random direction, where the published conditioner starts from nothing. Launches are few, and the intervals do not cover the choice of a launch.

# %%
page.provenance()
page.finish()
