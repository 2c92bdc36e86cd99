"""Exact NDCG@K: jaxrank and its peers on the same arrays, in one process, alternated.

    python tests/benchmarks/exact.py [--only 1024x1000] [--repeats 15] [--json FILE]

Each row is one way to get NDCG@K of the same lists; its time is the median over the rounds with the quartiles, and the
ratio is the median over rounds of its time to ours in that round. `limit` is one jitted reduction that reads the same
arrays. Peers that are not installed are left out (the extra `bench` brings most; torch and ranx are yours to install).
"""

import argparse
import importlib.util
import json
import time
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jaxrank

SIZES = [(1, 100), (1024, 128), (1024, 1000), (64, 10_000), (8, 100_000), (1, 1_000_000)]
SLOW = 2_000_000  # list slots beyond which peers that take a Python step a list are left out


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


# ----------------------------------------------------------------------------------------------------------- the peers


def numpy_ndcg(scores: np.ndarray, labels: np.ndarray, k: int) -> np.ndarray:
    """NumPy written well: a partition, then the order of what it keeps."""

    def top(keys: np.ndarray) -> np.ndarray:
        if k >= keys.shape[1]:
            return np.argsort(-keys, axis=1)
        some = np.argpartition(keys, -k, axis=1)[:, -k:]
        return np.take_along_axis(some, np.argsort(-np.take_along_axis(keys, some, 1), axis=1), 1)

    def dcg(order: np.ndarray) -> np.ndarray:
        return (np.exp2(np.take_along_axis(labels, order, 1)) - 1) @ discounts

    discounts = (1 / np.log2(np.arange(2, min(k, scores.shape[1]) + 2))).astype(np.float32)
    return dcg(top(scores)) / np.maximum(dcg(top(labels)), 1e-9)


def torch_ndcg(scores, labels, k: int):
    import torch

    k = min(k, scores.shape[1])
    discounts = 1 / torch.log2(torch.arange(2, k + 2, dtype=torch.float32))

    def dcg(order):
        return (torch.exp2(labels.gather(1, order)) - 1) @ discounts

    return dcg(scores.topk(k).indices) / dcg(labels.topk(k).indices).clamp(min=1e-9)


@partial(jax.jit, static_argnums=2)
def two_top_k(scores, labels, k: int):
    return [lax.optimization_barrier(lax.top_k(array, min(k, array.shape[1]))) for array in (scores, labels)]


@jax.jit
def limit(scores, labels, where=None):
    total = (scores.astype(jnp.float32) * labels).sum(axis=-1)
    return total if where is None else total + where.sum(axis=-1)


@jax.jit
def sort_pairs(scores, labels):
    """The whole-list ruler: a sort of the scores that carries the labels along."""
    return lax.sort((-scores, labels), num_keys=1)


def peers(scores: jax.Array, labels: jax.Array, k: int | None) -> dict[str, Callable[[], object]]:
    batch, n = scores.shape
    cut = n if k is None else k
    host_scores, host_labels = np.asarray(scores, np.float32), np.asarray(labels)
    ways: dict[str, Callable[[], object]] = {
        "limit": lambda: limit(scores, labels),
        "two top_k" if cut < n else "sort pairs": lambda: (
            two_top_k(scores, labels, cut) if cut < n else sort_pairs(scores, labels)
        ),
        "NumPy": lambda: numpy_ndcg(host_scores, host_labels, cut),
    }
    if installed("rax"):
        import rax

        rax_ndcg = jax.jit(lambda s, y: rax.ndcg_metric(s, y, topn=k, reduce_fn=None))
        ways["rax"] = lambda: rax_ndcg(scores.astype(jnp.float32), labels)
    if installed("torch"):
        import torch

        torch_arrays = [torch.from_numpy(array.copy()) for array in (host_scores, host_labels)]
        ways["torch topk"] = lambda: torch_ndcg(*torch_arrays, cut)
    if batch * n <= SLOW and installed("sklearn"):
        from sklearn.metrics import ndcg_score

        gains = 2**host_labels - 1
        ways["scikit-learn"] = lambda: ndcg_score(gains, host_scores, k=cut)
    if batch * n <= SLOW and cut < n and installed("pytrec_eval"):
        ways["pytrec_eval"] = pytrec_way(host_scores, host_labels, cut)
    return ways


def pytrec_way(scores: np.ndarray, labels: np.ndarray, k: int) -> Callable[[], object]:
    import pytrec_eval

    names = [f"d{i}" for i in range(scores.shape[1])]
    qrels = {str(q): dict(zip(names, map(int, row))) for q, row in enumerate(labels)}
    run = {str(q): dict(zip(names, map(float, row))) for q, row in enumerate(scores)}
    evaluator = pytrec_eval.RelevanceEvaluator(qrels, {f"ndcg_cut.{k}"})
    return lambda: evaluator.evaluate(run)


# ---------------------------------------------------------------------------------------------------------- the clock


def seconds(way: Callable[[], object]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(way())
    return time.perf_counter() - start


def alternated(ways: dict[str, Callable[[], object]], rounds: int, budget: float) -> dict[str, np.ndarray]:
    """Times of each way, in rounds: all of them see the same state of a shared machine. Slow ways run less often."""
    once = {name: (seconds(way), seconds(way))[1] for name, way in ways.items()}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for i in range(rounds):
        for name, way in ways.items():
            often = max(1, int(rounds * min(1, budget / (once[name] * rounds))))
            times[name].append(seconds(way) if i < often else np.nan)
    return {name: np.array(values) for name, values in times.items()}


def rows(case: str, ours: str, times: dict[str, np.ndarray]) -> list[dict]:
    table = []
    for name, values in times.items():
        low, middle, high = np.nanpercentile(values, [25, 50, 75]) * 1e3
        ratio = float(np.nanmedian(values / times[ours]))
        table.append({"case": case, "way": name, "ms": middle, "low": low, "high": high, "ratio": ratio})
    return table


# ---------------------------------------------------------------------------------------------------------- the cases


def compile_seconds(function: Callable, *arrays: jax.Array) -> float:
    start = time.perf_counter()
    jax.jit(lambda *given: function(*given)).lower(*arrays).compile()  # a new function: nothing is cached
    return time.perf_counter() - start


def measure(batch: int, n: int, rounds: int, budget: float) -> list[dict]:
    rng = np.random.default_rng(0)
    scores = jnp.asarray(rng.normal(size=(batch, n)), jnp.float32)
    labels = jnp.asarray(rng.choice(5, size=(batch, n), p=[0.5, 0.2, 0.15, 0.1, 0.05]), jnp.float32)
    where = jnp.asarray(rng.random((batch, n)) < 0.9)
    table = []
    for k in (1, 10, 100, None):
        if k is not None and k >= n:
            continue
        ndcg = partial(jaxrank.ndcg_at_k, k=k)
        ours = jax.jit(ndcg)
        ways = {"jaxrank": lambda ours=ours: ours(scores, labels), **peers(scores, labels, k)}
        if k == 10 or k is None:
            ways |= variants(scores, labels, where, k)
        case = f"{batch} x {n}, K={k or 'all'}"
        table += rows(case, "jaxrank", alternated(ways, rounds, budget))
        table[-len(ways)]["compile s"] = compile_seconds(ndcg, scores, labels)
    return table


def variants(scores: jax.Array, labels: jax.Array, where: jax.Array, k: int | None) -> dict[str, Callable[[], object]]:
    """jaxrank on other dtypes, masks and tie rules."""
    tied = jnp.round(scores * 4)
    given = {
        "bfloat16": (scores.astype(jnp.bfloat16), {}),
        "float16": (scores.astype(jnp.float16), {}),
        "int8": (tied.astype(jnp.int8), {}),
        "mask": (scores, {"where": where}),
        "tied scores": (tied, {}),
        **{f"ties={rule}": (scores, {"ties": rule}) for rule in ("stable", "best", "worst")},
        "tied, stable": (tied, {"ties": "stable"}),
    }
    jitted = {
        name: jax.jit(partial(jaxrank.ndcg_at_k, k=k, **{key: v for key, v in options.items() if key != "where"}))
        for name, (_, options) in given.items()
    }
    return {
        f"jaxrank, {name}": lambda f=jitted[name], s=some, o=options: f(
            s, labels, **({"where": where} if "where" in o else {})
        )
        for name, (some, options) in given.items()
    }


def latency(rounds: int = 300) -> list[dict]:
    """Microseconds a call of one list of 100, jitted by the caller and through the eager public function."""
    scores, labels = jnp.linspace(0, 1, 100), jnp.ones(100)
    jitted = jax.jit(lambda s, y: jaxrank.ndcg_at_k(s, y, 10))
    identity = jax.jit(lambda s, y: s[0])
    ways = {
        "jaxrank under jit": lambda: jitted(scores, labels),
        "jaxrank, eager": lambda: jaxrank.ndcg_at_k(scores, labels, 10),
        "a jitted no-op": lambda: identity(scores, labels),
    }
    return rows("latency, 1 x 100", "jaxrank under jit", alternated(ways, rounds, budget=60.0))


def show(table: list[dict]) -> None:
    case = None
    for row in table:
        if row["case"] != case:
            case = row["case"]
            print(f"\n{case:28s} {'ms':>10s} {'quartiles':>19s} {'ratio':>9s}")
        compiled = f"   compiled in {row['compile s']:.2f} s" if "compile s" in row else ""
        spread = f"{row['low']:9.3f}-{row['high']:.3f}"
        print(f"  {row['way']:26s} {row['ms']:10.3f} {spread:>19s} {row['ratio']:8.2f}x{compiled}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="one size, as 1024x1000")
    parser.add_argument("--repeats", type=int, default=15, help="rounds")
    parser.add_argument("--budget", type=float, default=3.0, help="seconds that one slow way may take in a case")
    parser.add_argument("--json", help="write the rows here too")
    options = parser.parse_args()
    sizes = [tuple(map(int, options.only.split("x")))] if options.only else SIZES
    print(
        f"jax {jax.__version__} on {jax.devices()[0].device_kind}; ratio: time over that of jaxrank in the same round"
    )
    table = latency() if not options.only else []
    for batch, n in sizes:
        table += measure(batch, n, options.repeats, options.budget)
    show(table)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(table, file, indent=1)


if __name__ == "__main__":
    main()
