"""Retrieval from a catalogue: beside the bare product, a running `top_k` and `implicit`, on the same embeddings.

    python -m tests.benchmarks.retrieval [--only 1024x1000000] [--repeats 5] [--json FILE]

`product alone` makes all scores, 4000 items at a time, and keeps one of each chunk: no exact search can do without.
Ratios are to its time in the same round. `pip install implicit` brings the peer; it is left out without.
"""

import argparse
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jaxrank
from tests.benchmarks._clock import Way, alternated, arguments, installed, report, rows

SIZES = [(1024, 20_000), (1024, 100_000), (1024, 1_000_000)]
DIMENSIONS, K, SEEN, RELEVANT, CHUNK = 64, 100, 50, 20, 4000


def over_chunks(step, start, items):
    """`step(state, chunk, index of its first item)` over the catalogue."""

    def body(i, state):
        return step(state, lax.dynamic_slice_in_dim(items, i * CHUNK, CHUNK), i * CHUNK)

    return lax.fori_loop(0, len(items) // CHUNK, body, start)


@jax.jit
def product_alone(queries, items):
    return over_chunks(lambda kept, chunk, _: kept + (queries @ chunk.T)[:, :1], jnp.zeros((len(queries), 1)), items)


@jax.jit
def running_top_k(queries, items):
    """The obvious search: the K best so far beside a chunk's scores, and `lax.top_k` of both."""

    def step(best, chunk, first):
        values, indices = best
        values, places = lax.top_k(jnp.concatenate([values, queries @ chunk.T], axis=1), K)
        seen = jnp.take_along_axis(indices, jnp.minimum(places, K - 1), axis=1)
        return lax.optimization_barrier((values, jnp.where(places < K, seen, places - K + first)))

    nothing = jnp.full((len(queries), K), -jnp.inf)
    return over_chunks(step, (nothing, jnp.full_like(nothing, -1, dtype=jnp.int32)), items)


def ways(users: int, items: int) -> tuple[dict[str, Way], float]:
    """What is timed, and the temporary memory of a search, MiB."""
    rng = np.random.default_rng(0)
    queries, catalogue = (rng.normal(size=(n, DIMENSIONS)).astype(np.float32) for n in (users, items))
    seen, relevant = (rng.integers(0, items, (users, n)).astype(np.int32) for n in (SEEN, RELEVANT))
    given = jnp.asarray(queries), jnp.asarray(catalogue)
    low = [array.astype(jnp.bfloat16) for array in given]
    search = jax.jit(partial(jaxrank.retrieve_top_k, k=K)).lower(*given).compile()
    without = jax.jit(lambda q, x: jaxrank.retrieve_top_k(q, x, k=K, exclude=seen))
    ndcg = jax.jit(lambda q, x: jaxrank.retrieval_ndcg_at_k(q, x, relevant, K, exclude=seen).mean())
    timed: dict[str, Way] = {
        "product alone": lambda: product_alone(*given),
        "retrieve_top_k": lambda: search(*given),
        "retrieve_top_k, bfloat16": lambda: jaxrank.retrieve_top_k(*low, k=K),
        "retrieve_top_k, exclude": lambda: without(*given),
        "retrieval_ndcg_at_k": lambda: ndcg(*given),
        "running lax.top_k": lambda: running_top_k(*given),
    }
    if installed("implicit"):
        timed |= implicit_ways(queries, catalogue, seen, relevant)
    return timed, search.memory_analysis().temp_size_in_bytes / 2**20


def implicit_ways(queries: np.ndarray, catalogue: np.ndarray, seen: np.ndarray, relevant: np.ndarray) -> dict[str, Way]:
    from implicit.cpu.als import AlternatingLeastSquares
    from implicit.cpu.topk import topk
    from implicit.evaluation import ranking_metrics_at_k
    from scipy.sparse import csr_matrix

    def interactions(ids: np.ndarray) -> csr_matrix:
        row = np.repeat(np.arange(len(ids)), ids.shape[1])
        return csr_matrix((np.ones(ids.size, np.float32), (row, ids.ravel())), (len(queries), len(catalogue)))

    model = AlternatingLeastSquares(factors=DIMENSIONS)
    model.user_factors, model.item_factors = queries, catalogue
    train, test = interactions(seen), interactions(relevant)
    return {
        "implicit, top K": lambda: topk(catalogue, queries, K),
        "implicit, ranking metrics": lambda: ranking_metrics_at_k(model, train, test, K, show_progress=False),
    }


def table(options: argparse.Namespace) -> list[dict]:
    measured = []
    for users, items in [tuple(map(int, options.only.split("x")))] if options.only else SIZES:
        timed, memory = ways(users, items)
        case = f"{users} x {items} x {DIMENSIONS}"
        measured += rows(case, "product alone", alternated(timed, options.repeats, options.budget))
        measured[1 - len(timed)]["MiB"] = memory
    return measured


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.set_defaults(repeats=5, budget=10.0)
    options = parser.parse_args()
    report(table(options), options.json)
