"""Smooth NDCG@10, value and gradient: jaxrank, the textbook, other losses, in one process, alternated.

    python -m tests.benchmarks.smooth [--only 64x2048 | --only network] [--repeats 15] [--json FILE]

Each row is the value and the gradient of a mean loss over the same lists; the ratio is the median over rounds of its
time to that of our NeuralSort loss in that round; MiB is the temporary memory of the compiled program. `textbook` is
NeuralSort as it is printed, its first K rows: every pair of scores is compared. The rows of the network are steps of
`jaxrank.training` with the loss named.
"""

import argparse
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jaxrank
from jaxrank import training
from tests.benchmarks._clock import Way, alternated, arguments, compile_seconds, installed, report, rows

SIZES = [(64, 32), (64, 128), (1024, 128), (64, 512), (64, 2048), (1, 10_000), (1, 100_000)]
PAIRS = 2**29  # compared pairs beyond which the textbook is left out: 2 GiB
K = 10


# ----------------------------------------------------------------------------------------------------------- the losses


def textbook_loss(scores: jax.Array, labels: jax.Array) -> jax.Array:
    """1 - NDCG@10 by the first 10 rows of Grover et al. (2019), equation 5, at temperature 1."""
    n = scores.shape[-1]
    k = min(K, n)
    rank = jnp.arange(1, k + 1, dtype=jnp.float32)
    total = jnp.abs(scores[:, :, None] - scores[:, None, :]).sum(axis=-1)
    logits = (n + 1 - 2 * rank)[None, :, None] * scores[:, None, :] - total[:, None, :]
    gains = jnp.exp2(labels) - 1
    ranked = (jax.nn.softmax(logits, axis=-1) @ gains[:, :, None])[..., 0]
    discount = 1 / jnp.log2(rank + 1)
    return 1 - (ranked @ discount / jnp.maximum(lax.top_k(gains, k)[0] @ discount, 1e-9)).mean()


def softmax_loss(scores: jax.Array, labels: jax.Array) -> jax.Array:
    """Listwise softmax cross entropy."""
    share = labels / jnp.maximum(labels.sum(axis=-1, keepdims=True), 1e-9)
    return -(share * jax.nn.log_softmax(scores, axis=-1)).sum(axis=-1).mean()


def losses(batch: int, n: int) -> dict:
    """By name; ours first."""
    smooth = jaxrank.smooth_ndcg_loss
    named = {
        "jaxrank, NeuralSort": partial(smooth, k=K),
        "jaxrank, balance 5": partial(smooth, k=K, balance=5),
        "jaxrank, SoftSort": partial(smooth, k=K, relaxation=jaxrank.soft_sort),
        "jaxrank, Laplace ranks": partial(jaxrank.approx_ndcg_loss, k=K, kernel="laplace"),
        "listwise softmax": softmax_loss,
    }
    if batch * n <= 2**17:
        named["jaxrank, NeuralSort, all"] = smooth
        named["jaxrank, lambda"] = partial(jaxrank.lambda_ndcg_loss, k=K)
    if batch * n * n <= PAIRS:
        named["textbook, K rows"] = textbook_loss
        named |= rax_losses()
    return named


def rax_losses() -> dict:
    if not installed("rax"):
        return {}
    import rax

    named = {"rax softmax": rax.softmax_loss}
    if hasattr(jax, "util"):  # which its transformations of metrics need
        named["rax approx@10"] = rax.approx_t12n(partial(rax.ndcg_metric, topn=K))
    return named


# ---------------------------------------------------------------------------------------------------------- the cases


def arrays(batch: int, n: int) -> tuple[jax.Array, jax.Array]:
    rng = np.random.default_rng(0)
    labels = rng.choice(5, size=(batch, n), p=[0.5, 0.2, 0.15, 0.1, 0.05])
    return jnp.asarray(rng.normal(size=(batch, n)), jnp.float32), jnp.asarray(labels, jnp.float32)


def measure(batch: int, n: int, rounds: int, budget: float) -> list[dict]:
    given = arrays(batch, n)
    steps = {name: jax.jit(jax.value_and_grad(loss)) for name, loss in losses(batch, n).items()}
    memory = {name: step.lower(*given).compile().memory_analysis() for name, step in steps.items()}
    ways: dict[str, Way] = {name: partial(step, *given) for name, step in steps.items()}
    ways["top_k alone"] = partial(jax.jit(partial(lax.top_k, k=min(K, n))), given[0])
    measured = rows(f"smooth, {batch} x {n}, K=10", next(iter(ways)), alternated(ways, rounds, budget))
    for row in measured:
        if analysis := memory.get(row["way"]):
            row["MiB"] = analysis.temp_size_in_bytes / 2**20
    measured[0]["compile s"] = compile_seconds(jax.value_and_grad(losses(batch, n)["jaxrank, NeuralSort"]), *given)
    return measured


def network_steps(rounds: int, budget: float, batch: int = 32, n: int = 128, features: int = 136) -> list[dict]:
    """A training step of the network that `python -m jaxrank train` trains, by loss."""
    inputs = jnp.asarray(np.random.default_rng(0).normal(size=(batch, n, features)), jnp.float32)
    labels, where = arrays(batch, n)[1], jnp.ones((batch, n), bool)
    params, optimiser = training.init_mlp(jax.random.key(0), features), training.default_optimiser()

    def step(name: str) -> Way:
        held = [jax.tree.map(jnp.copy, params), optimiser.init(params)]

        def once() -> jax.Array:
            *held[:], loss = training.train_step(
                training.apply_mlp, training.named_loss(name, k=K), optimiser, *held, inputs, labels, where
            )
            return loss

        return once

    ways = {f"step with {name}": step(name) for name in ("softmax", "smooth", "neural", "laplace", "lambda", "mse")}
    case = f"network, {batch} x {n} x {features}"
    return rows(case, "step with softmax", alternated(ways, rounds, budget))


def table(options: argparse.Namespace) -> list[dict]:
    given, network = (options.repeats, options.budget), options.only == "network"
    sizes = [tuple(map(int, options.only.split("x")))] if options.only and not network else SIZES
    measured = [] if network else [row for size in sizes for row in measure(*size, *given)]
    return measured + (network_steps(*given) if network or not options.only else [])


if __name__ == "__main__":
    options = arguments(__doc__).parse_args()
    report(table(options), options.json)
