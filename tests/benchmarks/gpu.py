"""NDCG on the accelerator at hand: values against the CPU, and bytes per second against a copy of the same arrays.

    python -m tests.benchmarks.gpu [--only 1024x1000] [--repeats 15] [--json FILE]

Takes below 3 minutes, and needs jaxrank and jax alone. GB/s counts one read of scores and labels (for `copy`, which
writes them too, twice as much), so that a metric that read its input once at full speed would show half of copy's
time. Without an accelerator it runs on the CPU.
"""

import argparse
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jaxrank
from tests.benchmarks._clock import Way, alternated, arguments, compile_seconds, report, rows
from tests.benchmarks.exact import SIZES, limit, two_top_k

SMOOTH = [(1024, 128), (64, 2048), (1, 100_000)]


@jax.jit
def copy(scores, labels):
    return lax.optimization_barrier((scores + 1, labels + 1))


def arrays(batch: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = rng.choice(5, size=(batch, n), p=[0.5, 0.2, 0.15, 0.1, 0.05])
    return rng.normal(size=(batch, n)).astype(np.float32), labels.astype(np.float32)


def check(name: str, function, given: tuple, tolerance: float) -> None:
    """The accelerator's result against the CPU's."""
    cpu = jax.local_devices(backend="cpu")[0]
    want = jax.device_get(jax.jit(function)(*jax.device_put(given, cpu)))
    got = jax.device_get(jax.jit(function)(*jax.device_put(given)))
    for some, right in zip(jax.tree.leaves(got), jax.tree.leaves(want)):
        np.testing.assert_allclose(some, right, rtol=tolerance, atol=tolerance, err_msg=name)


def with_bandwidth(table: list[dict], given: tuple) -> list[dict]:
    read = sum(array.nbytes for array in given)
    for row in table:
        row["GB/s"] = read * (2 if row["way"] == "copy" else 1) / row["ms"] / 1e6
    return table


def exact_rows(batch: int, n: int, rounds: int, budget: float) -> list[dict]:
    host = arrays(batch, n)
    scores, labels = given = tuple(jax.device_put(host))
    table = []
    for k in (10, None):
        ndcg = partial(jaxrank.ndcg_at_k, k=k)
        check(f"{batch} x {n}, K={k}", ndcg, host, 2e-6)
        ours, tied = jax.jit(ndcg), jnp.round(scores * 4)
        ways: dict[str, Way] = {
            "jaxrank": partial(ours, *given),
            "jaxrank, bfloat16": partial(ours, scores.astype(jnp.bfloat16), labels),
            "jaxrank, tied scores": partial(ours, tied, labels),
            "two top_k": partial(two_top_k, *given, k or n),
            "limit": partial(limit, *given),
            "copy": partial(copy, *given),
        }
        measured = rows(f"{batch} x {n}, K={k or 'all'}", "jaxrank", alternated(ways, rounds, budget))
        measured[0]["compile s"] = compile_seconds(ndcg, *given)
        table += with_bandwidth(measured, given)
    return table


def smooth_rows(batch: int, n: int, rounds: int, budget: float) -> list[dict]:
    host = arrays(batch, n)
    given = tuple(jax.device_put(host))
    relaxations = {"NeuralSort": jaxrank.neural_sort, "SoftSort": jaxrank.soft_sort}
    ways: dict[str, Way] = {}
    for name, relaxation in relaxations.items():
        step = jax.value_and_grad(partial(jaxrank.smooth_ndcg_loss, k=10, relaxation=relaxation))
        check(f"smooth, {name}, {batch} x {n}", step, host, 2e-6)
        ways[f"jaxrank, {name}"] = partial(jax.jit(step), *given)
    ways["copy"] = partial(copy, *given)
    case = f"smooth, value and gradient, {batch} x {n}, K=10"
    return with_bandwidth(rows(case, "jaxrank, NeuralSort", alternated(ways, rounds, budget)), given)


def table(options: argparse.Namespace) -> list[dict]:
    chosen = [tuple(map(int, options.only.split("x")))] if options.only else None
    limits = options.repeats, min(options.budget, 1.0)
    exact = [exact_rows(*size, *limits) for size in chosen or SIZES]
    smooth = [smooth_rows(*size, *limits) for size in chosen or SMOOTH]
    return [row for rows_of_size in exact + smooth for row in rows_of_size]


if __name__ == "__main__":
    options = arguments(__doc__).parse_args()
    report(table(options), options.json)
