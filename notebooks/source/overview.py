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
# # Drafting with diffusion, measured
#
# Overview of the monograph: the story in one screen, a table of the Acts, every claim with its outcome, what the sources leave open, and how to read, run and cite.

# %% tags=["parameters"]
target = "tiny-hybrid"   # whose measured rows to show

# %%
import re

import pandas as pd

from specdecode_nb import paths
from specdecode_nb.book import acts as declared
from specdecode_nb.book import beside, draw, overview, published, start
from specdecode_nb.book.origin import Computed

page = start("overview", globals())
facts = {act: published.load(act) for act in paths.ACTS}
merit = {act: {m.name: m.value for m in f.facts.figures_of_merit} for act, f in facts.items()}


def number(name: str, act: str, value, fmt: str = "", unit: str = "") -> None:
    """A number of this page that comes from an Act's published facts."""
    page.number(name, value, fmt, unit, facts[act].name)


def under(label: str, acts: list) -> list:
    """The facts of several Acts as one origin with one label."""
    return [Computed(facts[a].name, facts[a].digest, f"published: {label}") for a in acts]


dates = sorted({day for f in facts.values() for day in re.findall(r"20\d\d-\d\d-\d\d", f.facts.date or "")})
ALL = under(f"the thirteen Acts, {dates[0]} to {dates[-1]} and one undated; model, machine and date of each stand in the table of Acts", list(paths.ACTS))


# %% [markdown]
# ## The story in one screen
#
# A language model writes one token per forward pass, and on one machine a forward pass takes as long for five tokens as for one, nearly. So let something cheap guess the next few tokens, let the model
# check them all in one pass, and keep those that it would have written itself. The output stays the model's own; what changes is how many passes it takes. This project asks how far that goes when
# the guesses come from *diffusion*: all guesses at once, out of noise, rather than one after another. The model is a 4B hybrid of attention and Gated DeltaNet on one Mac.

# %%
number("a1_factor", "act1", merit["act1"]["AR perplexity ratio, adapters on vs off"], ".1f", "x")
number("a2_margin", "act2", merit["act2"]["held-out lift margin, aligned minus causal"], "+.2f", "pp")
number("a3_low", "act3", merit["act3"]["held-out masked accuracy at t=0.10"], ".0f", "%")
number("a3_high", "act3", merit["act3"]["held-out masked accuracy at t=0.90"], ".0f", "%")
number("n_done", "act4n", facts["act4n"].facts.figures_of_merit[0].value, "d", "stages")
page.say("**Can such a model learn to fill in noise?** [Act I](act1.ipynb): a small adapter memorizes a batch, and ruins ordinary decoding while it is on (perplexity [[a1_factor]] times higher). "
         "[Act II](act2.ipynb): a second, reversed pass through the recurrent layers does not help ([[a2_margin]] points against its causal control). [Act III](act3.ipynb): a mixed objective gives a healthy "
         "denoiser, [[a3_low]] % right at little noise and [[a3_high]] % at much, that still cannot write from nothing, and it goes down as a failure because one criterion failed that its rule does not forgive (the other failed entry of its ledger is the stop of an earlier run). "
         "[Act IV-N](act4n.ipynb), on structured noise, was paused after [[n_done]] stages and never decided" + ("; its page puts the question to the embedded model." if overview.rows_of("act4n", target) else "."))

# %%
number("u_best", "act4u", merit["act4u"]["best wall-clock ratio"], ".2f", "x plain")
number("u2_k4", "act4u2", merit["act4u2"]["wall clock at K=4"], ".2f", "x plain")
number("u3_k4", "act4u3", merit["act4u3"]["K=4 speedup at step 3200"], ".3f", "x plain")
number("u4_k4", "act4u4", merit["act4u4"]["best K=4 speedup (B1 step 16000)"], ".3f", "x plain")
number("u4_stage_a", "act4u4", float(facts["act4u4"].frame("u4_k4_curve")["xAR"].iloc[-1]), ".3f", "x plain")
number("u4_k8", "act4u4", merit["act4u4"]["best K=8 relative to best K=4"], ".3f", "x K=4")
page.say("**Can it draft?** [Act IV-U](act4u.ipynb) turns the question round: the model stays frozen, and a half-percent adapter acts only on noise rows. It predicts what the model would write, and decoding is "
         "*slower* ([[u_best]] times plain), because a rejected block costs a third pass to repair the recurrent state. [Act IV-U2](act4u2.ipynb) records that state inside the verifying pass, and the same "
         "adapter is at [[u2_k4]] times plain at K=4. [Act IV-U3](act4u3.ipynb): eight times the training, [[u3_k4]]. [Act IV-U4](act4u4.ipynb): more training at K=4 saturates at [[u4_stage_a]]; the best figure at K=4, [[u4_k4]], is that of an adapter trained on "
         "at K=8, and blocks of eight run at [[u4_k8]] of the speed of blocks of four. [RPRM](rprm1.ipynb): the drafter's own uncertainty is a real signal and too small a one; stopped.")

# %%
number("s_k4", "act4s", merit["act4s"]["K=4 speedup (full suite)"], ".3f", "x plain")
number("s_clean", "act4s", merit["act4s"]["K=4 speedup (loop-free)"], ".3f", "x plain")
number("u5_band", "act4u5", merit["act4u5"]["launch band, accepted prefix"], ".3f", "tokens")
number("u5_b", "act4u5", merit["act4u5"]["endpoint prefix change, B_k6"], "+.3f", "tokens")
number("u6_fixed", "act4u6", merit["act4u6"]["verify forward fixed cost"], ".1f", "ms")
number("u6_marginal", "act4u6", merit["act4u6"]["verify forward marginal cost"], ".2f", "ms per token")
number("u6_best", "act4u6", merit["act4u6"]["best staged arm"], "+.1f", "%")
page.say("**How fast is it, and why not faster?** [Act IV-S](act4s.ipynb) measures end to end: [[s_k4]] times plain decoding at K=4, [[s_clean]] without looping text. What looked like wins of longer texts, of "
         "high-entropy prompts and of an n-gram drafter turns out to come from loops, and adaptive widths, refinement and long contexts do not help. [Act IV-U5](act4u5.ipynb): training at longer blocks changes the accepted prefix by [[u5_b]] tokens at best, while launches of one command "
         "differ by [[u5_band]]. [Act IV-U6](act4u6.ipynb): a verifying pass costs [[u6_fixed]] ms before its first token and [[u6_marginal]] ms for each, so verifying in stages loses ([[u6_best]] % at best).")

# %%
number("df_factor", "dflash", merit["dflash"]["drafting speedup, quantization isolated"], ".0f", "x")
page.say("**And with a drafter of a few layers?** A [blog post](dflash.ipynb) reports about [[df_factor]] times on a larger quantized model. One of its factors is clean; the rest of its headline cannot be taken apart.")

# %%
files = [(act, *found) for act in declared.reading() for found in overview.files_of(act, target)]
said = [overview.found(name, rows) for _, name, _, rows in files]
if files:
    made = next((rows for _, name, _, rows in files if name == "act4s"), files[-1][-1])
    page.number("here_parameters", made.provenance["target"]["parameters"] / 1e6, ".1f", "million parameters", made.name)
    page.number("here_machine", " or ".join(sorted({rows.provenance["machine"]["class"] for *_, rows in files})), source="data/measured")
    page.say("**And measured here?** On a model of [[here_parameters]] million parameters that this repository carries ([[here_machine]]); intervals are over the units that each page names.\n"
             + "".join(f"\n- [{published.title(act)}]({act}.ipynb): {text}" for (act, *_), (text, _) in zip(files, said)))

# %%
of = {act: facts[act].facts for act in paths.ACTS}
every = [c for f in of.values() for c in f.criteria]
page.number("acts", len(of), "d", "Acts", "data/published")
page.number("tables", sum(len(f.tables) for f in of.values()), "d", "tables", "data/published")
page.number("criteria", len(every), "d", "criteria", "data/published")
page.number("passed", sum(c.passed is True for c in every), "d", "criteria", "data/published")
page.number("failed", sum(c.passed is False for c in every), "d", "criteria", "data/published")
page.number("open", sum(c.passed is None for c in every), "d", "criteria", "data/published")
page.number("negatives", sum(len(f.negative_results) for f in of.values()), "d", "negative results", "data/published")
page.number("merits", sum(len(f.figures_of_merit) for f in of.values()), "d", "figures of merit", "data/published")
page.say("In all: [[acts]] Acts, [[tables]] published tables, [[criteria]] criteria ([[passed]] passed, [[failed]] failed, [[open]] not judged), [[negatives]] negative results, [[merits]] figures of merit. "
         "All of them are in these notebooks; a page that leaves one out does not build.")

# %%
k4 = {"IV-U": facts["act4u"].value("u_wallclock", "xAR", decoder="K=4"), "IV-U2": merit["act4u2"]["wall clock at K=4"], "IV-U3": merit["act4u3"]["K=4 speedup at step 3200"],
      "IV-U4": merit["act4u4"]["best K=4 speedup (B1 step 16000)"], "IV-S": merit["act4s"]["K=4 speedup (full suite)"],
      "IV-U5": merit["act4u5"]["matched-control K=4 speedup"], "IV-U6": merit["act4u6"]["incumbent K=4 speedup (reproduction)"]}
line = ["act4u", "act4u2", "act4u3", "act4u4", "act4s", "act4u5", "act4u6"]
machine, = {of[a].setup["hardware"] for a in line}
days = sorted({day for a in line for day in re.findall(r"20\d\d-\d\d-\d\d", of[a].date)})
page.check("these Acts share model and machine", all(of[a].setup["model"].startswith("unsloth/Qwen3.5-4B-Base, bf16, frozen") for a in line))
for act, (name, value) in zip(line, k4.items()):
    number(f"bar_{name.lower().replace('-', '_')}", act, value, ".2f", "x plain")
page.figure(draw.bars(list(k4), {"speed": list(k4.values())}, "speed at K=4 (× plain decoding)", reference=1.0, fmt=".2f"), "k4-by-act",
            "Published speed of blocks of four over plain decoding of the same session, Act by Act. Adapters, prompts and lengths differ between the Acts",
            "Seven bars. Act IV-U is below plain decoding at [[bar_iv_u]], IV-U2 just above at [[bar_iv_u2]], IV-U3 and all after lie between [[bar_iv_u3]] and [[bar_iv_u6]].",
            sources=under(f"unsloth/Qwen3.5-4B-Base, bf16, frozen; {machine}; {days[0]} to {days[-1]}", line))
page.check("IV-U3 is the lowest of the bars after IV-U2 and IV-U6 the highest", min(list(k4.values())[2:]) == k4["IV-U3"] and max(k4.values()) == k4["IV-U6"])
page.check("every Act after IV-U is faster than plain decoding at K=4, and none by more than 1.26", k4["IV-U"] < 1 < min(v for k, v in k4.items() if k != "IV-U") and max(k4.values()) < 1.26)

# %% [markdown]
# ## The Acts

# %%
table = overview.acts(target)
counts = [{"passed": sum(c.passed is True for c in f.criteria), "failed": sum(c.passed is False for c in f.criteria), "not judged": sum(c.passed is None for c in f.criteria),
           "negative results": len(f.negative_results)} for f in of.values()]
origin = [f.label.removeprefix("published: ") for f in facts.values()]
acts = pd.concat([table[["act", "question", "verdict"]], table[["measured"]].rename(columns={"measured": "measured here"}), pd.DataFrame(counts),
                  pd.DataFrame({"model, machine, date": origin})], axis=1)
page.show(acts, "acts", "The Acts in reading order: question, published verdict word for word, criteria, negative results, and what was measured here", sources=[*ALL, *(rows for *_, rows in files)])

# %%
own = overview.own(target)[["act", "question", "measured"]].rename(columns={"measured": "measured here"})
if len(own):
    page.show(own, "own-acts", "Acts of our own, of which nothing was published", sources=[rows for act, *_, rows in files if act in set(own["act"])] or [page.computed])

# %%
short = {act: f.title.split(":")[0].split(" (")[0].replace("Act ", "") for act, f in of.items()}
page.figure(draw.stacked([short[a] for a in acts["act"]], {c: acts[c].tolist() for c in ("passed", "failed", "not judged", "negative results")}, "claims", fmt=".0f"), "outcomes",
            "Criteria by outcome, and negative results, by Act; the number at the end is their sum",
            "Thirteen stacked bars. Act IV-S is the longest with 24 claims, Act IV-N the shortest with 4; every bar has a part for negative results.", sources=ALL)
page.check("every Act has at least one negative result; Act IV-S has the most claims",
           (acts["negative results"] > 0).all() and acts.loc[acts[["passed", "failed", "not judged", "negative results"]].sum(axis=1).idxmax(), "act"] == "act4s")

# %% [markdown]
# ## What was measured here
#
# Published figures come from one Mac. This repository also carries a small model of the same kind, so that the system can be run and measured by anyone. The two are never put in one column.

# %%
def findings(files, said):
    return pd.DataFrame([{"act": act, "target": where, "what was found": text, "rules": rules or "-"} for (act, _, where, _), (text, rules) in zip(files, said)])


if files:
    page.show(findings(files, said), "measured", "Measured here, the main finding of each row file with its 95 % interval, and how many of the rules fixed beforehand hold; x plain is against the faster of two plain loops", sources=[rows for *_, rows in files])
else:
    page.say("**Nothing has been measured here yet.** `specdecode-nb run act4s -p measure=true` would; the ledger then says which claims hold on the embedded model.")

# %% [markdown]
# The same system on a real language model, SmolLM2-135M, with English prompts. What was asked of its drafters, and what came of it, stands on the pages of both Acts.

# %%
real = [(act, *found) for act in declared.reading() for found in overview.files_of(act, beside.REAL)]
if real and target != beside.REAL:
    page.show(findings(real, [overview.found(name, rows) for _, name, _, rows in real]), "measured-real", "Measured here on SmolLM2-135M, as above", sources=[rows for *_, rows in real])

# %% [markdown]
# ## The claims ledger
#
# Every criterion and every negative result of every Act. "Published" is the outcome as its Act states it. "Here" is our own verdict where rows measured in this repository can judge the claim, by the published rule or by one fixed in `data/criteria/` before the rows;
# most of them concern a training run or a machine that is not here, and are not measured. A negative result is a hypothesis that was tried and did not hold: the column says what was seen instead. Our rules beside it are quoted, since some ask for the hypothesis and some for the observation.

# %%
claims = overview.ledger(target)
page.check("the ledger has every criterion and every negative result of every Act", len(claims) == sum(len(f.criteria) + len(f.negative_results) for f in of.values()))


def judging(act: str, own: pd.DataFrame) -> list:
    """The row files behind our verdicts on an Act: its own, and those of the sweep, which judges claims of three Acts."""
    if not own["here"].ne("not measured").any():
        return []
    return [rows for of_, name, _, rows in files if name == "act4s" or of_ == act and name in overview.JUDGES]


def ledger(act: str) -> None:
    """The claims of one Act."""
    own = claims[claims["act"] == act].drop(columns="act").reset_index(drop=True)
    f = of[act]
    page.say(f"Question: {f.question} Published verdict: **{f.verdict.rstrip('.')}**.")
    page.show(own, f"claims-{act}", f"Claims of {f.title}", sources=[facts[act], *judging(act, own)])


# %% [markdown]
# ### [Act I](act1.ipynb)

# %%
ledger("act1")

# %% [markdown]
# ### [Act II](act2.ipynb)

# %%
ledger("act2")

# %% [markdown]
# ### [Act III](act3.ipynb)

# %%
ledger("act3")

# %% [markdown]
# ### [Act IV-N](act4n.ipynb)

# %%
ledger("act4n")

# %% [markdown]
# ### [Act IV-U](act4u.ipynb)

# %%
ledger("act4u")

# %% [markdown]
# ### [Act IV-U2](act4u2.ipynb)

# %%
ledger("act4u2")

# %% [markdown]
# ### [Act IV-U3](act4u3.ipynb)

# %%
ledger("act4u3")

# %% [markdown]
# ### [Act IV-U4](act4u4.ipynb)

# %%
ledger("act4u4")

# %% [markdown]
# ### [RPRM, stage 1](rprm1.ipynb)

# %%
ledger("rprm1")

# %% [markdown]
# ### [Act IV-S](act4s.ipynb)

# %%
ledger("act4s")

# %% [markdown]
# ### [Act IV-U5](act4u5.ipynb)

# %%
ledger("act4u5")

# %% [markdown]
# ### [Act IV-U6](act4u6.ipynb)

# %%
ledger("act4u6")

# %% [markdown]
# ### [DFlash](dflash.ipynb)

# %%
ledger("dflash")

# %% [markdown]
# ## What the sources leave open
#
# Ten discrepancies and gaps were known before these pages were written. Each is told in its Act, where it bites, and none is smoothed over. The text is the one published with the facts, where there is one.

# %%
KNOWN = [
    ("Act I has two identity accuracies for one run", [("act1", "FINDINGS.md quotes")]),
    ("Act II is rejected in one place and untested in another", [("act2", "A later audit recorded")]),
    ("Acts IV-U3 and IV-U4 number slots differently, and the same adapter scores differently", [("act4u3", "U3 slot labels"), ("act4u3", "Under the keyed U4 harness")]),
    ("Act IV-U4's table of required acceptance mixes checkpoints", [("act4u4", "The doc table of required")]),
    ("Act IV-U4 has two best K=8 speeds", [("act4u4", "The doc quotes best K=8")]),
    ("Act IV-S: medians and means differ", [("act4s", "Headline is the median")]),
    ("Act IV-U's absolute speeds come from a slow session", [("act4u", "Absolute tok/s")]),
    ("DFlash: the results table is missing, and multipliers by 'context' match a column of generated tokens", [("dflash", "The post gives no dates"), ("dflash", "The multipliers 2.37x")]),
    ("Acts I to III, IV-U and IV-U2 have no committed raw data; their numbers come from reports",
     [("act1", "Run directories"), ("act2", ""), ("act3", ""), ("act4u", ""), ("act4u2", "")]),
    ("Act IV-N's criteria and code are not public", [("act4n", "Documents, configs and code")])]
entries = []
for n, (what, notes) in enumerate(KNOWN, 1):
    texts = [next(note for note in of[act].notes if note.startswith(beginning)) for act, beginning in notes if beginning]
    entries.append({"no.": n, "discrepancy": what, "as the sources have it": " ".join(texts), "told in": ", ".join(dict.fromkeys(f"{act}.ipynb" for act, _ in notes))})
page.show(pd.DataFrame(entries), "discrepancies", "The ten known discrepancies of the sources, and the page that tells each", sources=ALL)

# %% [markdown]
# Writing the pages turned up more. They are told where they were found; a page that is not in this list turned up nothing beyond the ten above.
#
# - [Act II](act2.ipynb): the shuffled control may have run at another gate than the arm it is compared with; if so, the arm with the scalar gate is its fairer partner.
# - [Act III](act3.ipynb): the published rate of canvas tokens is not the supervised tokens over the wall clock of the same run.
# - [Act IV-U](act4u.ipynb): a committed count that is not the pooled one; and a control that is not beaten at the second slot.
# - [Act IV-U3](act4u3.ipynb): the acceptance printed beside the required one is of another kind; in one currency the drafter reaches what the two columns say it misses.
# - [Act IV-U4](act4u4.ipynb): the growth of a cycle from K=4 to K=8 that the report quotes pairs figures of two stages; the same two adapters in one table give another.
# - [Act IV-U5](act4u5.ipynb): criterion U5-5.2 quotes another cached agreement than the table; and the same two adapters differ in speed by more than the floor between two sessions.
# - [DFlash](dflash.ipynb): upstream speedups that are not the quotient of the rates beside them, one of them quoted by the post; and an acceptance that cannot be of the kind it is compared with.
#
# ## Reading order
#
# - **In a hurry:** [Act IV-S](act4s.ipynb), then [Act IV-U6](act4u6.ipynb). What it does, and why it does no more.
# - **To build one:** [Act IV-U](act4u.ipynb), [Act IV-U2](act4u2.ipynb), [Act IV-U3](act4u3.ipynb), [Act IV-U4](act4u4.ipynb). The adapter, the transaction, the training, the block width.
# - **To avoid our mistakes:** [Act I](act1.ipynb) (a falling loss that was copying), [Act IV-U5](act4u5.ipynb) (an effect that was a launch), [Act IV-S](act4s.ipynb) (wins that were loops),
#   [DFlash](dflash.ipynb) (a ratio from corner to corner).
# - **All of it:** [I](act1.ipynb), [II](act2.ipynb), [III](act3.ipynb), [IV-N](act4n.ipynb), [IV-U](act4u.ipynb), [IV-U2](act4u2.ipynb), [IV-U3](act4u3.ipynb), [IV-U4](act4u4.ipynb),
#   [RPRM](rprm1.ipynb), [IV-S](act4s.ipynb), [IV-U5](act4u5.ipynb), [IV-U6](act4u6.ipynb), [DFlash](dflash.ipynb).
#
# ## Reading a page
#
# Every figure and table has an id, and ends with its origin in brackets: *published* or *measured here*, model, machine, date. Its file in `figures/` has the same id. Sentences with numbers are made from the data,
# and "Checked:" below a sentence means that the claim was tested on the data when the page was built; a claim that does not hold stops the build. Intervals are at 95 % unless a caption says otherwise.
#
# ## Running it again
#
# ```
# python3 bootstrap.py act4s                               # make an environment, measure a reduced Act IV-S on the embedded model
# specdecode-nb list                                       # the Acts in one line each
# specdecode-nb run act4s -p measure=true -p tokens=64     # an Act with other parameters, written to out/
# specdecode-nb run act4u5 --help                          # the parameters of an Act
# specdecode-nb figures act4u5 --to paper/                 # figures, tables, captions and numbers for a write-up
# specdecode-nb site --to html/                            # these pages as HTML, to read without a network
# specdecode-nb check                                      # every derived file against its source
# ```
#
# No notebook of the monograph needs MLX to be drawn; measuring does. `environment.md` says what was measured where.
#
# ## Citing
#
# Please cite the commit of this repository that you read, and the published project for the published numbers.
#
# ```
# @misc{specdecode_nb,
#   title = {Drafting with diffusion, measured: executed notebooks of a speculative decoder for hybrid models},
#   howpublished = {specdecode\_nb, Apache-2.0, commit as read},
#   year  = {2026}
# }
# @misc{diffusion_specdecode,
#   title = {qwen-block-diffusion-lab},
#   howpublished = {release diffusion-specdecode-v0.1, Apache-2.0},
#   year  = {2026}
# }
# ```
#
# The drafter reproduces Uno by IFM (Apache-2.0). Acts I to III follow ideas of FLARE (arXiv:2606.01774). The last page is about the blog post "2x Decode From Block-Diffusion Drafting" and the method DFlash (arXiv:2602.06036).

# %% [markdown]
# ## Threats to validity
#
# Each page has its own. Two belong to the whole. The published work is one model, one machine and, for most claims, one training run; where launches were repeated, they differed by more than the effects in question.
# And the facts in these notebooks were extracted from reports: from Act IV-U3 on they follow committed tables, before that the text alone.

# %% [markdown]
# ## Provenance

# %%
page.provenance()

# %%
page.finish()
