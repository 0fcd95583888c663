"""The Acts side by side: what was asked, what was published, what was measured here."""
from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pandas as pd

from .. import condition, criteria, paths, statistics
from ..records import RowFile, load_rows
from . import acts as declared
from . import block, denoising, identity, palette, peers, published, regimes, replicates, rest, reverse, sampled, staging, states, sweep, trained, uncertainty, undo, verdicts

BESIDE = {"act2": ("act2_bare",), "act4n": ("act4n_bare",), "act4u": ("uno_recipes",), "act4s": ("act4s_rest",), "dflash": ("dflash_rest", "dflash_peers")}  # further row files of an Act
JUDGES = {"act1": denoising.overfit, "act2": reverse.outcomes, "act2_bare": reverse.outcomes, "act3": denoising.masked, "act4n": states.outcomes, "act4n_bare": states.outcomes,
          "act4u2": lambda file: undo.outcomes(criteria.load("act4u2"), file), "act4u6": staging.outcomes, "dflash": block.outcomes,
          "act5": identity.outcomes, "act6": sampled.outcomes, "rprm1": uncertainty.outcomes,
          "act4s_rest": lambda file: rest.outcomes(criteria.load("act4s_rest"), file),
          "dflash_rest": lambda file: regimes.outcomes(criteria.load("dflash_rest"), file), "dflash_peers": peers.outcomes,
          **dict.fromkeys(trained.NUMBERS, trained.outcomes)}  # row files with rules of their own


def rows_of(act: str, target: str = "*") -> dict[str, RowFile]:
    """The committed row files of an Act by target, every one or that of ``target``."""
    found = sorted((paths.data() / "measured").glob(f"*/{act}.json"))
    return {p.parent.name: load_rows(p, p.relative_to(paths.root()).as_posix()) for p in found if target in ("*", p.parent.name)}


def files_of(act: str, target: str = "*") -> list[tuple[str, str, RowFile]]:
    """Every row file that an Act's page draws: (name, target, rows)."""
    return [(name, where, file) for name in (act, *BESIDE.get(act, ())) for where, file in rows_of(name, target).items()]


def found(name: str, file: RowFile) -> tuple[str, str]:
    """What was found in a row file, in one phrase, and how the rules fixed for it came out ("" without rules of its own)."""
    mark = condition.marking(file.provenance)
    short = (", a reduced run" if file.config.get("reduced") else "") + (f", {mark}" if mark else "")
    if name in JUDGES:
        judged = JUDGES[name](file)
        words, late = Counter(o.word.split(":")[0] for o in judged), sum(o.criterion.late for o in judged)
        text = FINDINGS[name]({o.criterion.id: o for o in judged}) if name in FINDINGS else name
        text += f"; {REMARKS[name](file)}" if name in REMARKS else ""
        return text + short, f"rules: {words[criteria.HOLDS]} hold, {words[criteria.FAILS]} fail, {words['not decidable']} not decidable" + (f"; {late} of these {len(judged)} were added after the rows" if late else "")
    if name == "uno_recipes":
        return recipes(file) + short, ""
    rows = file.of("decode")
    if not sweep.drafting(rows):
        return f"{name}: recorded{short}", ""
    entries = {e["arm"]: e["x plain"] for e in statistics.summarise(rows)}
    best = sweep.best(rows)
    ratio = statistics.speedup(sweep.arm_rows(rows, best), sweep.arm_rows(rows, statistics.plain_arm(rows)))
    free = statistics.loop_free(rows)
    clean = {e["arm"]: e["x plain"] for e in statistics.summarise(free)} if free else {}
    return (f"{palette.label(best)} {entries[best]:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}] x plain"
            + (f" ({clean[best]:.2f} loop-free)" if best in clean else "") + short), ""


def phrase(name: str, file: RowFile) -> str:
    """Both parts of :func:`found` in one line."""
    text, rules = found(name, file)
    return text + (f" ({rules})" if rules else "")


Judged = Mapping[str, criteria.Outcome]


def amount(o: criteria.Outcome, fmt: str = ".2f") -> str:
    """The number of an outcome with its interval, without unit and n."""
    if o.value is None:
        return "not measured"
    return f"{o.value:{fmt}}" + (f" [{o.low:{fmt}}, {o.high:{fmt}}]" if o.low is not None else "")


def reversing(judged: Judged) -> str:
    """Act II: the better bidirectional arm against causal, and the power of that comparison."""
    return (f"a second pass over the reversed canvas changes the lift by {amount(judged['II-4'], '+.2f')} pp, aligned less shuffled {amount(judged['II-10'], '+.2f')} pp "
            f"(a difference of 3 pp would be seen with probability {amount(judged['II-3'])}" + (", but the causal arm has not learned to denoise)" if judged["II-2"].word == criteria.FAILS else ")"))


def unconditioned(judged: Judged) -> str:
    """Act II without a timestep conditioner: whether it learns then, and the same comparison."""
    return (f"without the timestep conditioner the causal arm gains {amount(judged['IIb-2'], '+.2f')} pp on changed rows from t = 0.9 to 0.5, {amount(judged['IIb-1'], '+.2f')} more than with it; a second pass "
            f"then changes the lift by {amount(judged['IIb-4'], '+.2f')} pp, aligned less shuffled {amount(judged['IIb-10'], '+.2f')} pp (3 pp would be seen with probability {amount(judged['IIb-3'])})")


def symbols(judged: Judged) -> str:
    """Act IV-N: semantic against permuted states, and the power of that comparison."""
    return (f"states that name a semantic bucket instead of the same states permuted: {amount(judged['N-6'], '+.2f')} pp of accuracy on hidden tokens "
            f"(2 pp would be seen with probability {amount(judged['N-4'])}); the aligned second pass adds {amount(judged['N-11'], '+.2f')} pp")


def unconditioned_states(judged: Judged) -> str:
    """Act IV-N without a timestep conditioner: E against D, and both against a table of the states."""
    return (f"without the timestep conditioner semantic less permuted states {amount(judged['Nb-6'], '+.2f')} pp; over a table that knows only the state, training adds {amount(judged['Nb-1'], '+.2f')} pp to semantic "
            f"and {amount(judged['Nb-2'], '+.2f')} pp to permuted ones; the aligned second pass adds {amount(judged['Nb-11'], '+.2f')} pp")


def undoing(judged: Judged) -> str:
    """Act IV-U2: kept states against plain decoding, rewind against them."""
    slower = {criteria.HOLDS: "slower", criteria.FAILS: "not slower"}.get(judged["rewind-speed-k4"].word, "not told apart")
    return f"states kept {amount(judged['U2-6-plain-k4'])} x plain at K=4; rewind {amount(judged['rewind-speed-k4'])} of that, {slower}"


def staged(judged: Judged) -> str:
    """Act IV-U6: the best decoupled arm and the rule that fires."""
    arms = {i: judged[i] for i in ("U6-4-s64", "U6-4-s84", "U6-4-s63", "U6-4-s82", "U6-4-t64", "U6-4-t84")}
    best = max(arms, key=lambda i: arms[i].value)
    kind, d, v = best[-3:]
    return f"best decoupled arm {kind.upper()}({d},{v}) {amount(arms[best], '+.1f')} % against K=4: {staging.VERDICTS[judged['Verdict'].value].lower()}"


def controls(judged: Judged) -> str:
    """The rest of Act IV-S: a control, more passes, a policy."""
    return (f"two-gram lookup {amount(judged['lookup-clean'])} of K=4 on loop-free text, a second pass {amount(judged['refine-2'])} of one, "
            f"best policy {amount(judged['adaptive'])} of the best fixed width")


def blocks(judged: Judged) -> str:
    """Act DFlash: the fastest block, and how it stands to the other drafters."""
    others = "".join(f", {amount(judged[id])} of the {name}" for id, name in (("over-adapter", "adapter at K=4"), ("over-head", "chained head")) if judged[id].value is not None)
    return f"fastest block {amount(judged['speed'])} x plain ({amount(judged['speed-loop-free'])} loop-free){others}"


def elsewhere(judged: Judged) -> str:
    """The rest of Act DFlash: quantised, with a long prompt, on a modified target."""
    return (f"drafting at 4 bits {amount(judged['drafting-4bit'])} x plain, after the longest prompt {amount(judged['context-speed'])}, "
            f"on the target modified most {amount(judged['modified-pays'])}")


def beside(judged: Judged) -> str:
    """Peers beside Act DFlash: mlx-lm with a draft model, and the other runtime of block drafters."""
    parts = {"mlx-lm-pays": "mlx-lm with a small draft model {} x plain", "block-over-mlx-lm": "the block drafter {} of that",
             "dflash-mlx-identity": "dflash-mlx leaves plain decoding in {} texts", "dflash-mlx-states": "after undoing, states off by {} in dflash-mlx",
             "z-lab-states": "after undoing, states off by {} in z-lab's runtime"}
    fmt = {"dflash-mlx-identity": "d", "dflash-mlx-states": ".0e", "z-lab-states": ".0e"}
    return "; ".join(text.format(amount(judged[id], fmt.get(id, ".2f"))) for id, text in parts.items() if judged[id].value is not None)


def exactness(judged: Judged) -> str:
    """Act V: bits on the reference BLAS, flips beyond the noise elsewhere, exact decoding and its price."""
    return (f"{amount(judged['V-2'], ',d')} of {amount(judged['V-1'], ',d')} drafted tokens differ on the reference BLAS, {amount(judged['V-6'], 'd')} and {amount(judged['V-7'], 'd')} flips beyond "
            f"the width noise elsewhere (float32, bfloat16); exact decoding differs in {amount(judged['V-11'], 'd')} tokens and runs at {amount(judged['V-15'])} x plain, {amount(judged['V-17'])} with drafts")


def drawn(judged: Judged) -> str:
    """Act VI: speed with shared noise, and what it accepts against rejection."""
    return (f"at temperature 1 with shared noise the adapter decodes at {amount(judged['speed-uno'])} x plain sampling, blocks of 8 at {amount(judged['speed-dflash'])}; "
            f"rejection accepts {amount(judged['gumbel-cost-uno'], '+.3f')} more of the adapter's drafts")


def overfitted(judged: Judged) -> str:
    """Act I: who left the copier behind, and what the adapter costs when it is left on."""
    return (f"lift over a copier {amount(judged['A1-001'], '+.1f')} pp after 60 steps, {amount(judged['A1-004'], '+.1f')} after 150, {amount(judged['A1-003'], '+.1f')} with MLPs; "
            f"perplexity {amount(judged['A1-AR-on'])} x with that adapter left on")


def denoised(judged: Judged) -> str:
    """Act III: masked accuracy, the criterion that failed, and what the sampler writes from nothing."""
    return (f"masked accuracy {amount(judged['2'], '.1f')} % at t = 0.10, visible tokens preserved {amount(judged['3'], '.1f')} %; a canvas from a full mask costs the target "
            f"{amount(judged['sampler-nats'], '+.2f')} nats a token more than the truth")


def learned(judged: Judged) -> str:
    """Act IV-U: what the adapter learned, and whether it pays."""
    return (f"agreement at K=2 {amount(judged['G1-gain'], '+.2f')} over untrained, shuffled {amount(judged['G1-shuffled'], '+.2f')}; {amount(judged['G5-kept'])} x plain with kept states, "
            f"{amount(judged['G5-replay'])} with replay")


def longer(judged: Judged) -> str:
    """Act IV-U3: the two ends of the chain."""
    return (f"from the first to the last checkpoint acceptance {amount(judged['U3-2-use'], '+.3f')} and {amount(judged['U3-4'])} times the speed; the last decodes at "
            f"{amount(judged['U3-4-meaningful'])} x plain at K=4")


def horizon(judged: Judged) -> str:
    """Act IV-U4: the wide block."""
    return f"an adapter trained and decoded at K=8 runs at {amount(judged['B3b'])} of the speed of the best K=4 and at {amount(judged['B3a'])} x plain; of its slots beyond the third {amount(judged['late-slots'], 'd')} pay"


def launched(judged: Judged) -> str:
    """Act IV-U5: is a launch reproducible."""
    ends = {id: judged[id] for id in ("same-A", "same-C")}
    if all(o.word == criteria.HOLDS for o in ends.values()):
        return "launches of one command end in the same bits"
    return f"launches of one command end in {amount(ends['same-A'], 'd')} states (control) and {amount(ends['same-C'], 'd')} (K=8)"


def signalled(judged: Judged) -> str:
    """RPRM Stage 1: what the entropy adds to the offset, on text and on the target's own."""
    sure = not judged["Verdict"].word.startswith("not decidable")
    return (f"the drafter's entropy adds {amount(judged['3-full'], '+.3f')} AUROC to the offset, {amount(judged['3-trained'], '+.3f')} at the offsets that it was trained at, {amount(judged['3-own'], '+.3f')} on the target's own text"
            + (f": {uncertainty.GRADES[judged['Verdict'].value]} by the published rules" if sure else ""))


FINDINGS = {"act1": overfitted, "act2": reversing, "act2_bare": unconditioned, "act3": denoised, "act4n": symbols, "act4n_bare": unconditioned_states, "act5": exactness, "act6": drawn, "act4u2": undoing, "act4u6":
            staged, "act4s_rest": controls, "dflash": blocks, "dflash_rest": elsewhere, "act4u": learned, "act4u3": longer, "act4u4": horizon,
            "act4u5": launched, "rprm1": signalled, "dflash_peers": beside}


REMARKS = {"act1": denoising.remark, "act4n": states.remark, "act4u5": replicates.remark}
"""What a finding would mislead without, and no rule covers."""


def recipes(file: RowFile) -> str:
    """The single change of the published recipe that adds most to the accepted prefix, and all of them together."""
    arms = statistics.by(file.of("recipe_decode"), "arm")
    prefix = lambda r: statistics.mean(r["accepted_per_cycle"])  # noqa: E731
    gains = {arm: statistics.paired_bootstrap(statistics.paired_prompts(rows, arms["published"], prefix)) for arm, rows in arms.items()}
    text = lambda arm: f"{gains[arm]['mean_diff']:+.2f} [{gains[arm]['ci_low']:+.2f}, {gains[arm]['ci_high']:+.2f}]"  # noqa: E731
    best = max((arm for arm in gains if arm.startswith("+")), key=lambda arm: gains[arm]["mean_diff"])
    return f"of single changes of the recipe {best.removeprefix('+')} adds most, {text(best)} tokens accepted a cycle; together they add {text('all')}"


def measured(act: str, target: str = "*") -> str:
    """What the committed rows of an Act say, one phrase a row file; "not measured" without rows."""
    return "; ".join(f"{where}: {phrase(name, file)}" for name, where, file in files_of(act, target)) or "not measured"


def acts(target: str = "*") -> pd.DataFrame:
    """One row an Act, in reading order."""
    facts = {act: published.load(act).facts for act in paths.ACTS}
    return pd.DataFrame([{"act": act, "title": f.title, "question": f.question, "date": f.date, "verdict": f.verdict, "measured": measured(act, target)}
                         for act, f in facts.items()])


def own(target: str = "*") -> pd.DataFrame:
    """One row an Act of our own, in reading order; nothing of them was published."""
    return pd.DataFrame([{"act": a.id, "title": a.title, "question": a.question, "measured": measured(a.id, target)} for a in declared.own()],
                        columns=["act", "title", "question", "measured"])


def lines() -> list[str]:
    """One line an Act: id, question, published verdict, what was measured here."""
    ours = own().assign(verdict="nothing, this Act is our own").to_dict("records")
    return [f"{r['act']:7} {r['question']} | published: {r['verdict']} | here: {r['measured']}" for r in acts().to_dict("records") + ours]


def own_verdicts(target: str = "*") -> dict[tuple[str, str], list[str]]:
    """Our verdicts by (act, claim): of the sweep by the published rules, of other row files by the rules fixed for them."""
    found: dict[tuple[str, str], list[str]] = {}
    for where, file in rows_of("act4s", target).items():
        for claim, text in verdicts.claims(file.of("decode"), (file.provenance["drafter"].get("recipe") or {}).get("block")).items():
            found.setdefault(claim, []).append(f"{where}: {text}")
    for act in paths.ACTS:
        for name, where, file in files_of(act, target):
            marks = ["reduced run"] * bool(file.config.get("reduced")) + ["degraded machine"] * bool(condition.marking(file.provenance))
            short = f" ({', '.join(marks)})" if marks else ""
            for o in JUDGES[name](file) if name in JUDGES else ():
                for claim in o.criterion.claims:
                    found.setdefault((act, claim), []).append(f'{where}{short}: {o.word}. "{o.criterion.statement}": {o.text}')
    return found


def ledger(target: str = "*") -> pd.DataFrame:
    """Every criterion and every negative result: act, kind, id, statement, outcome as published and as measured here."""
    outcome = {True: "passed", False: "FAILED", None: "not judged"}
    here, entries = own_verdicts(target), []
    written = {p.stem for p in (paths.data() / "criteria").glob("*.json")}
    reasons = {(act, claim): f"no rule: {reason}" for act in paths.ACTS if act in written for claim, reason in criteria.load(act).unjudged.items()}
    for act in paths.ACTS:
        f = published.load(act).facts
        entries += [{"act": act, "kind": "criterion", "id": c.id, "statement": f"{c.statement} ({c.threshold})", "published": f"{outcome[c.passed]}: {c.observed}",
                     "claim": c.id} for c in f.criteria]
        entries += [{"act": act, "kind": "negative result", "id": f"N{n}", "statement": r.hypothesis, "published": r.observed, "claim": r.hypothesis}
                    for n, r in enumerate(f.negative_results, 1)]
    for e in entries:
        claim = e["act"], e.pop("claim")
        e["here"] = "; ".join(here.get(claim, [])) or reasons.get(claim, "not measured")
    return pd.DataFrame(entries)
