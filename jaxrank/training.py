"""Train a scorer on ranking lists: a small loop on optax, for any `apply(params, features) -> scores`.

Everything an epoch needs is in `TrainState` and the seed: epoch e shuffles by (seed, e). So a state that was saved
after any epoch goes on to the same final figures.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Float32, Int, PyTree

from jaxrank._named_losses import LOSSES, LossFn, mse_loss, named_loss, softmax_loss
from jaxrank._network import Standardiser, apply_mlp, features_of, fit_standardiser, init_mlp
from jaxrank._processes import ALONE, Processes
from jaxrank.data import RankingLists
from jaxrank.data.batching import Batch, padded_batches
from jaxrank.metrics import ndcg_at_k

__all__ = [
    "BATCH_SIZE",
    "LEARNING_RATE",
    "LOSSES",
    "Apply",
    "LossFn",
    "Standardiser",
    "TrainState",
    "apply_mlp",
    "best_feature",
    "default_optimiser",
    "evaluate",
    "features_of",
    "finished",
    "fit",
    "fit_standardiser",
    "init_mlp",
    "init_state",
    "mse_loss",
    "named_loss",
    "ndcg_by_list",
    "predict",
    "softmax_loss",
    "take_lists",
    "train_step",
]

BATCH_SIZE = 32
LEARNING_RATE = 3e-3
MAX_PADDING = 0.4  # every shape is compiled once, which costs more than some empty slots
EVALUATION_NUMBERS = 1 << 24  # feature values in a batch that is only scored


# (params, features [b, n, f]) -> scores [b, n]
Apply = Callable[[PyTree, Array], Array]

# ---------------------------------------------------------------------------------------------------------- the loop


class TrainState(NamedTuple):
    """All that training needs to go on.

    Args:
      params: what `apply` takes.
      opt_state: the optimiser's state.
      best: the parameters of the best epoch so far, by validation NDCG.
      history: a row for each epoch done: mean training loss, validation NDCG.
    """

    params: PyTree
    opt_state: PyTree
    best: PyTree
    history: Float[np.ndarray, "epochs 2"]

    @property
    def epoch(self) -> int:
        """Epochs done."""
        return len(self.history)

    @property
    def best_epoch(self) -> int:
        """The epoch (counted from 1) that `best` comes from; 0 before the first."""
        return int(np.argmax(self.history[:, 1])) + 1 if self.epoch else 0


@cache
def default_optimiser() -> Any:
    """Adam. One object, so that all runs of a process share the compiled step."""
    try:
        import optax
    except ImportError as error:
        raise ImportError('training is by optax: pip install "jaxrank[train]"') from error

    return optax.adam(LEARNING_RATE)


def init_state(params: PyTree, optimiser: Any) -> TrainState:
    """The state before the first epoch; `optimiser` is any optax gradient transformation."""
    return TrainState(params, optimiser.init(params), params, np.zeros((0, 2)))


def finished(state: TrainState, *, epochs: int, patience: int) -> bool:
    """Whether all epochs are done, or `patience` of them went by without a better validation NDCG."""
    return state.epoch >= epochs or state.epoch - state.best_epoch >= patience


def fit(
    apply: Apply,
    state: TrainState,
    train: RankingLists,
    valid: RankingLists,
    *,
    loss_fn: LossFn,
    optimiser: Any,
    k: int | None = 10,
    epochs: int = 100,
    patience: int = 30,
    batch_size: int = BATCH_SIZE,
    seed: int = 0,
    on_epoch: Callable[[TrainState], object] = lambda state: None,
    processes: Processes = ALONE,
) -> TrainState:
    """Trains until `epochs` are done or validation NDCG@k has not risen for `patience` epochs.

    Args:
      apply: `(params, features [b, n, f]) -> scores [b, n]`; a flax module's `apply`, or any function.
      state: what `init_state` gave, or the state of an earlier epoch, to go on from.
      train: lists with features.
      valid: lists with features, for early stopping on the exact `ndcg_at_k`.
      loss_fn: a batch's loss, `(scores, labels, *, where) -> scalar`.
      optimiser: an optax gradient transformation.
      k: cutoff of the validation NDCG.
      epochs: epochs in all, those of `state` among them.
      patience: epochs without a rise before it stops.
      batch_size: lists in a step, at most. They have like lengths.
      seed: shuffles the epochs.
      on_epoch: called with the state after each epoch, to save or show it.
      processes: this process and how many there are. Each has all lists, but rows only of those that it holds, and
        `loss_fn` gives `(total, weight)`, as `named_loss(..., summed=True)` does. All end with the same state.

    Returns:
      The last state; its `best` are the parameters to use.

    Raises:
      ValueError: lists without features, or without queries.
      FloatingPointError: the loss is no longer finite.

    Example:
      >>> import optax, jaxrank
      >>> from jaxrank.data.synthetic import generated_splits
      >>> lists = generated_splits(queries=(20, 10, 10))
      >>> params, optimiser = init_mlp(jax.random.key(0), 24, (8,)), optax.adam(3e-3)
      >>> mse = lambda scores, labels, where: jnp.mean((scores - labels) ** 2, where=where)
      >>> state = init_state(params, optimiser)
      >>> state = fit(apply_mlp, state, lists["train"], lists["valid"], loss_fn=mse, optimiser=optimiser, epochs=2)
      >>> state.history.shape
      (2, 2)
    """
    _check_lists(train=train, valid=valid)
    lengths = None if processes.count == 1 else processes.total(train.lengths)
    step = partial(_step, apply, loss_fn, optimiser, processes)
    while not finished(state, epochs=epochs, patience=patience):
        rng = np.random.default_rng((seed, state.epoch))
        batches = padded_batches(train, batch_size=batch_size, max_padding=MAX_PADDING, rng=rng, lengths=lengths)
        params, opt_state, loss = _run_epoch(step, state, batches)
        value = float(processes.total(evaluate(apply, params, valid, k)).mean())
        state = _recorded(state, params, opt_state, loss, value)
        on_epoch(state)
    return state


@partial(jax.jit, static_argnums=(0, 1, 2), donate_argnums=(3, 4))
def train_step(
    apply: Apply,
    loss_fn: LossFn,
    optimiser: Any,
    params: PyTree,
    opt_state: PyTree,
    features: Any,
    labels: Any,
    where: Any,
) -> tuple[PyTree, PyTree, Array]:
    """One step on a batch: `(params, opt_state, loss)`. Compiled once a shape; it donates what it is given."""
    import optax

    loss, grads = jax.value_and_grad(lambda p: loss_fn(apply(p, features), labels, where=where))(params)
    with jax.numpy_dtype_promotion("standard"):  # optax mixes types, also where the caller is strict
        updates, opt_state = optimiser.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss


def _step(
    apply: Apply,
    loss_fn: LossFn,
    optimiser: Any,
    processes: Processes,
    params: PyTree,
    opt_state: PyTree,
    batch: Batch,
) -> tuple[PyTree, PyTree, Array, Any]:
    """A step on what the processes hold of a batch; the last is how many lists that is."""
    arrays, count = (batch.features, batch.labels, batch.where), batch.where.any(1).sum()
    if processes.count == 1:
        return *train_step(apply, loss_fn, optimiser, params, opt_state, *arrays), count
    sums = processes.sum_on_devices(_sums(apply, loss_fn, params, *arrays, np.float32(count)))
    return _update(optimiser, params, opt_state, sums)


@partial(jax.jit, static_argnums=(0, 1))
def _sums(apply, loss_fn, params, features, labels, where, count):
    """What adds up over processes, as one vector: loss, its weight, lists, gradient."""
    (total, weight), grads = jax.value_and_grad(
        lambda p: loss_fn(apply(p, features), labels, where=where), has_aux=True
    )(params)
    return ravel_pytree((total, weight, count, grads))[0]


@partial(jax.jit, static_argnums=0, donate_argnums=(1, 2))
def _update(optimiser, params, opt_state, sums):
    import optax

    zero = jnp.zeros((), sums.dtype)
    total, weight, count, grads = ravel_pytree((zero, zero, zero, params))[1](sums)
    weight = jnp.maximum(weight, 1)
    with jax.numpy_dtype_promotion("standard"):  # optax mixes types, also where the caller is strict
        updates, opt_state = optimiser.update(jax.tree.map(lambda x: x / weight, grads), opt_state, params)
        return optax.apply_updates(params, updates), opt_state, total / weight, count


def _run_epoch(step: Callable, state: TrainState, batches: Iterator[Batch]) -> tuple[PyTree, PyTree, float]:
    # The step donates what it is given, and the caller may hold `state`: one copy an epoch.
    params, opt_state = jax.tree.map(jnp.copy, (state.params, state.opt_state))
    losses, counts = [], []
    for batch in batches:
        params, opt_state, loss, count = step(params, opt_state, batch)
        losses.append(loss)
        counts.append(count)
    return params, opt_state, float(np.average(jax.device_get(losses), weights=jax.device_get(counts)))


def _recorded(state: TrainState, params: PyTree, opt_state: PyTree, loss: float, value: float) -> TrainState:
    if not np.isfinite(loss):
        raise FloatingPointError(
            f"the loss is {loss} in epoch {state.epoch + 1}; check the features for NaN, or lower the learning rate"
        )
    better = not state.epoch or value > state.history[:, 1].max()
    history = np.vstack([state.history, [[loss, value]]])
    return TrainState(params, opt_state, params if better else state.best, history)


def evaluate(apply: Apply, params: PyTree, lists: RankingLists, k: Any) -> Float[np.ndarray, "lists ..."]:
    """The exact NDCG@k of each list under `apply`; compiled once for each bucket of lengths."""
    features_of(lists)
    return _by_list(lists, lambda batch: _evaluate(apply, k, params, batch.features, batch.labels, batch.where))


@partial(jax.jit, static_argnums=(0, 1))
def _evaluate(apply, k, params, features, labels, where):
    return ndcg_at_k(apply(params, features), labels, k, where=where)


def _by_list(lists: RankingLists, function: Callable[[Batch], Array]) -> Float[np.ndarray, "lists ..."]:
    parts = [(batch.lists, np.asarray(function(batch))) for batch in evaluation_batches(lists)]
    found, values = (np.concatenate(column) for column in zip(*parts, strict=True))
    return values[found >= 0][np.argsort(found[found >= 0])]


def evaluation_batches(lists: RankingLists) -> Iterator[Batch]:
    numbers = 1 if lists.features is None else lists.features.shape[1]
    return padded_batches(lists, max_slots=max(EVALUATION_NUMBERS // numbers, 1), max_padding=MAX_PADDING)


def predict(apply: Apply, params: PyTree, lists: RankingLists) -> Float32[np.ndarray, " rows"]:
    """The score of each row, in the order of the rows."""
    _check_lists(lists=lists)
    scores, offsets, run = np.zeros(len(lists.labels), np.float32), lists.offsets, jax.jit(apply)
    for batch in evaluation_batches(lists):
        row = offsets[batch.lists][:, None] + np.arange(batch.where.shape[1])
        scores[row[batch.where]] = np.asarray(run(params, batch.features))[batch.where]
    return scores


def ndcg_by_list(lists: RankingLists, scores: Float32[np.ndarray, " rows"], k: Any) -> Float[np.ndarray, "lists ..."]:
    """The exact NDCG@k of each list under the scores of its rows."""
    scored = replace(lists, scores=scores)
    return _by_list(scored, lambda batch: ndcg_at_k(batch.scores, batch.labels, k, where=batch.where))


def best_feature(lists: RankingLists, k: int | None, processes: Processes = ALONE) -> tuple[int, int]:
    """The feature (counted from 0) that ranks best by itself, and its sign: -1 if its lowest values rank first."""
    values = _by_list(lists, lambda batch: _by_feature(k, batch.features, batch.labels, batch.where))
    means = processes.total(values).mean(0)
    sign, feature = np.unravel_index(means.argmax(), means.shape)
    return int(feature), 1 - 2 * int(sign)


@partial(jax.jit, static_argnums=0)
def _by_feature(k, features, labels, where):
    rankings = jnp.stack([features, -features]).transpose(1, 0, 3, 2)  # [b, sign, f, n]
    labels, where = (jnp.expand_dims(x, (1, 2)) for x in (labels, where))
    return ndcg_at_k(rankings, labels, k, where=where)


def take_lists(lists: RankingLists, chosen: Int[np.ndarray, " chosen"]) -> RankingLists:
    """Some of the lists, in the order of `chosen`."""
    lengths, starts = lists.lengths[chosen], lists.offsets[chosen]
    rows = np.repeat(starts - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
    scores, features = (None if column is None else column[rows] for column in (lists.scores, lists.features))
    return RankingLists(tuple(lists.queries[i] for i in chosen), lengths, lists.labels[rows], scores, features)


def _check_lists(**parts: RankingLists) -> None:
    for name, lists in parts.items():
        features_of(lists, name)
        if not len(lists):
            raise ValueError(f"{name} has no queries; expected at least one list")
