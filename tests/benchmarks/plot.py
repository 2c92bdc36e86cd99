"""The README's picture: NDCG@10 of 64 lists, list length against time, jaxrank and its peers.

python -m tests.benchmarks.plot FILE.svg [--repeats 5]
"""

import argparse
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import jaxrank
from tests.benchmarks._clock import alternated
from tests.benchmarks.exact import peers

LISTS, LENGTHS = 64, (32, 128, 512, 2048, 8192, 32_768, 131_072)


def milliseconds(n: int, rounds: int) -> dict[str, float]:
    rng = np.random.default_rng(0)
    scores = jnp.asarray(rng.normal(size=(LISTS, n)), jnp.float32)
    labels = jnp.asarray(rng.choice(5, size=(LISTS, n), p=[0.5, 0.2, 0.15, 0.1, 0.05]), jnp.float32)
    ours = jax.jit(partial(jaxrank.ndcg_at_k, k=10))
    ways = {"jaxrank": partial(ours, scores, labels), **peers(scores, labels, 10)}
    kept = {name: way for name, way in ways.items() if name != "limit"}
    return {name: float(np.nanmedian(times)) * 1e3 for name, times in alternated(kept, rounds, budget=1.0).items()}


def apart(ends: dict[str, tuple[int, float]], least: float = 1.35) -> dict[str, tuple[int, float]]:
    """Where the names go: at the ends of their lines, and no two in one place."""
    placed: dict[str, tuple[int, float]] = {}
    for name, (n, height) in sorted(ends.items(), key=lambda item: item[1][1]):
        below = [y for x, y in placed.values() if x == n]
        placed[name] = n, max([height, *(y * least for y in below)])
    return placed


def picture(found: dict[int, dict[str, float]]) -> Figure:
    figure = Figure((7, 4.4), layout="constrained")
    axes, ends = figure.subplots(), {}
    for name in dict.fromkeys(name for times in found.values() for name in times):
        points = [(n, times[name]) for n, times in found.items() if name in times]
        style = {"color": "black", "linewidth": 2.5, "zorder": 3} if name == "jaxrank" else {"linewidth": 1.2}
        axes.plot(*zip(*points), marker="o", markersize=3.5, **style)
        ends[name] = points[-1]
    for name, place in apart(ends).items():
        axes.annotate(name, place, xytext=(6, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set(xscale="log", yscale="log", xlabel="items in a list", ylabel="ms", title=f"NDCG@10 of {LISTS} lists, CPU")
    axes.set_xlim(right=LENGTHS[-1] * 4)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="the picture to write")
    parser.add_argument("--repeats", type=int, default=5, help="rounds")
    options = parser.parse_args()
    picture({n: milliseconds(n, options.repeats) for n in LENGTHS}).savefig(options.file, metadata={"Date": None})
