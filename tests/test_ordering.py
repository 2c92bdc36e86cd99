"""Each trick equals the plain version, whatever the values, the dtype and the shape."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrank import ordering

RNG = np.random.default_rng(0)

LISTS = {
    "normal": lambda shape: RNG.normal(size=shape),
    "tied": lambda shape: RNG.integers(-3, 4, shape),
    "one value": lambda shape: np.ones(shape),
    "zeros of both signs": lambda shape: RNG.choice([-0.0, 0.0, 1.0, -1.0], shape),
    "infinite": lambda shape: RNG.choice([-np.inf, np.inf, 0.5, -0.5, 3e38, -3e38, 1.2e-38], shape),
    "all -inf": lambda shape: np.full(shape, -np.inf),
    "descending": lambda shape: -np.arange(np.prod(shape)).reshape(shape),
    "nearly equal": lambda shape: 1 + 1e-6 * RNG.normal(size=shape),
    "half precision": lambda shape: RNG.normal(size=shape).astype(np.float16),
    "sparse": lambda shape: (RNG.random(shape) < 0.02) * RNG.integers(1, 5, shape),
}
SIZES = [(3, 1, 1), (2, 7, 7), (4, 600, 1), (3, 1203, 2), (2, 4500, 10), (2, 700, 400), (2, 513, 513), (2, 12_345, 11)]
MANY_LISTS = [(256, 16, 16), (300, 100, 1), (260, 300, 11), (256, 1003, 24)]


TOP_K, LARGEST, LARGEST_GRADES = (
    jax.jit(function, static_argnums=1) for function in (ordering.top_k, ordering.largest, ordering._largest_grades)
)

BEYOND = jax.jit(partial(ordering.top_k, beyond=6), static_argnums=1)


def stable_order(keys):
    return np.argsort(-np.asarray(keys, np.float64), axis=-1, kind="stable")


def lists(kind, *shape):
    return jnp.asarray(LISTS[kind](shape), jnp.float32)


@pytest.mark.parametrize("kind", LISTS)
@pytest.mark.parametrize(("batch", "n", "k"), SIZES + MANY_LISTS)
def test_top_k(kind, batch, n, k):
    keys = lists(kind, batch, n)
    values, indices = TOP_K(keys, k)
    order = stable_order(keys)[:, :k]
    np.testing.assert_array_equal(values, np.take_along_axis(np.asarray(keys), order, -1))
    if kind != "zeros of both signs":  # which one of two equal zeros it was is left to the platform
        np.testing.assert_array_equal(indices, order)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("kind", LISTS)
@pytest.mark.parametrize(("batch", "n", "k"), [(256, 16, 12), (300, 100, 1), (256, 1003, 20), (2, 12_345, 11)])
def test_beyond_the_first_k(kind, batch, n, k, dtype):
    """Whatever equals the k-th is among them, unless the last one equals it too."""
    keys = lists(kind, batch, n).astype(dtype)
    values, indices = BEYOND(keys, k)
    keys, order = np.float32(keys), stable_order(keys)
    assert values.dtype == jnp.float32 and values.shape == (batch, min(k + 6, n))
    np.testing.assert_array_equal(values, np.take_along_axis(keys, np.asarray(indices), -1))
    np.testing.assert_array_equal(values[:, :k], np.take_along_axis(keys, order[:, :k], -1))
    ended = np.asarray(values[:, -1] < values[:, k - 1])
    found = (np.asarray(values) == values[:, k - 1 : k]).sum(-1)
    np.testing.assert_array_equal(found[ended], (keys == values[:, k - 1 : k]).sum(-1)[ended])
    assert all(len(set(row)) == len(row) for row in indices.tolist())


def test_top_k_of_lists_that_are_sure_beside_one_that_is_not():
    keys = lists("normal", 256, 1000).at[7].set(lists("nearly equal", 1000)).at[8, 3:].set(-jnp.inf).at[9].set(jnp.nan)
    values, indices = TOP_K(keys, 11)
    order = stable_order(keys)[:, :11]
    np.testing.assert_array_equal(np.delete(indices, 9, 0), np.delete(order, 9, 0))
    assert (np.asarray(indices[9]) < 1000).all() and np.isneginf(values[8, 3:]).all()


@pytest.mark.parametrize("kind", LISTS)
@pytest.mark.parametrize("n", [1, 2, 100, 1024, 1025, 70_000])
def test_descending_order(kind, n):
    keys = lists(kind, 2, n)
    np.testing.assert_array_equal(jax.jit(ordering.descending_order)(keys), stable_order(keys))


@pytest.mark.parametrize("kind", LISTS)
@pytest.mark.parametrize(("batch", "n", "k"), [*SIZES, (64, 200, 10), (64, 200, 200), (1, 9000, 100)])
def test_largest(kind, batch, n, k):
    values = lists(kind, batch, n)
    expected = -np.sort(-np.asarray(values), axis=-1)[:, :k]
    np.testing.assert_array_equal(LARGEST(values, k), expected)
    np.testing.assert_array_equal(LARGEST_GRADES(values, k), expected)


def test_largest_of_lists_that_run_out_of_grades_at_different_depths():
    values = jnp.zeros((3, 3000)).at[0, ::7].set(2.0).at[1, 5].set(9.0).at[2].set(-jnp.inf)
    expected = -np.sort(-np.asarray(values), axis=-1)[:, :100]
    np.testing.assert_array_equal(ordering.largest(values, 100), expected)


def test_largest_is_differentiable():
    values = lists("tied", 64, 200)
    place = jnp.argsort(-values, axis=-1)[:, :10]
    weights = jnp.arange(10.0)
    gradient = jax.grad(lambda v: (ordering.largest(v, 10) * weights[None]).sum())(values)
    expected = np.zeros_like(values)
    np.put_along_axis(expected, np.asarray(place), np.broadcast_to(weights, (64, 10)), -1)
    np.testing.assert_array_equal(gradient, expected)


@pytest.mark.parametrize("function", [ordering.top_k, ordering.largest])
@pytest.mark.parametrize(("n", "k"), [(5000, 10), (600, 600), (300, 10)])
def test_vmapped(function, n, k):
    keys = lists("tied", 30, n)
    expected = function(keys, k)
    for ours, right in zip(jax.tree.leaves(jax.vmap(partial(function, k=k))(keys)), jax.tree.leaves(expected)):
        np.testing.assert_array_equal(ours, right)


@pytest.mark.parametrize("platform", ["cuda", "tpu", "rocm"])
def test_other_platforms_take_the_plain_selection(platform):
    shape = jax.ShapeDtypeStruct((8, 20_000), jnp.float32)
    exported = jax.export.export(jax.jit(partial(ordering.top_k, k=10)), platforms=[platform])(shape)
    assert exported.mlir_module().count("top_k") and "reduce" not in exported.mlir_module()


@pytest.mark.parametrize("n", [40, 4000])
def test_nan_of_either_sign_is_found(n):
    values = np.ones((6, n), np.float32)
    values[1, 3], values[2, 39] = np.nan, np.copysign(np.float32(np.nan), -1)
    values[3, :2], values[4, 5], values[5] = [np.inf, -np.inf], np.inf, 3e38  # sums that are not finite, and no NaN
    np.testing.assert_array_equal(ordering.has_nan(jnp.asarray(values))[:, 0], np.isnan(values).any(-1))
