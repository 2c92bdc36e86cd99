"""Losses: what they reduce, which lists count, LambdaLoss against its formula, Gumbel noise."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrank
from jaxrank import approx_ndcg_loss, gumbel_perturb, lambda_ndcg_loss, smooth_ndcg_loss

LOSSES = {
    "smooth": smooth_ndcg_loss,
    "soft": functools.partial(smooth_ndcg_loss, relaxation=jaxrank.soft_sort, balance=1),
    "approx": approx_ndcg_loss,
    "laplace": functools.partial(approx_ndcg_loss, kernel="laplace"),
    "lambda": lambda_ndcg_loss,
}
every_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())
TRAIN, MASKED, IRRELEVANT, PADDED = range(4)


def lists() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A list, one wholly masked, one with nothing relevant, and the first one padded with rubbish."""
    scores = np.array(
        [[0.3, -1.0, 0.8, 0.1, 0.0], [1, 2, 3, np.nan, 5], [0.2, 0.1, 0.4, 0.3, 0.0], [0.3, -1, 0.8, 0.1, 0]]
    )
    labels = np.array([[0, 3, 1, 0, 2], [1, 0, 2, 0, 0], [0, 0, 0, 0, 0], [0, 3, 1, 0, 2]])
    where = np.array([[1, 1, 1, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1], [1, 1, 1, 1, 0]], bool)
    scores[PADDED, 4], labels[PADDED, 4] = np.inf, 31
    return scores.astype(np.float32), labels.astype(np.float32), where


@functools.partial(jax.jit, static_argnames=("loss", "reduce_fn", "axis"))
def value_and_gradient(loss, scores, labels, where, weights=None, reduce_fn=jnp.mean, axis=-1):
    def total(scores):
        values = loss(scores, labels, k=3, where=where, weights=weights, reduce_fn=reduce_fn, axis=axis)
        return values.sum(), values

    gradient, values = jax.grad(total, has_aux=True)(scores)
    return values, gradient


# ----------------------------------------------------------------------------------------------------- what is reduced


@every_loss
def test_which_lists_count(loss):
    values, gradient = value_and_gradient(loss, *lists(), reduce_fn=None)
    assert values.shape == (4,) and values[TRAIN] > 0
    np.testing.assert_array_equal(values[jnp.array([MASKED, IRRELEVANT])], 0)
    np.testing.assert_array_equal(gradient[jnp.array([MASKED, IRRELEVANT])], 0)
    np.testing.assert_array_equal(gradient[~lists()[2]], 0)
    assert np.isfinite(gradient).all() and np.abs(gradient[TRAIN]).max() > 0
    np.testing.assert_array_equal(values[PADDED], values[TRAIN])
    np.testing.assert_array_equal(gradient[PADDED], gradient[TRAIN])

    mean, mean_gradient = value_and_gradient(loss, *lists())
    np.testing.assert_allclose(mean, values.sum() / 3, rtol=1e-6)  # the wholly masked list is left out
    np.testing.assert_allclose(mean_gradient, gradient / 3, rtol=1e-5, atol=1e-8)


@every_loss
def test_weights(loss):
    weights = np.array([2.0, 7.0, 1.0, 0.0], np.float32)
    values, _ = value_and_gradient(loss, *lists(), reduce_fn=None)
    total, gradient = value_and_gradient(loss, *lists(), weights=weights, reduce_fn=jnp.sum)
    np.testing.assert_allclose(total, 2 * values[TRAIN], rtol=1e-6)
    np.testing.assert_array_equal(gradient[PADDED], 0)


@every_loss
def test_the_list_axis(loss):
    values, gradient = value_and_gradient(loss, *lists(), reduce_fn=None)
    turned, turned_gradient = value_and_gradient(loss, *(array.T for array in lists()), reduce_fn=None, axis=0)
    np.testing.assert_allclose(turned, values, rtol=1e-6)
    np.testing.assert_allclose(turned_gradient.T, gradient, rtol=1e-5, atol=1e-7)


@every_loss
def test_only_masked_lists(loss):
    scores, labels, where = (array[:2] for array in lists())
    value, gradient = value_and_gradient(loss, scores, labels, np.zeros_like(where))
    assert value == 0
    np.testing.assert_array_equal(gradient, 0)


def test_smooth_losses_are_one_less_the_metric():
    scores, labels, where = (array[[TRAIN, PADDED]] for array in lists())
    pairs = [
        (smooth_ndcg_loss, jaxrank.smooth_ndcg_at_k, {"temperature": 0.5, "balance": 2}),
        (approx_ndcg_loss, jaxrank.approx_ndcg_at_k, {"temperature": 0.5, "kernel": "laplace"}),
    ]
    for loss, metric, options in pairs:
        values = loss(scores, labels, k=2, where=where, reduce_fn=None, **options)
        np.testing.assert_allclose(values, 1 - metric(scores, labels, 2, where=where, **options), rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"k": (1, 2)}, TypeError, "a loss has one cutoff"),
        ({"k": 0}, ValueError, "k must be at least 1"),
        ({"weights": np.ones(3)}, ValueError, r"one for each list, \(4,\); got \(3,\)"),
        ({"reduce_fn": "mean"}, TypeError, "reduce_fn must be a function"),
    ],
)
@every_loss
def test_errors(loss, options, error, message, unchecked):
    scores, labels, where = lists()
    with pytest.raises(error, match=message):
        loss(scores, labels, where=where, **options)


# ---------------------------------------------------------------------------------------------------------- LambdaLoss


def lambda_oracle(scores, labels, k, mu, temperature=1.0):
    """The formula of the docstring, pair by pair, with its gradient."""
    order = np.argsort(-scores, kind="stable")
    s, gains = scores[order] / temperature, 2.0 ** labels[order] - 1
    discount = lambda rank: 1 / np.log2(rank + 1)
    inside = lambda rank: discount(rank) if rank <= k else 0.0
    ideal = sum(gain * inside(i + 1) for i, gain in enumerate(sorted(gains, reverse=True)))
    loss, gradient = 0.0, np.zeros_like(s)
    for i in range(len(s)):
        for j in range(len(s)):
            if gains[i] > gains[j] and min(i, j) < k:
                apart = abs(i - j)
                weight = abs(inside(i + 1) - inside(j + 1)) + mu * abs(discount(apart) - discount(apart + 1))
                weight *= (gains[i] - gains[j]) / ideal
                loss += weight * np.log2(1 + np.exp(s[j] - s[i]))
                push = weight / np.log(2) / (1 + np.exp(s[i] - s[j])) / temperature
                gradient[order[i]] -= push
                gradient[order[j]] += push
    return loss, gradient


@pytest.mark.parametrize(("k", "mu"), [(None, 10.0), (10, 10.0), (3, 0.0)])
def test_lambda_loss_is_its_formula(k, mu):
    rng = np.random.default_rng(3)
    scores = np.round(rng.normal(size=(3, 19)), 1).astype(np.float32)  # some are tied
    labels = rng.integers(0, 4, size=(3, 19))
    run = jax.jit(jax.vmap(jax.value_and_grad(functools.partial(lambda_ndcg_loss, k=k, mu=mu, temperature=0.7))))
    values, gradient = run(scores, labels)
    for row in range(3):
        value, expected = lambda_oracle(scores[row].astype(float), labels[row], k or 19, mu, 0.7)
        np.testing.assert_allclose(values[row], value, rtol=2e-6)
        np.testing.assert_allclose(gradient[row], expected, rtol=2e-5, atol=2e-6)


def test_lambda_loss_never_compares_all_pairs_at_once():
    given = [jax.ShapeDtypeStruct((1, 20_000), jnp.float32)] * 2
    step = jax.jit(jax.grad(functools.partial(lambda_ndcg_loss, k=10)))
    memory = step.lower(*given).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 32 * 2**20  # all pairs: 1.6 GB; 10 ranks with all items, a few arrays of 0.8 MB


# --------------------------------------------------------------------------------------------------------------- noise


def test_gumbel_perturb_samples_plackett_luce():
    scores = jnp.log(jnp.array([[0.5, 0.3, 0.2, 1.0]]))
    where = jnp.array([[True, True, True, False]])
    samples = gumbel_perturb(jax.random.key(1), scores, num_samples=20_000, where=where)
    first = jnp.argmax(jnp.where(where, samples, -jnp.inf), axis=-1).ravel()
    np.testing.assert_allclose(np.bincount(first, minlength=4) / 20_000, [0.5, 0.3, 0.2, 0], atol=0.012)
    np.testing.assert_array_equal(samples[:, 0, 3], 0.0)  # a masked slot stays as it is


def test_gumbel_perturb_is_its_key():
    scores = jnp.zeros((2, 3), jnp.bfloat16)
    draw = functools.partial(gumbel_perturb, scores=scores, num_samples=4, scale=0.5)
    assert draw(jax.random.key(0)).dtype == jnp.bfloat16
    np.testing.assert_array_equal(*(draw(jax.random.key(0)).astype(jnp.float32) for _ in range(2)))
    assert (draw(jax.random.key(0)) != draw(jax.random.key(1))).any()
    with pytest.raises(ValueError, match="num_samples"):
        gumbel_perturb(jax.random.key(0), scores, num_samples=0)
    with pytest.raises(TypeError, match="floating point"):
        gumbel_perturb(jax.random.key(0), jnp.arange(3), num_samples=1)


@pytest.mark.parametrize("k", [None, 2])
def test_soft_sort_stands_still_at_fully_tied_scores(k):
    loss = functools.partial(smooth_ndcg_loss, k=k, relaxation=jaxrank.soft_sort)
    assert not jax.grad(loss)(jnp.zeros((1, 4)), jnp.array([[0.0, 1.0, 3.0, 0.0]])).any()
