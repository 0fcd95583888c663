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
# # Act VI: drafting where tokens are drawn
#
# Every Act before this one decodes greedily. People sample. Then "the same tokens" is no longer a promise that can be read off two texts, and a decoder may be wrong in ways that no single text shows.
#
# This page measures three rules by which drafts survive when the target samples. All three leave the target's distribution as it is. They differ in what they accept, in what they cost, and in whether a seed
# still names one text.

# %% tags=["parameters"]
target = "tiny-hybrid"  # model that decides every token: a name, folder or hub id
tokens = 64             # new tokens a prompt
prompts = 27            # prompts of the suite, 1 to 27
chain_tokens = 12000    # tokens drawn for each count on the table
dtype = "float32"       # number format of the target: float32 or bfloat16
measure = False         # True: measure again; False: draw from recorded rows
quick = False           # True: a short measurement whose captions say that it is one
rows = ""               # row file; empty: the committed one of the target

# %%
import numpy as np

from specdecode_nb import criteria, fit
from specdecode_nb.book import draw, palette, sampled, start

page = start("act6", globals())
NAMES = {"gumbel": "shared noise", "match": "match", "rejection": "rejection"}
page.opening()

# %% [markdown]
# ## Why it matters
#
# Public systems have got this wrong more than once: one random number for a whole block, noise that drafter and acceptance share, a ratio with probabilities from before the filters, parameters that are taken and ignored.
# Some of these leave the distribution of a *single* token intact, so they pass the obvious test. And a sampled text that changes when the drafter is switched on cannot be debugged.

# %% [markdown]
# ## Method
#
# At a position, $p$ is the target's distribution and $q$ the drafter's, both after penalties, top-p, min-p, top-k and temperature, in the order and by the definitions of mlx-lm.
#
# - **Rejection.** The drafter draws $x$ from $q$. It is accepted with probability $\min(1, p(x)/q(x))$; otherwise the token is drawn from $\max(p-q, 0)$, normalised. Three noises, each independent of the others: the draft's, one uniform number for each position, and the replacement's.
# - **Match.** The target draws its own token at each row. A draft is accepted while it is the same. The drafter proposes its most likely token, which knows nothing of the noise.
# - **Shared noise** (rule `gumbel`, the default). Drafter and target add the *same* Gumbel noise $g$ to their logarithms and take the largest entry. The noise is keyed by the seed and the absolute position, and by nothing else.
#
# The probability that a judged draft is accepted:
#
# $$\text{rejection} \;=\; \sum_i \min(p_i, q_i), \qquad \text{match} \;=\; \sum_i p_i\, q_i, \qquad \text{shared noise} \;=\; \sum_i \frac{1}{\sum_j \max(p_j/p_i,\; q_j/q_i)}.$$
#
# For match $q$ is what the proposal is drawn from; for the most likely token it is a point mass, and what is left is $p$ of that token. With the distance $d = \frac{1}{2}\sum_i |p_i - q_i|$, rejection accepts $1-d$, which no rule can
# beat, and shared noise at least $(1-d)/(1+d)$.
#
# Plain sampling here takes the same noise as the target's side of shared noise and of match. So with these two rules a seed names one text, with any drafter, any block, and after any stop. Rejection has no such property: its text
# depends on what was drafted.

# %%
draws = np.random.default_rng(6)
base = draws.standard_normal((200, 12))
softmax = lambda x: np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)  # noqa: E731
curves: dict[str, list] = {"rejection": [], "gumbel": [], "match": [], "match, drawn": [], "bound of shared noise": []}
apart = []
for size in np.linspace(0, 3, 16):
    p, q = softmax(base), softmax(base + size * draws.standard_normal(base.shape))
    far = abs(p - q).sum(axis=1) / 2
    apart.append(far.mean())
    for name, values in {"rejection": fit.acceptance(p, q, "rejection"), "gumbel": fit.acceptance(p, q, "gumbel"), "match": fit.acceptance(p, np.eye(12)[q.argmax(axis=1)], "match"),
                         "match, drawn": fit.acceptance(p, q, "match"), "bound of shared noise": (1 - far) / (1 + far)}.items():
        curves[name].append(values.mean())
shown = {"gumbel": "shared noise", "match": "match, greedy draft", "match, drawn": "match, drawn draft"}
page.figure(draw.lines({shown.get(name, name): (apart, values) for name, values in curves.items()}, "mean distance d of p and q", "probability of acceptance", ylim=(0, 1)), "closed-forms",
            "What the closed forms say: mean acceptance of 200 pairs of distributions over twelve tokens, drawn further and further apart",
            "Falling curves over the distance: rejection on top, shared noise a little below and above its bound, matching far below and nearly flat.", sources=[page.computed])
page.check("rejection is never below another rule, and shared noise never below its bound",
           all(np.less_equal(curves[name], np.array(curves["rejection"]) + 1e-9).all() for name in ("gumbel", "match, drawn")) and np.greater_equal(curves["gumbel"], np.array(curves["bound of shared noise"]) - 1e-9).all())

# %% [markdown]
# Matching a greedy draft is the one that can win over rejection with a drawn one, though not in this figure: where the target is sure of a token and the drafter likes it best but is less sure, drawing from $q$ only adds doubt.

# %%
sure, unsure = np.array([[0.9, 0.1]]), np.array([[0.6, 0.4]])
for name, value in {"rejection": fit.acceptance(sure, unsure, "rejection"), "match": fit.acceptance(sure, np.array([[1.0, 0.0]]), "match")}.items():
    page.number(f"example_{name}", float(value[0]), ".2f", "accepted", page.computed.name)
page.say("With $p = (0.9, 0.1)$ and $q = (0.6, 0.4)$ rejection accepts [[example_rejection]] of drawn drafts, and match [[example_match]] of greedy ones. Which of the two pays on text has to be measured.")

# %% [markdown]
# ## Criteria
#
# Fixed in `data/criteria/act6.json` before the rows. Those of speed, and those that set one rule above another, may fail.

# %%
rules = criteria.load("act6")
page.rules(rules, "criteria", "Criteria fixed before the rows")

# %% [markdown]
# ## Results
#
# ### Counting where every probability is known
#
# A table gives the next token's distribution by the last token alone, over four tokens, and another table is the drafter. The same decoder runs on it, with blocks of four. Pairs of neighbouring tokens are
# counted after each third, and held against the table by a chi-square; a pair is needed, because the usual mistakes do not move a single token. As a control, one drafter draws with the very numbers that its
# acceptance uses later. Shared noise and both kinds of match write one text for the seed, so where nothing is filtered their counts are the same.

# %%
judged: dict = {}


if page.measured():
    judged = {o.criterion.id: o for o in sampled.outcomes(page.rows)}
    config, decoded = page.rows.config, page.rows.of("decode")
    counts = sampled.chains(page.rows)
    page.show(counts.drop(columns="sound"), "chains", "Sampling from a table: pairs counted, their joint chi-square and its distance in standard deviations, and acceptance beside its closed form",
              {"pairs": ",d", "judged": ",d", "chi-square": ".1f", "z of the fit": "+.2f", "accepted": ".4f", "closed form": ".4f", "z of acceptance": "+.2f"}, sources=[page.rows])

# %%
if page.rows:
    figure, (left, right) = draw.panels(2, height=3.4)
    draw.dots(counts["case"].tolist(), {"z": counts["z of the fit"].tolist()}, "z of the joint chi-square", reference=rules["fit"].rule.threshold, ax=left)
    sound = counts[counts["sound"]]
    draw.scatter({"sound": (sound["closed form"], sound["accepted"]), "control": tuple(counts.loc[~counts["sound"], c] for c in ("closed form", "accepted"))},
                 "acceptance by the closed form", "acceptance counted", diagonal=True, ax=right)
    page.figure(figure, "chains", "Left, how far the pairs of each case are from the table, in standard deviations, beside the threshold. Right, acceptance counted against its closed form",
                "Two panels: one mark a case beside a dashed line at the threshold; points of sound cases and of the control beside the diagonal.", sources=[page.rows])
    page.told(judged, "fit", "control", "closed-form")

# %% [markdown]
# ### The same tokens for a seed
#
# On the model, each rule decodes the same prompts greedily, at two temperatures, and with filters and penalties together. A section has plain arms of its own, sampled alike. Penalties are the hard case: a row of a verify
# forward must see the drafted tokens before it as if they were written, and forget them if they are not.

# %%
if page.rows:
    table = sampled.arms(page.rows)
    page.number("n_prompts", len(config["prompts"]), "d", "prompts", page.rows.name)
    page.number("n_tokens", config["tokens"], "d", "tokens", page.rows.name)
    page.say("[[n_prompts]] prompts, [[n_tokens]] new tokens each, one seed; all arms interleaved on each prompt." + (" **This is a reduced run**, shorter than the protocol asks for." if config["reduced"] else ""))
    page.told(judged, "identity-greedy", "identity-gumbel", "identity-match", "identity-filtered")

# %% [markdown]
# ### What each rule accepts

# %%
if page.rows:
    drafting = table.dropna(subset=["accepted"]).assign(rule=[sampled.rule_of(a) for a in table.dropna(subset=["accepted"])["arm"]])
    where = [s for s in sampled.sections(page.rows) if s != "greedy"]
    lines = [(s, arm) for arm in sampled.DRAFTERS.values() for s in where]
    share = {(r["section"], r["arm"]): r["accepted"] for r in drafting.to_dict("records")}
    page.figure(draw.dots([f"{palette.label(arm)}, {s}" for s, arm in lines], {NAMES[rule]: [share[s, f"{rule}_{arm}"] for s, arm in lines] for rule in sampled.RULES}
                          | {"greedy decoding": [share["greedy", arm] for _, arm in lines]}, "accepted share of judged drafts"), "acceptance",
                "Accepted share of judged drafts by rule, at temperatures 0.6 and 1 and with filters and penalties at 0.8, beside that of the same drafter in greedy decoding",
                "Six lines, three for each of two drafters, with a mark for each of three rules and one for greedy decoding; where two marks meet, the later rule covers the earlier one.", sources=[page.rows])

# %%
if page.rows:
    page.told(judged, *(f"{which}-{d}" for d in sampled.DRAFTERS for which in ("rejection-match", "gumbel-match", "gumbel-cost", "heat")))

# %% [markdown]
# ### What it is worth
#
# Speed is end to end, against the faster of two plain loops that sample at the same temperature (the section with penalties has only ours). Plain decoding pays for noise as well.

# %%
if page.rows:
    page.show(table.assign(arm=[palette.label(a) if sampled.rule_of(a) in ("", "greedy") else f"{NAMES[sampled.rule_of(a)]}, {palette.label(a.split('_', 1)[1])}" for a in table["arm"]]), "arms",
              "Every arm: median throughput, speed over the faster plain arm of its section with its 95 % interval over prompts, acceptance of judged drafts, tokens per cycle, and rows with the plain tokens of the seed where the rule promises them",
              {"tok/s": ".1f", "x plain": ".3f", "low": ".3f", "high": ".3f", "accepted": ".3f", "tokens per cycle": ".2f"}, sources=[page.rows])

# %%
if page.rows:
    page.figure(draw.forest([{"label": f"{r['section']}, {NAMES[r['rule']] + ', ' if r['rule'] in NAMES else ''}{palette.label(next(a for a in sampled.DRAFTERS.values() if r['arm'].endswith(a)))}", "value": r["x plain"],
                              "low": r["low"], "high": r["high"]} for r in drafting.replace({np.nan: None}).to_dict("records")], "speed (× faster plain arm)", reference=1.0, fmt=".2f"), "speed",
                "Speed of every drafted arm over plain decoding of its section, with 95 % intervals over prompts",
                "One line for each drafted arm with a mark and its interval beside a dashed line at one: greedy first, then two temperatures, then filters and penalties.", sources=[page.rows])
    page.told(judged, *(f"{which}-{d}" for d in sampled.DRAFTERS for which in ("speed-warm", "speed", "rejection-speed")), "noise-price", "penalty-price")

# %%
if page.rows:
    costs = sampled.stage_costs(page.rows, sampled.HOT)
    page.show(costs, "stages", "Where a cycle's time goes at temperature 1, medians by arm; drawing counts with the forward before it", {c: ".2f" for c in costs.columns if c != "arm"}, sources=[page.rows])

# %% [markdown]
# ### Every hypothesis

# %%
if page.rows:
    whole = criteria.table(judged.values())
    page.show(whole[["id", "hypothesis", "measured here", "verdict here"]], "closing", "Hypotheses by rules fixed before the rows: measured number with its 95 % interval over prompts, and verdict", sources=[rules, page.rows], full=whole)

# %% [markdown]
# ### Negative results
#
# What was expected and did not come.

# %%
if page.rows:
    page.tally(judged.values())

# %% [markdown]
# ## Threats to validity
#
# One small target and drafters that were trained on its own greedy text; at a temperature they see contexts that they were not trained on. One seed: acceptance and speed are averages over what that seed wrote, and the prompts
# are the only units of the intervals. Rejection writes another text than the other rules, so its acceptance is measured on other contexts. Texts of one section are compared with each other, but texts of two temperatures
# differ, and one that repeats itself is easier to draft.
#
# The counts on the table test the decoder's rules and not the model's arithmetic; that a row has the same bits at any width is tested elsewhere, on the reference BLAS, and shared noise inherits it: two logits closer than the
# difference of two kernels would fall apart under the same noise. A chi-square on pairs of four tokens would miss a fault that shows only in longer stretches.
#
# Drafters draw with penalties of the committed tokens alone. That is allowed, and costs acceptance where a block repeats itself.

# %% [markdown]
# ## Provenance

# %%
page.provenance()
page.finish()
