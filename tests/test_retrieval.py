"""Retrieval from a catalogue, beside a matrix product and a sort in NumPy."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxrank

B, M, D, K = 21, 613, 6, 12
RNG = np.random.default_rng(0)
EXCLUDE = RNG.integers(-1, M, (B, 9)).astype(np.int32)


def embeddings(kind):
    queries, items = RNG.normal(size=(B, D)), RNG.normal(size=(M, D))
    if kind == "whole numbers":  # many ties
        queries, items = queries.round(), items.round()
    if kind == "signs":  # hardly anything but ties
        queries, items = np.sign(queries), np.sign(items)
    if kind == "repeated":  # each item some thirty times, and sums that round
        items = items[RNG.integers(0, 20, M)]
    if kind == "nothing":
        queries[::2], items[::3] = 0, 0
    return queries.astype(np.float32), items.astype(np.float32)


KINDS = ["normal", "whole numbers", "signs", "repeated", "nothing"]
EMBEDDINGS = {kind: embeddings(kind) for kind in KINDS}


def naive(queries, items, k, exclude):
    """In 64 bits, rounded so that scores which are equal but for rounding are equal; ties by index."""
    scores = np.round(queries.astype(float) @ items.astype(float).T, 9)
    for row, seen in zip(scores, exclude):
        row[seen[seen >= 0]] = -np.inf
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    values = np.take_along_axis(scores, order, axis=1)
    return values, np.where(values == -np.inf, -1, order)


@partial(jax.jit, static_argnames=("chunk_size", "k"))
def found(queries, items, exclude=EXCLUDE, *, chunk_size=None, k=K):
    return jaxrank.retrieve_top_k(queries, items, k=k, exclude=exclude, chunk_size=chunk_size)


@pytest.mark.parametrize("kind", KINDS)
def test_naive(kind):
    queries, items = EMBEDDINGS[kind]
    values, indices = naive(queries, items, K, EXCLUDE)
    for chunk_size in (None, 64, 7):
        hits = found(queries, items, chunk_size=chunk_size)
        np.testing.assert_allclose(hits.values, values, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(hits.indices, indices)
