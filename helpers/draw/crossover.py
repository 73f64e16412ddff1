"""Seconds over bytes for each algorithm of an all-reduce: where lines cross, another one becomes the fastest."""

from __future__ import annotations

from helpers.draw.chart import Chart, chart, chart_axes
from helpers.quantities import costs
from helpers.specs import Link

LOOKS = {
    "server": ("#9aa3ad", ":"),
    "tree": ("#e69f00", "--"),
    "ring": ("#0072b2", "-"),
    "halving_doubling": ("#009e73", "-."),
}


def all_reduce_chart(num_ranks: int, link: Link) -> Chart:
    """From 1 kB to 10 GB, predicted. A mark stands where the ring overtakes the tree."""
    sizes = [10 ** (k / 8) for k in range(24, 81)]
    axes = chart_axes(f"All-reduce on {num_ranks} ranks, {link.latency * 1e6:g} µs, {link.bandwidth / 1e9:g} GB/s")
    for algorithm, (colour, style) in LOOKS.items():
        times = [costs.seconds("all_reduce", size, num_ranks, link, algorithm) for size in sizes]
        axes.loglog(sizes, times, style, color=colour, linewidth=2, label=algorithm.replace("_", "-"))
    crossing = costs.crossover_bytes("all_reduce", num_ranks, link, "tree", "ring")
    axes.axvline(crossing, color="#808080", linewidth=1)
    axes.text(crossing * 1.15, 3, f"ring overtakes tree\nat {crossing / 1e6:.1f} MB")
    axes.set(xlabel="bytes of the tensor", ylabel="seconds, predicted")
    axes.legend(loc="upper left")
    return chart(
        axes, f"Seconds over bytes for four algorithms. The ring overtakes the tree at {crossing / 1e6:.1f} MB."
    )
