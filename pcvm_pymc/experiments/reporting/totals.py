"""Sections that sum or average ranks otherwise than tests do: points in total, and ranks of seconds."""

from collections.abc import Iterable

import pandas as pd

from pcvm_pymc.experiments.catalogue import printed_of
from pcvm_pymc.experiments.reporting.report import Report, Section
from pcvm_pymc.experiments.reporting.tables import measured
from pcvm_pymc.experiments.statistics import MEASURES, average_ranks

__all__ = ["pointed", "timed"]


def pointed(report: Report) -> Iterable[Section]:
    """Yield the measures, and the points of Kropotov et al. (2006), Table I's last line.

    On each set the smallest mean error has one point, the next two, and so on; points are summed. What looks
    at the test rows is left out, as in the paper.
    """
    yield from measured(report)
    table = report.pivot("error")
    rivals = [name for name in table if not str(name).endswith("_best")]
    table = table[rivals].dropna()
    if table.empty or len(rivals) < 2:
        return
    points = pd.DataFrame({"points": table.rank(axis=1).sum()})
    printed = printed_of(report.experiment)
    text = [f"On each of the {len(table)} sets the least error has one point, the next two, ..."]
    if printed is not None:
        errors = printed[printed["measure"] == "error"]
        wide = errors.pivot_table(index="set", columns="classifier", values="mean")
        wide = wide.reindex(columns=rivals)
        common = [name for name in table.index if name in wide.index]
        points["the paper's, same sets"] = wide.loc[common].rank(axis=1).sum()
        points[f"the paper's, all {len(wide)}"] = wide.rank(axis=1).sum()
        text.append("The paper's are counted anew from its printed errors.")
    yield Section(f"Points in total: {MEASURES['error']}", tuple(text), points.map("{:g}".format))


def timed(report: Report) -> Iterable[Section]:
    """Yield mean ranks of the seconds of a fit (Chen et al. 2009, Table VIII)."""
    wide = report.timing.pivot_table(index="set", columns="classifier", values="seconds")
    names = [name for name in report.experiment.classifiers if name in wide]
    wide = wide[names].dropna()
    if wide.empty or len(names) < 2:
        return
    ranks = pd.DataFrame({"mean rank": average_ranks(wide).map("{:.1f}".format)})
    printed = printed_of(report.experiment)
    if printed is not None:
        part = printed[printed["measure"] == "seconds"].set_index("classifier")["mean"]
        ranks = ranks.join(part.map("{:.1f}".format).rename("the paper's")).fillna("")
    yield Section(
        "Mean ranks of seconds",
        (f"Over the {len(wide)} sets that all {len(names)} have; 1 is the fastest.",),
        ranks,
    )
