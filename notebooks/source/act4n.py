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
# # Act IV-N: noise that carries information (paused)
#
# Masking tells a denoiser nothing about the hidden token. Uniform noise tells it something false. Act IV-N asks about a third way: replace a token by one of a few
# *noise states* that say roughly what kind of token stood there, and see whether a denoiser, and a reverse pass above all, can use that.
#
# **Why it matters.** It was designed to give the reverse pass of Act II the fair test that Act II did not. **It never gave it.** The Act was paused after its
# preparations and not resumed. There is no result here, in either direction. This page shows what was passed and what was never run.

# %% tags=["parameters"]
target = "tiny-hybrid"  # model whose measured rows are shown, if there are any
rows = ""               # row file; empty: the committed one of the target

# %%
import re

import pandas as pd

from specdecode_nb.book import draw, published, start

page = start("act4n", globals())
page.opening()

# %% [markdown]
# ## What is known, and from where
#
# All that is public is a section of notes in one file of the source repository. Criteria, configurations and code are not in the public tree, so the design
# below is as complete as the notes are.

# %%
page.note("Documents, configs and code")

# %% [markdown]
# ## Design
#
# A fixed map $c$ sends every vocabulary token to one of $m$ noise states, and corruption replaces a token by its state:
#
# $$x_t^{(i)} = x_0^{(i)} \text{ with probability } 1-t, \qquad x_t^{(i)} = \mathrm{NOISE}_{c(x_0^{(i)})} \text{ with probability } t.$$
#
# The states are new ids outside the vocabulary; the readout cannot produce them, and a side table embeds them. Since $c$ is a function, a state tells
#
# $$I\left(X; c(X)\right) = H\left(c(X)\right) \le \log_2 m$$
#
# bits about the token it hides. In condition **E** the states are semantic: the buckets are clusters of token embeddings. Condition **D** is a permutation of E, so that
# it has the same bucket entropy and the same number of states, but not their meaning. The notes name five conditions, A to E; what A, B and C were is not in the facts at hand.

# %%
page.note("The comparison of interest")
page.table("act4n_design")
design = page.published.frame("act4n_design").set_index("quantity")["value"]

# %%
states, entropy, most = design["noise states"], design["bucket entropy (bits)"], design["maximum bucket entropy (bits)"]
page.number("states", int(states), "", "states", "data/published/act4n.json: act4n_design")
page.number("entropy", entropy, ".4f", "bits", "data/published/act4n.json: act4n_design")
page.number("entropy_max", most, ".0f", "bits", "data/published/act4n.json: act4n_design")
page.number("states_effective", 2 ** entropy, ".1f", "states", "two to the bucket entropy")
page.say("The [[states]] states could carry [[entropy_max]] bits. They carry [[entropy]], as much as [[states_effective]] equally likely states would (computed here): the buckets are uneven.")
page.check("the greatest entropy is that of [[states]] equal buckets, and D differs from E by nothing",
           2 ** most == states and design["entropy difference between conditions D and E (bits)"] == 0)

# %%
vocabulary, norm = design["first noise id (= model vocabulary size)"], design["noise-embedding norm at initialisation"]
act3 = published.load("act3")
page.number("vocabulary", int(vocabulary), ",", "ids", "data/published/act4n.json: act4n_design")
page.say("Noise ids begin at [[vocabulary]], just past the vocabulary. Noise embeddings start with the mean norm of a token embedding, the quantity that undid run 1 of Act III when a bias ignored it.")
page.check("the starting norm is the mean embedding norm published in Act III, to three digits",
           round(act3.negative("A timestep conditioner").numbers["embed_norm"], 3) == norm)

# %% [markdown]
# ## Criteria
#
# Two of three are judged. The third, the only one that bears on the question, is not.

# %%
page.criteria(caption="Criteria as far as they are public; those of Stage 2 were frozen in a file that is not")
outcomes = {c.id: c.passed for c in page.published.facts.criteria}
page.check("stages 0 and 1 passed, stage 2 is not judged", outcomes == {"N-stage0": True, "N-stage1": True, "N-stage2": None})

# %% [markdown]
# ## What was passed, and what was never run

# %%
page.table("act4n_stages")
observed = {c.id: c.observed for c in page.published.facts.criteria}
never = page.published.negative("Structured noise states").numbers
done, planned = zip(*[map(int, observed[i].split("/")) for i in ("N-stage0", "N-stage1")], (never["stage2_runs_done"], never["stage2_runs_planned"]))
stages = pd.DataFrame({"stage": ["0: sanity checks", "1: conditions that can learn", "2: held-out runs"], "passed": done, "not run": [p - d for p, d in zip(planned, done)]})
page.figure(draw.stacked(stages["stage"].tolist(), {"passed": stages["passed"].tolist(), "never run": stages["not run"].tolist()}, "checks, conditions or runs", fmt=".0f"), "stages",
            "What each stage planned, and how much of it was passed or never run; the number at the end is what was planned",
            "Three bars. The thirty checks of stage 0 and the five conditions of stage 1 were all passed. All eleven runs of stage 2 were never run.")

# %%
page.number("stage2_done", never["stage2_runs_done"], "", "runs", "data/published/act4n.json: negative result")
page.number("stage2_planned", never["stage2_runs_planned"], "", "runs", "data/published/act4n.json: negative result")
minutes = float(re.search(r"about ([\d.]+) min each", page.value("act4n_stages", "what", stage=1))[1]) * planned[1]
hours = float(re.search(r"about (\d+) h", page.value("act4n_stages", "what", stage=2))[1])
page.number("stage1_minutes", minutes, ".1f", "min", "data/published/act4n.json: act4n_stages")
page.number("stage2_hours", hours, ".0f", "h", "data/published/act4n.json: act4n_stages")
page.say("Stage 1 took about [[stage1_minutes]] minutes in all. Stage 2 was [[stage2_planned]] runs and about [[stage2_hours]] hours. [[stage2_done]] of them were done.")
page.check("stage 2 is the only stage with anything left to run", [s > 0 for s in stages["not run"]] == [False, False, True])

# %% [markdown]
# Passing Stage 1 means that each condition can fit what it is shown. Act II teaches how little that says: there, one memorized batch could not rank mechanisms at all.
#
# ### Negative result: structured noise states help held-out denoising
#
# It is listed among the negative results because the claim has nothing behind it, not because it was refuted.

# %%
page.negative("Structured noise states", "stage2_runs_done", "held-out runs done", names={"stage2_runs_planned": "planned"})

# %% [markdown]
# ## What it was to repair
#
# The first of the two defects below is one that the audit of Act II named. In IV-N, controls were to run at the same mixing gate as the arms, and the shuffled control was to draw a new
# permutation at every forward pass.

# %%
page.note("The design fixes two defects")
page.number("gate", design["reverse-arm mixing gate"], ".1f", "", "data/published/act4n.json: act4n_design")
act2 = published.load("act2")
page.number("act2_gate", act2.value("act2_fusion_params", "state at initialisation", strategy="scalar_gate").removeprefix("g = "), "", "", "data/published/act2.json: act2_fusion_params")
page.say("Reverse arms were to run at a gate of [[gate]], where Act II's default was [[act2_gate]].")
page.check("the two gates differ", float(page.numbers.text("gate")) != float(page.numbers.text("act2_gate")))

# %% [markdown]
# ## What the design could not have told
#
# One limit was recorded by the author.

# %%
page.note("Recorded interpretation limit")

# %% [markdown]
# A second is ours. The public facts do not say *what* D permutes. If it permutes only the names of the states, D groups the tokens exactly as E does, and a learner
# that has to learn the embeddings of the states anyway could hardly tell them apart: E against D would then compare nothing. If it permutes tokens among buckets, meaning is
# destroyed, as intended; the entropy then stays *exactly* equal only if it is counted over the vocabulary, not over running text, and the figure above
# would not be the information that text carries. Whoever takes this Act up again should state which it is.

# %%
page.merit()
page.verdict()

# %% [markdown]
# ## Measured here

# %%
if page.measured():
    counted = pd.Series([row.get("arm", row["kind"]) for row in page.rows.rows]).value_counts(sort=False)
    page.show(pd.DataFrame({"arm": counted.index, "rows": counted.tolist()}), "measured", "Rows of this Act measured here, by arm", sources=[page.rows])

# %% [markdown]
# ## Threats to validity
#
# - **Nothing to threaten.** There is no held-out number. Neither "structured noise helps" nor "it does not" may cite this Act.
# - **Not reproducible.** Criteria, configurations and code are not public; a new attempt would be a new design.
# - **Criteria unseen.** That the criteria of Stage 2 were frozen beforehand is stated in the notes and cannot be checked.
# - **Stage 1 is memorization.** It shows that the code trains, no more.

# %%
page.provenance()
page.finish()
