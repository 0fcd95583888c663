"""What RPRM Stage 1 asks of its measured rows: tables, and the number with interval behind every criterion."""
from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from .. import criteria, residual
from ..records import RowFile
from ..residual import MODELS, Number, Stratum, auroc, log_loss
from .sweep import frame

FEWEST = 512  # windows a stratum, as published
LABELS = {"full": "corpus text, full noise", "schedule": "corpus text, drawn rates", "own": "own text, full noise"}
SIGNALS = {"entropy": "drafter's entropy", "gap": "draftability gap", "teacher_entropy": "teacher's entropy"}
MEASURES = {"entropy": "normalized entropy", "top1": "top-1 probability", "margin": "top-1 minus top-2", "support": "effective support"}
NEAR, FAR = (2, 3, 4, 5), (6, 7)
ADDS = {"AUROC": (auroc, 1, 0.02), "log-loss reduction": (log_loss, -1, 0.01)}
"""What criterion 5 lets the entropy add to the gap: measure, sign of an improvement, least improvement."""
SIX = ("1", "1-size", "2", "3", "4", "5", "6")
GRADES = ("FAIL", "WEAK", "STRONG")
PROGRESS, ENTROPY, GAP, BOTH = (MODELS[k] for k in ("1 progress only", "4 progress + entropy", "5 progress + gap", "6 progress + gap + entropy"))

Strata = Mapping[str, Stratum]


def strata(file: RowFile) -> dict[str, Stratum]:
    """The strata of a row file by name, one split by window for all."""
    rows, c = file.of("slots"), file.config
    part_of = residual.split((r["window"] for r in rows), c["seed"])
    return {s: Stratum([r for r in rows if r["stratum"] == s], c["vocab"], part_of, c["seed"]) for s in c["strata"]}


def ways(s: Stratum) -> dict[str, tuple[Number, float, bool]]:
    """By measure: what model 6 adds to model 5, the least it must, and whether it does with its interval above zero."""
    out = {}
    for name, (measure, sign, least) in ADDS.items():
        number = s.gain(BOTH, GAP, measure, sign)
        out[name] = number, least, number[0] is not None and number[0] >= least and number[1] > 0
    return out


def measured(name: str, s: Stratum) -> dict[str, tuple]:
    """Every metric of one stratum by its name in data/criteria/rprm1.json: the first arguments of :func:`criteria.judge`."""
    n, gain, (rises, largest) = s.test_windows, s.gain(ENTROPY, PROGRESS), s.rises()
    count = lambda value: (value, None, None, n)  # noqa: E731
    over = s.over_shuffled()
    r, r_gap = s.correlation("entropy", less=("gap", "")), s.correlation("gap")
    return {f"{metric}:{name}": v for metric, v in {
        "rises": count(rises), "largest_rise": count(largest), "offsets": count(len(s.counting())), "gain_estimate": count(gain[0]), "gain_low": count(gain[1]), "gain": gain,
        "over_shuffled": count(over if over == over else None), "ways": count(sum(met for *_, met in ways(s).values())), "spread": s.spread(),
        "near": s.within("entropy", NEAR), "far": s.within("entropy", FAR), "far_gap": s.within("gap", FAR, less="entropy"),
        "top1_gain": s.gain(("progress", "top1"), PROGRESS), "r_gap": r_gap, "r_entropy_gap": r, "gain_trained": s.gain(ENTROPY, PROGRESS, offsets=NEAR)}.items()}


def grade(found: Mapping[str, tuple], name: str, rules: criteria.Criteria) -> int | None:
    """0 FAIL, 1 WEAK (criteria 3 and 4) or 2 STRONG (all six) for one stratum, by the thresholds of the main one; None where one is not known."""
    values = {i: found[f"{rules[i].rule.metric.split(':')[0]}:{name}"][0] for i in SIX}
    if any(v is None for v in values.values()):
        return None
    passed = {i: rules[i].rule.passed(v) for i, v in values.items()}
    return 2 if all(passed.values()) else int(passed["3"] and passed["4"])


def numbers(file: RowFile, found: Strata | None = None) -> dict[str, tuple]:
    """Every metric that data/criteria/rprm1.json names. A stratum of fewer than FEWEST windows decides nothing: its numbers have no interval."""
    rules, out = criteria.load("rprm1"), {}
    for name, s in (found or strata(file)).items():
        mine = measured(name, s)
        mine[f"grade:{name}"] = (grade(mine, name, rules), None, None, s.test_windows)
        if s.windows < FEWEST:
            mine = {k: (v[0], None, None, v[3], f"{s.windows} windows, {FEWEST} asked for") for k, v in mine.items()}
        out |= mine
    return out


def outcomes(file: RowFile, found: Strata | None = None) -> list[criteria.Outcome]:
    """The criteria applied to the rows. Raises BadInput if these were measured under other rules."""
    return criteria.load("rprm1").judged(file, lambda f: numbers(f, found))


# --- tables ---

def sizes(found: Strata) -> pd.DataFrame:
    """Windows and positions by stratum and part, and how often drafter and target agree on the test windows."""
    out = []
    for name, s in found.items():
        by_part = [len(set(s.window[s.part == p])) for p in (residual.FIT, residual.VALIDATION, residual.TEST)]
        out.append({"stratum": LABELS[name], "windows": s.windows, "positions": len(s.y), "fit": by_part[0], "validation": by_part[1], "test": by_part[2],
                    "test positions": int(s.test.sum()), "acceptance": float(s.y[s.test].mean())})
    return frame(out, fit="windows", validation="windows", test="windows")


def models(s: Stratum) -> pd.DataFrame:
    """The eight models on the test windows, and their AUROC on the validation windows; model 7 is the mean of its shuffles."""
    from sklearn.metrics import average_precision_score  # seconds to import, which other pages need not wait for

    out = []
    for name, columns in MODELS.items():
        if "shuffled" in columns:
            ranks, losses, precision, other = s.shuffles().mean(), s.shuffles(log_loss).mean(), None, None
        else:
            ranks, losses, other = s.value(columns), s.value(columns, log_loss), s.value(columns, part=residual.VALIDATION)
            precision = float(average_precision_score(s.y[s.test], s.score(columns)[s.test]))
        out.append({"model": name, "AUROC": ranks, "AUPRC": precision, "log loss": losses, "AUROC, validation": other})
    return frame(out, **{"log loss": "nats"})


def shuffled(found: Strata) -> pd.DataFrame:
    """The control of every stratum beside model 4."""
    out = []
    for name, s in found.items():
        low, high = (float(v) for v in pd.Series(s.shuffles()).quantile([0.025, 0.975]))
        out.append({"stratum": LABELS[name], "mean AUROC": float(s.shuffles().mean()), "2.5 pct": low, "97.5 pct": high, "model 4 AUROC": s.value(ENTROPY)})
    return frame(out)


def increments(found: Strata) -> pd.DataFrame:
    """What the entropy adds, with intervals over test windows."""
    out = []
    for name, s in found.items():
        least = criteria.load("rprm1")["3"].rule.threshold
        lines = [("4 over 1, AUROC", s.gain(ENTROPY, PROGRESS), least)] + [(f"6 over 5, {way}", number, bar) for way, (number, bar, _) in ways(s).items()]
        out += [{"stratum": LABELS[name], "comparison": what, "change": v[0], "low": v[1], "high": v[2], "bar": bar} for what, v, bar in lines]
    return frame(out, low="95 %", high="95 %")


def groups(found: Strata, signal: str = "entropy") -> pd.DataFrame:
    """Acceptance on test positions by fifths of one signal."""
    return frame([{"stratum": LABELS[name], "fifth": g["group"] + 1, **{k: v for k, v in g.items() if k != "group"}} for name, s in found.items() for g in s.groups(signal)], low="95 %", high="95 %")


def by_offset(s: Stratum) -> pd.DataFrame:
    """Within each offset: acceptance, and the AUROC of two signals alone with their intervals."""
    out = []
    for o in sorted(set(s.offset.tolist())):
        at, line = s.test & (s.offset == o), {"offset": o, "n": int((s.test & (s.offset == o)).sum())}
        line["acceptance"] = float(s.y[at].mean())
        for signal in ("entropy", "gap"):
            line[signal], line[f"{signal} low"], line[f"{signal} high"], _ = s.within(signal, [o])
        out.append(line)
    return frame(out)


def correlations(found: Strata) -> pd.DataFrame:
    """Pearson's r over all positions of a stratum, intervals over windows."""
    pairs = [(f"{label} and acceptance", (signal, "")) for signal, label in SIGNALS.items()] + [("draftability gap and drafter's entropy", ("gap", "entropy"))]
    out = []
    for name, s in found.items():
        for what, pair in pairs:
            value, low, high, _ = s.correlation(*pair)
            out.append({"stratum": LABELS[name], "pair": what, "r": value, "low": low, "high": high})
    return frame(out, low="95 %", high="95 %")


def diagnostics(s: Stratum) -> pd.DataFrame:
    """Other measures of the drafter's uncertainty: what each adds to progress."""
    out = []
    for signal, label in MEASURES.items():
        value, low, high, _ = s.gain(("progress", signal), PROGRESS)
        out.append({"measure": label, "AUROC with progress": s.value(("progress", signal)), "gain": value, "low": low, "high": high})
    return frame(out, low="95 %", high="95 %")
