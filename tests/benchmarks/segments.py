"""NDCG@10 of flat lists: 30 000 queries, 3.7 million rows; and beside its peers, at sizes that they can hold.

    python tests/benchmarks/segments.py [--queries 30000] [--rows 3700000] [--repeats 3] [--smooth]

Times are medians, on the clock and of the processors (the two differ on a busy machine); MiB is the temporary memory of
the compiled program. rax compares all rows with all rows, so it gets few; torchmetrics is timed only where it is
installed.
"""

import argparse
import importlib.util
import time
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import jaxrank


def flat_lists(queries: int, rows: int, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Lists of very unequal lengths, in order; scores, labels, ids."""
    rng = np.random.default_rng(seed)
    share = rng.lognormal(sigma=1.0, size=queries)
    ids = np.sort(rng.choice(queries, size=rows, p=share / share.sum())).astype(np.int32)
    labels = rng.choice(5, size=rows, p=[0.5, 0.2, 0.15, 0.1, 0.05]).astype(np.float32)
    return rng.normal(size=rows).astype(np.float32), labels, ids


def measure(name: str, function: Callable, given: tuple, repeats: int) -> None:
    compiled = jax.jit(function).lower(*given).compile()
    temporary = compiled.memory_analysis().temp_size_in_bytes / 2**20
    given = jax.block_until_ready(tuple(map(jnp.asarray, given)))
    times, cpu = [], []
    jax.block_until_ready(compiled(*given))
    for _ in range(repeats):
        start, used = time.perf_counter(), time.process_time()
        jax.block_until_ready(compiled(*given))
        times.append(time.perf_counter() - start)
        cpu.append(time.process_time() - used)
    wall, used = np.median(times), np.median(cpu)
    print(f"  {name:36s} {wall:8.3f} s {used:8.3f} s of processors {temporary:8.1f} MiB", flush=True)


def values(scores, labels, ids, *, queries: int, **options):
    return jaxrank.segment_ndcg_at_k(scores, labels, ids, num_segments=queries, **{"k": 10, **options})


def loss(scores, labels, ids, *, queries: int, relaxation):
    smooth = jaxrank.segment_smooth_ndcg_at_k(scores, labels, ids, num_segments=queries, k=10, relaxation=relaxation)
    return 1 - smooth.mean()


def large(queries: int, rows: int, repeats: int, smooth: bool) -> None:
    scores, labels, ids = flat_lists(queries, rows)
    print(f"{queries} queries, {rows} rows, the longest list {np.bincount(ids).max()}")
    shuffled = np.random.default_rng(1).permutation(rows)
    ours = partial(values, queries=queries)
    measure("jaxrank, rows grouped by query", ours, (scores, labels, ids), repeats)
    measure("jaxrank, rows in any order", ours, (scores[shuffled], labels[shuffled], ids[shuffled]), repeats)
    measure("jaxrank, grouped, tied scores", ours, (scores.round(1), labels, ids), repeats)
    measure("jaxrank, grouped, whole lists", partial(ours, k=None), (scores, labels, ids), repeats)
    if smooth:
        for relaxation in (jaxrank.neural_sort, jaxrank.soft_sort):
            some = partial(loss, queries=queries, relaxation=relaxation)
            measure(f"{relaxation.__name__}, value and gradient", jax.value_and_grad(some), (scores, labels, ids), 1)


def beside_peers(queries: int, rows: int, repeats: int) -> None:
    scores, labels, ids = flat_lists(queries, rows)
    print(f"{queries} queries, {rows} rows")
    measure("jaxrank", partial(values, queries=queries), (scores, labels, ids), repeats)
    if importlib.util.find_spec("rax"):
        import rax

        ndcg = lambda scores, labels, ids: rax.ndcg_metric(scores, labels, segments=ids, topn=10)
        measure("rax, segments", ndcg, (scores, labels, ids), repeats)
    if importlib.util.find_spec("torchmetrics"):
        import torch
        from torchmetrics.retrieval import RetrievalNormalizedDCG

        metric = RetrievalNormalizedDCG(top_k=10)
        arrays = [torch.from_numpy(array) for array in (scores, labels.astype(np.int64), ids.astype(np.int64))]
        start = time.perf_counter()
        metric(arrays[0], arrays[1], indexes=arrays[2])
        print(f"  {'torchmetrics':44s} {time.perf_counter() - start:8.3f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=30_000)
    parser.add_argument("--rows", type=int, default=3_700_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--smooth", action="store_true", help="the smooth metric and its gradient too")
    options = parser.parse_args()
    print(f"jax {jax.__version__} on {jax.devices()[0].device_kind}")
    for rows in (1000, 4000, 10_000):
        beside_peers(rows // 100, rows, options.repeats)
    large(options.queries, options.rows, options.repeats, options.smooth)


if __name__ == "__main__":
    main()
