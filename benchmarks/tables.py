"""Write the tables of README.md from a run's figures.

python benchmarks/tables.py run.json  (made by pytest's --benchmark-json=run.json)
"""

import json
import sys
from pathlib import Path

README = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def seconds(benchmark):
    median = benchmark["stats"]["median"]
    return f"{median:.3g} s" if median >= 1 else f"{1e3 * median:.3g} ms"


def with_info(benchmark):
    info = benchmark["extra_info"]
    parts = [f"{info['iterations']} it."] if "iterations" in info else []
    parts += [f"{info['vectors']} vectors"] if "vectors" in info else []
    return seconds(benchmark) + (f" ({', '.join(parts)})" if parts else "")


def markdown(header, rows):
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def pick(runs, name, **wanted):
    """Return the benchmark of this name and these parameters; None if it was not run."""
    for each in runs:
        given = each["params"] or {}
        if each["name"].startswith(name) and all(given.get(k) == v for k, v in wanted.items()):
            return each
    return None


def times(runs):
    columns = {
        "EM, `plug_in()`": ("test_em_at_fixed_width", {"prior": "plug_in"}),
        "EM, `jeffreys()`": ("test_em_at_fixed_width", {"prior": "jeffreys"}),
        '`update="em"`, `plug_in()`': ("test_plain_em_at_fixed_width", {}),
        "`PCVMClassifier()`": ("test_pcvm_default", {}),
        "SVC, one fit": ("test_svc_single_fit", {}),
        "SVC, 30 pairs x 5 folds": ("test_svc_grid_search", {}),
    }
    rows = []
    for n in sorted({each["params"]["n"] for each in runs if "n" in (each["params"] or {})}):
        found = [pick(runs, name, n=n, **wanted) for name, wanted in columns.values()]
        rows.append([n, *(with_info(each) if each else "" for each in found)])
    return markdown(["N", *columns], rows)


def memory(runs):
    rows = []
    for prior in ("plug_in", "jeffreys"):
        name = "test_peak_memory"
        whole = pick(runs, name, prior=prior, view="process")["extra_info"]
        parts = pick(runs, name, prior=prior, view="arrays")["extra_info"]
        keys = ("design_matrix", "cross_product", "lower_block")
        rows.append(
            [
                f"`{prior}()`",
                f"{whole['process, whole fit']:.2f}",
                *(f"{parts[k]:.3f}" for k in keys),
            ]
        )
    header = ["hyperprior", "process, whole fit", "arrays: Phi", "arrays: Gram", "arrays: factor"]
    return markdown(header, rows)


def main():
    report = json.loads(Path(sys.argv[1]).read_text())
    runs = report["benchmarks"]
    versions = ", ".join(
        f"{key} {report['machine_info'][key]}" for key in ("python_version",)
    ).replace("python_version", "Python")
    sections = [
        f"Medians of one run on {report['datetime'][:10]}: {versions}, one thread of "
        f"{report['machine_info']['cpu']['count']} cores {report['machine_info']['cpu']['brand_raw']}.",
        "### Seconds",
        times(runs),
        "### Memory at N = 4000, in N x N matrices of doubles",
        memory(runs),
    ]
    before, rest = README.read_text().split(BEGIN)
    after = rest.split(END)[1]
    README.write_text(before + BEGIN + "\n\n" + "\n\n".join(sections) + "\n\n" + END + after)


if __name__ == "__main__":
    main()
