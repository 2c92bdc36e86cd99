"""The losses that training can choose by name: those on the surrogates, and two to compare them with."""

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxrank._arrays import check_option
from jaxrank.losses import approx_ndcg_loss, lambda_ndcg_loss, smooth_ndcg_loss
from jaxrank.relaxations import neural_sort, soft_sort

# (scores [b, n], labels [b, n], *, where [b, n]) -> a batch's loss, or (total, weight)
LossFn = Callable[..., Any]


def _sum_and_weight(
    values: Float[Array, "*shape"], where: Bool[Array, "*shape"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    return jnp.where(where, values, 0).sum(), where.sum(dtype=values.dtype)


def _mean_of(values: Float[Array, "*shape"], where: Bool[Array, "*shape"]) -> Float[Array, ""]:
    total, weight = _sum_and_weight(values, where)
    return total / jnp.maximum(weight, 1)


@cache
def named_loss(name: str, *, k: int | None = 10, temperature: float | None = None, summed: bool = False) -> LossFn:
    """A loss of the command line, averaged over the lists that have something relevant.

    Args:
      name: one of `LOSSES`. "smooth" is what ranked best in `tests/benchmarks/learning.py`: smooth NDCG by SoftSort at
        temperature 4. A high temperature keeps a gradient for items far below the cutoff, and scores grow into it.
      k: cutoff.
      temperature: None for the loss's own.
      summed: whether it gives `(total, weight)`, which several processes add up, instead of their ratio.

    Returns:
      `(scores, labels, *, where) -> scalar`, the same object for the same arguments, so that steps compile once.

    Raises:
      ValueError: an unknown name, or a temperature for a loss that has none.

    Example:
      >>> loss_fn = named_loss("smooth", k=3)
      >>> scores, where = jnp.zeros((1, 3)), jnp.ones((1, 3), bool)
      >>> loss_fn(scores, jnp.array([[0.0, 1.0, 3.0]]), where=where)
      Array(0.255..., dtype=float32)
    """
    check_option("name", name, tuple(LOSSES))
    loss_fn, options = LOSSES[name]
    if "temperature" in options:
        options = options | {"k": k} | ({} if temperature is None else {"temperature": temperature})
    elif temperature is not None:
        raise ValueError(f"temperature is {temperature}, but the loss {name!r} has none; leave it out")

    reduce = _sum_and_weight if summed else _mean_of

    def loss(scores, labels, *, where):
        relevant = where & jnp.any(where & (labels > 0), -1, keepdims=True)
        values = loss_fn(scores, labels, where=relevant, reduce_fn=None, **options)
        return reduce(values, relevant.any(-1) if values.ndim == 1 else relevant)

    return loss


def softmax_loss(
    scores: Float[Array, "b n"],
    labels: Float[Array, "b n"],
    *,
    where: Bool[Array, "b n"],
    reduce_fn: Callable | None = _mean_of,
) -> Float[Array, "*reduced"]:
    """Listwise softmax cross entropy with the grades, scaled to sum to 1, as the target; for comparison."""
    total = labels.sum(-1, keepdims=True, where=where)
    targets = jnp.where(where, labels, 0) / jnp.where(total > 0, total, 1)
    logs = jnp.where(where, jax.nn.log_softmax(scores, where=where), 0)
    values = -(targets * logs).sum(-1)
    return values if reduce_fn is None else reduce_fn(values, total.squeeze(-1) > 0)


def mse_loss(
    scores: Float[Array, "b n"],
    labels: Float[Array, "b n"],
    *,
    where: Bool[Array, "b n"],
    reduce_fn: Callable | None = _mean_of,
) -> Float[Array, "*reduced"]:
    """Pointwise squared error of the grades, for comparison."""
    values = jnp.where(where, scores - labels, 0) ** 2
    return values if reduce_fn is None else reduce_fn(values, where)


# By name, with the settings that worked best in `tests/benchmarks/learning.py`.
LOSSES: dict[str, tuple[Callable[..., Array], dict[str, Any]]] = {
    "smooth": (smooth_ndcg_loss, {"relaxation": soft_sort, "temperature": 4.0}),
    "soft": (smooth_ndcg_loss, {"relaxation": soft_sort, "temperature": 1.0}),
    "neural": (smooth_ndcg_loss, {"relaxation": neural_sort, "temperature": 1.0, "balance": 5}),
    "approx": (approx_ndcg_loss, {"temperature": 0.3}),
    "laplace": (approx_ndcg_loss, {"temperature": 0.3, "kernel": "laplace"}),
    "lambda": (lambda_ndcg_loss, {"temperature": 1.0}),
    "softmax": (softmax_loss, {}),
    "mse": (mse_loss, {}),
}
