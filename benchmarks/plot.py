"""Draw the picture of a result with matplotlib, which no other module imports."""

from __future__ import annotations

from pathlib import Path

from benchmarks.results import LIMIT, Table

# A contestant has the same colour in every picture; pydp2 stands out, peers are muted.
COLOURS = {
    "pydp2": "#d1495b",
    "torch": "#33658a",
    "spdl": "#5b8fb9",
    "paddle": "#8fb8de",
    "grain": "#6a994e",
    "tf.data": "#a7c957",
    "ray": "#b8b8b8",
}


def draw(tables: list[Table], file: Path) -> None:
    """Save a picture of the samples/s of a first pass against the bare generator, with a group of bars for each
    workload.

    It has only the tables with the number of workers of the first one. No display is needed.
    """
    from matplotlib.figure import Figure
    from matplotlib.patheffects import withStroke

    tables = [table for table in tables if table.workers == tables[0].workers]
    shares = [{row.contestant: row.of_bare for row in table.rows} for table in tables]
    names = [name for name in COLOURS if any(name in of for of in shares)]
    width = 0.86 / len(names)
    figure = Figure(figsize=(10, 4.4), layout="constrained")
    axes = figure.subplots()
    axes.axhline(1.0, color="#333333", linewidth=1, linestyle=(0, (4, 3)), zorder=1, label="bare generator")
    for number, name in enumerate(names):
        positions = [group + (number - (len(names) - 1) / 2) * width for group in range(len(tables))]
        heights = [of.get(name) or 0.0 for of in shares]
        axes.bar(positions, heights, width * 0.92, color=COLOURS[name], label=name, zorder=2)
        for position, height in zip(positions, heights, strict=True):
            if height:
                axes.annotate(
                    f"{height:.2f}".removeprefix("0"),
                    (position, height),
                    xytext=(0, 2),
                    textcoords="offset points",
                    ha="center",
                    va="bottom",
                    fontsize=7.5,
                    fontweight="bold" if name == "pydp2" else "normal",
                    color="#333333",
                    path_effects=[withStroke(linewidth=2.5, foreground="white")],
                )
    labels = [f"{table.workload}\n1 = {_rate(table)}/s" for table in tables]
    axes.set_xticks(range(len(tables)), labels)
    axes.tick_params(axis="x", length=0)
    axes.set_ylabel(f"samples/s, as a share of the generator alone\nin {tables[0].workers} processes")
    axes.set_ylim(0, max(1.12, *(1.1 * (share or 0) for of in shares for share in of.values())))
    axes.grid(axis="y", alpha=0.25, zorder=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(ncols=len(names) + 1, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False, fontsize=9)
    figure.savefig(file, dpi=150)


def _rate(table: Table) -> str:
    rate = next((row.rate for row in table.rows if row.contestant == LIMIT), None)
    return "?" if rate is None else f"{rate:,.0f}"
