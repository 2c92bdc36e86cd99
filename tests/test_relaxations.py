"""Relaxed permutation matrices and soft ranks: the textbook's, their rows, masks, ties, limits and gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrank import _gaps, neural_sort, soft_ranks, soft_sort

ROWS = {"neural_sort": neural_sort, "soft_sort": soft_sort}
every_relaxation = pytest.mark.parametrize("relaxation", ROWS.values(), ids=ROWS.keys())
every_kernel = pytest.mark.parametrize("kernel", ["logistic", "laplace"])

SCORES = np.array([[0.4, -1.2, 0.4, 2.0, 0.9, -0.3], [3.0, 1.0, np.nan, 1.5, np.inf, -np.inf]], np.float32)
WHERE = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 0, 1, 0, 1]], bool)  # the last score is valid, but was not retrieved
LIVE = WHERE & (-np.inf < SCORES)


def softmax(logits):
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def textbook_rows(scores, relaxation, temperature):
    """Every pair of scores compared, in float64."""
    s = scores.astype(float)
    n, distance = len(s), np.abs(s[:, None] - s[None, :])
    if relaxation is neural_sort:
        return softmax(((n - 1 - 2 * np.arange(n))[:, None] * s - distance.sum(axis=1)) / temperature)
    return softmax(-np.abs(np.sort(s)[::-1][:, None] - s) / temperature)


def textbook_ranks(scores, kernel, temperature):
    margin = (scores[None, :].astype(float) - scores[:, None]) / temperature  # how far j is ahead of i
    logistic, laplace = 1 / (1 + np.exp(-margin)), np.where(margin < 0, np.exp(margin) / 2, 1 - np.exp(-margin) / 2)
    share = logistic if kernel == "logistic" else laplace
    return 1 + share.sum(axis=1) - 0.5


@every_relaxation
@pytest.mark.parametrize("k", [None, 2])
def test_rows_are_the_textbooks(relaxation, k):
    temperatures = np.array([0.7, 2.0], np.float32)  # one for each list
    rows = np.asarray(relaxation(SCORES, k=k, where=WHERE, temperature=temperatures))
    assert rows.shape == (2, k or 6, 6)
    for row, live, scores, temperature in zip(rows, LIVE, SCORES, temperatures):
        expected = textbook_rows(scores[live], relaxation, temperature)[: k or 6]
        np.testing.assert_allclose(row[: len(expected), live], expected, atol=1e-6)
        np.testing.assert_allclose(row.sum(axis=-1), np.arange(k or 6) < live.sum(), atol=1e-6)  # 0 past the last item
        np.testing.assert_array_equal(row[:, ~live], 0)


@every_relaxation
def test_rows_of_a_low_temperature_sort(relaxation):
    rows = relaxation(SCORES[:1], temperature=1e-4)[0]
    half = [0.5, 0, 0.5, 0, 0, 0]  # tied items share their ranks
    np.testing.assert_allclose(rows, [*np.eye(6)[[3, 4]], half, half, *np.eye(6)[[5, 1]]], atol=1e-6)


@every_relaxation
def test_a_bad_list_has_no_rows_and_its_mate_has(relaxation):
    scores = SCORES.copy()
    scores[0, 2] = np.nan
    rows = relaxation(scores, k=2, where=WHERE)
    assert np.isnan(rows[0]).all()
    np.testing.assert_array_equal(rows[1], relaxation(SCORES, k=2, where=WHERE)[1])


@every_relaxation
def test_rows_under_transformations(relaxation, x64):
    scores = jnp.asarray(np.where(LIVE, SCORES, 0).astype(np.float64))
    direction, weights = (np.random.default_rng(i).normal(size=shape) for i, shape in enumerate([(2, 6), (2, 3, 6)]))
    some = lambda scores: (relaxation(scores, k=3, where=LIVE) * weights).sum()
    apart = scores.at[0, 2].add(0.25)  # ties have one-sided derivatives
    slope = (some(apart + 1e-6 * direction) - some(apart - 1e-6 * direction)) / 2e-6
    gradient = jax.grad(some)(apart)
    np.testing.assert_allclose((gradient * direction).sum(), slope, rtol=1e-6)
    np.testing.assert_allclose(jax.jvp(some, (apart,), (jnp.asarray(direction),))[1], slope, rtol=1e-6)
    one_by_one = jax.vmap(functools.partial(relaxation, k=3))(scores, where=LIVE)
    np.testing.assert_allclose(one_by_one, relaxation(scores, k=3, where=LIVE), rtol=1e-12, atol=1e-15)


@every_relaxation
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"k": 0}, ValueError, "k must be at least 1"),
        ({"k": (1, 2)}, TypeError, "a number of rows"),
        ({"temperature": 0.0}, ValueError, "temperature must be positive"),
        ({"temperature": np.ones(5)}, ValueError, "a scalar or one for each list"),
    ],
)
def test_errors(relaxation, options, error, message, unchecked):
    with pytest.raises(error, match=message):
        relaxation(SCORES, where=WHERE, **options)


def test_selecting_above_a_bound_is_selecting():
    rng = np.random.default_rng(0)
    normal = rng.normal(size=(9, 301)).astype(np.float32)
    tied, retrieved, few = (
        normal.round(),
        np.where(normal > 0, normal, -np.inf),
        np.where(normal > 2.5, normal, -np.inf),
    )
    signed, cauchy = np.where(normal > 0, 0.0, -0.0), rng.standard_cauchy((9, 301))
    infinite, large = np.where(normal > 2, np.inf, normal), 3e38 * np.sign(normal)
    kinds = [normal, tied, retrieved, few, signed, cauchy, infinite, large, np.full_like(normal, -np.inf), normal * 0]
    for keys in np.float32(kinds):
        values, indices = best_above(keys)
        np.testing.assert_array_equal(values, -np.sort(-keys)[:, :20])
        np.testing.assert_array_equal(np.take_along_axis(keys, np.asarray(indices), axis=-1), values)
        assert (np.diff(np.sort(indices)) > 0).all()


best_above = jax.jit(functools.partial(_gaps._best, k=20))


# ---------------------------------------------------------------------------------------------------------- soft ranks


@every_kernel
def test_soft_ranks_are_the_textbooks(kernel):
    ranks = np.asarray(soft_ranks(SCORES, where=WHERE, temperature=0.5, kernel=kernel))
    for rank, live, scores in zip(ranks, LIVE, SCORES):
        np.testing.assert_allclose(rank[live], textbook_ranks(scores[live], kernel, 0.5), rtol=1e-6)
        np.testing.assert_allclose(rank[live].sum(), live.sum() * (live.sum() + 1) / 2, rtol=1e-6)
        assert (rank[~live] == np.inf).all()


@every_kernel
def test_soft_ranks_of_a_low_temperature_are_ranks(kernel):
    ranks = soft_ranks(SCORES[:1], temperature=1e-4, kernel=kernel)
    np.testing.assert_allclose(ranks, [[3.5, 6, 3.5, 1, 2, 5]], rtol=1e-6)


@every_kernel
def test_soft_ranks_move_with_the_scores(kernel, x64):
    scores = jnp.asarray(SCORES[:1].astype(np.float64)).at[0, 2].add(0.25)
    jacobian = jax.jacrev(functools.partial(soft_ranks, kernel=kernel))(scores)[0, :, 0]
    step = lambda j: scores.at[0, j].add(1e-6), lambda j: scores.at[0, j].add(-1e-6)
    for j in range(6):
        up, down = (soft_ranks(move(j), kernel=kernel) for move in step)
        np.testing.assert_allclose(jacobian[:, j], (up - down)[0] / 2e-6, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(jacobian.sum(axis=-1), 0, atol=1e-12)  # a shift of all scores changes nothing


def test_soft_ranks_refuse_an_unknown_kernel():
    with pytest.raises(ValueError, match=r"Did you mean 'laplace'"):
        soft_ranks(SCORES, kernel="laplacian")
