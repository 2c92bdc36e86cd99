"""Exact NDCG@K: jaxrank and its peers on the same arrays, in one process, alternated.

    python -m tests.benchmarks.exact [--only 1024x1000] [--repeats 15] [--json FILE]

Each row is one way to get NDCG@K of the same lists; its time is the median over the rounds with the quartiles, and the
ratio is the median over rounds of its time to ours in that round. `limit` is one jitted reduction that reads the same
arrays. Peers that are not installed are left out (the extra `bench` brings most; torch, torchmetrics and ranx are yours
to install).
"""

import argparse
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jaxrank
from tests.benchmarks._clock import Way, alternated, arguments, compile_seconds, installed, report, rows

SIZES = [(1, 100), (1024, 128), (1024, 1000), (64, 10_000), (8, 100_000), (1, 1_000_000)]
SLOW = 2_000_000  # list slots beyond which peers that take a Python step a list are left out


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


def peers(scores: jax.Array, labels: jax.Array, k: int | None) -> dict[str, Way]:
    batch, n = scores.shape
    cut = n if k is None else k
    host_scores, host_labels = np.asarray(scores, np.float32), np.asarray(labels)
    ways: dict[str, Way] = {
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
    if batch * n <= SLOW and installed("torchmetrics"):
        ways["torchmetrics"] = torchmetrics_way(host_scores, host_labels, cut)
    if batch * n <= SLOW and installed("sklearn"):
        from sklearn.metrics import ndcg_score

        gains = 2**host_labels - 1
        ways["scikit-learn"] = lambda: ndcg_score(gains, host_scores, k=cut)
    if batch * n <= SLOW and cut < n and installed("pytrec_eval"):
        ways["pytrec_eval"] = pytrec_way(host_scores, host_labels, cut)
    if batch * n <= SLOW and cut < n and installed("ranx"):
        ways["ranx"] = ranx_way(host_scores, host_labels, cut)
    return ways


def torchmetrics_way(scores: np.ndarray, labels: np.ndarray, k: int) -> Way:
    import torch
    from torchmetrics.functional.retrieval import retrieval_normalized_dcg

    lists = [tuple(map(torch.from_numpy, pair)) for pair in zip(scores.copy(), (2**labels - 1).astype(np.int64))]
    return lambda: [retrieval_normalized_dcg(*pair, top_k=k) for pair in lists]


def ranx_way(scores: np.ndarray, labels: np.ndarray, k: int) -> Way:
    import ranx

    qrels, run = judged(scores, labels)
    given = ranx.Qrels(qrels), ranx.Run(run)
    return lambda: ranx.evaluate(*given, f"ndcg_burges@{k}")


def judged(scores: np.ndarray, labels: np.ndarray) -> tuple[dict, dict]:
    """The same lists as qrels and run, by document."""
    names = [f"d{i}" for i in range(scores.shape[1])]
    qrels = {str(q): dict(zip(names, map(int, row))) for q, row in enumerate(labels)}
    return qrels, {str(q): dict(zip(names, map(float, row))) for q, row in enumerate(scores)}


def pytrec_way(scores: np.ndarray, labels: np.ndarray, k: int) -> Way:
    import pytrec_eval

    qrels, run = judged(scores, labels)
    evaluator = pytrec_eval.RelevanceEvaluator(qrels, {f"ndcg_cut.{k}"})
    return lambda: evaluator.evaluate(run)


# ---------------------------------------------------------------------------------------------------------- the cases


def measure(batch: int, n: int, rounds: int, budget: float) -> list[dict]:
    rng = np.random.default_rng(0)
    scores = jnp.asarray(rng.normal(size=(batch, n)), jnp.float32)
    labels = jnp.asarray(rng.choice(5, size=(batch, n), p=[0.5, 0.2, 0.15, 0.1, 0.05]), jnp.float32)
    where = jnp.asarray(rng.random((batch, n)) < 0.9)
    measured = []
    for k in (1, 10, 100, None):
        if k is not None and k >= n:
            continue
        ndcg = partial(jaxrank.ndcg_at_k, k=k)
        ours = jax.jit(ndcg)
        ways = {"jaxrank": lambda ours=ours: ours(scores, labels), **peers(scores, labels, k)}
        if k == 10 or k is None:
            ways |= variants(scores, labels, where, k)
        case = f"{batch} x {n}, K={k or 'all'}"
        measured += rows(case, "jaxrank", alternated(ways, rounds, budget))
        measured[-len(ways)]["compile s"] = compile_seconds(ndcg, scores, labels)
    return measured


def variants(scores: jax.Array, labels: jax.Array, where: jax.Array, k: int | None) -> dict[str, Way]:
    """jaxrank on other dtypes, masks and tie rules."""
    tied = jnp.round(scores * 4)
    given = {
        "bfloat16": (scores.astype(jnp.bfloat16), {}),
        "its values, float32": (scores.astype(jnp.bfloat16).astype(jnp.float32), {}),  # of which some are tied
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


def table(options: argparse.Namespace) -> list[dict]:
    sizes = [tuple(map(int, options.only.split("x")))] if options.only else SIZES
    measured = [measure(batch, n, options.repeats, options.budget) for batch, n in sizes]
    return sum(measured, [] if options.only else latency())


if __name__ == "__main__":
    options = arguments(__doc__).parse_args()
    report(table(options), options.json)
