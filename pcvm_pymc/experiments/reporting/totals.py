"""Sections that sum ranks, where tests average them: points in total."""

from collections.abc import Iterable

import pandas as pd

from pcvm_pymc.experiments.catalogue import printed_of
from pcvm_pymc.experiments.reporting.report import Report, Section
from pcvm_pymc.experiments.reporting.tables import measured
from pcvm_pymc.experiments.statistics import MEASURES

__all__ = ["pointed"]


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
