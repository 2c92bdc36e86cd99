"""Retrieval from a catalogue, beside a matrix product and a sort in NumPy; and its NDCG, beside the dense one."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxrank
from jaxrank import _catalogue

B, M, D, K = 24, 616, 24, 12
RNG = np.random.default_rng(0)
EXCLUDE = RNG.integers(-1, M, (B, 9)).astype(np.int32)
WHERE = RNG.random(M) < 0.9
NONE = np.full((B, 9), -1, np.int32)


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
QUERIES, ITEMS = EMBEDDINGS["normal"]


def naive_scores(queries, items, exclude, where):
    """In 64 bits, rounded so that scores which are equal but for rounding are equal."""
    scores = np.round(queries.astype(float) @ np.where(where[:, None], items, 0).astype(float).T, 9)
    scores[:, ~where] = -np.inf
    for row, seen in zip(scores, exclude):
        row[seen[seen >= 0]] = -np.inf
    return scores


def naive(queries, items, exclude=EXCLUDE, where=WHERE):
    scores = naive_scores(queries, items, exclude, where)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :K]
    values = np.take_along_axis(scores, order, axis=1)
    return values, np.where(values == -np.inf, -1, order)


@partial(jax.jit, static_argnames="chunk_size")
def retrieved(queries, items, exclude=EXCLUDE, where=WHERE, chunk_size=None):
    return jaxrank.retrieve_top_k(queries, items, k=K, exclude=exclude, where=where, chunk_size=chunk_size)


def assert_same(hits, expected):
    np.testing.assert_array_equal(hits.indices, expected.indices)
    np.testing.assert_array_equal(hits.values, expected.values)


@pytest.mark.parametrize("kind", KINDS)
def test_naive_on_any_chunking(kind):
    values, indices = naive(*EMBEDDINGS[kind])
    whole = retrieved(*EMBEDDINGS[kind])
    np.testing.assert_allclose(whole.values, values, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(whole.indices, indices)
    for chunk_size in (64, 7):
        assert_same(retrieved(*EMBEDDINGS[kind], chunk_size=chunk_size), whole)


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_items_over_devices(axis_type):
    """The same to the last bit, ties too; what is gathered is K for each shard and nothing else."""
    mesh = jax.make_mesh((2, 4), ("data", "items"), axis_types=(axis_type, axis_type))
    specs = P("data"), P("items"), P("data"), P("items")

    def local(queries, items, exclude, where):
        return jaxrank.retrieve_top_k(queries, items, k=K, exclude=exclude, where=where, axis_name="items")

    search = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=P("data")))

    def placed(*arrays):
        return [jax.device_put(array, NamedSharding(mesh, spec)) for array, spec in zip(arrays, specs)]

    with jax.set_mesh(mesh):
        for given in EMBEDDINGS.values():
            assert_same(search(*placed(*given, EXCLUDE, WHERE)), retrieved(*given))
        module = search.lower(*placed(QUERIES, ITEMS, EXCLUDE, WHERE)).compile().as_text()
    collectives = [line for line in module.splitlines() if any(f"{name}(" in line for name in COLLECTIVES)]
    assert len(collectives) == 2  # values and indices
    assert all(f"[{B // 2},{4 * K}]" in line for line in collectives)


COLLECTIVES = "all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter"


def test_catalogue_in_stages_and_queries_in_blocks(monkeypatch):
    expected = retrieved(QUERIES, ITEMS)
    monkeypatch.setattr(_catalogue, "_MAXIMA", 4 * B * 30)
    monkeypatch.setattr(_catalogue, "_QUERIES", 10)
    monkeypatch.setattr(_catalogue, "_ROWS", 5)
    monkeypatch.setattr(_catalogue, "_SPARE", 0)
    search = partial(jaxrank.retrieve_top_k.__wrapped__, k=K, exclude=EXCLUDE, where=WHERE, chunk_size=50)
    assert_same(jax.jit(lambda q, x: search(q, x))(QUERIES, ITEMS), expected)


def test_less_to_retrieve_than_asked_for():
    everything = np.broadcast_to(np.arange(M, dtype=np.int32), (B, M))
    hits = jaxrank.retrieve_top_k(QUERIES, ITEMS[:7], k=9, exclude=everything[:, 3:5])
    np.testing.assert_array_equal(hits.indices[:, -4:], -1)
    np.testing.assert_array_equal(hits.values[:, -4:], -np.inf)
    np.testing.assert_array_equal(np.sort(hits.indices[:, :5], axis=1), np.tile([0, 1, 2, 5, 6], (B, 1)))
    for hits in (
        jaxrank.retrieve_top_k(QUERIES, ITEMS[:7], k=9, where=np.zeros(7, bool)),
        jaxrank.retrieve_top_k(QUERIES, ITEMS[:0], k=9),
    ):
        np.testing.assert_array_equal(hits.indices, np.full((B, 9), -1))
        np.testing.assert_array_equal(hits.values, np.full((B, 9), -np.inf))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
def test_bad_embeddings_make_no_number(bad):
    queries, items = QUERIES.copy(), ITEMS.copy()
    items[np.flatnonzero(~WHERE)[0], 1] = bad  # in a padding row
    queries[3, 5] = bad
    hits, expected = retrieved(queries, items), retrieved(QUERIES, ITEMS)
    others = np.arange(B) != 3
    np.testing.assert_array_equal(hits.values[others], expected.values[others])
    np.testing.assert_array_equal(hits.values[3], np.full(K, np.nan))
    np.testing.assert_array_equal(hits.indices[3], np.full(K, -1))
    items[np.flatnonzero(WHERE)[9], 1] = bad
    np.testing.assert_array_equal(retrieved(QUERIES, items).values, np.full((B, K), np.nan))


@pytest.mark.parametrize("dtypes", [("bfloat16", "bfloat16"), ("float32", "bfloat16"), ("int8", "int8")])
def test_low_precision_is_summed_in_float32(dtypes):
    queries, items = (jnp.asarray(10 * array).astype(dtype) for array, dtype in zip((QUERIES, ITEMS), dtypes))
    values, indices = naive(np.asarray(queries, np.float32), np.asarray(items, np.float32), where=WHERE)
    hits = retrieved(queries, items)
    assert hits.values.dtype == jnp.float32
    np.testing.assert_allclose(hits.values, values, rtol=1e-5)
    np.testing.assert_array_equal(hits.indices, indices)


def test_64_bits(x64):
    hits = retrieved(QUERIES.astype(float), ITEMS.astype(float))
    np.testing.assert_allclose(hits.values, naive(QUERIES, ITEMS)[0], rtol=0, atol=1e-8)


def test_gradient():
    def by_search(queries, items):
        return jnp.square(retrieved(queries, items).values).sum()

    def by_product(queries, items):
        rows = jnp.arange(B)[:, None]
        return jnp.square((queries @ items.T)[rows, retrieved(QUERIES, ITEMS).indices]).sum()

    for ours, theirs in zip(*(jax.grad(f, (0, 1))(QUERIES, ITEMS) for f in (by_search, by_product))):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-4)


def test_vmap_and_export():
    expected = retrieved(QUERIES, ITEMS, NONE)
    both = jax.vmap(retrieved, (0, None, 0))(QUERIES.reshape(2, -1, D), ITEMS, NONE.reshape(2, -1, 9))
    assert_same(jax.tree.map(lambda array: array.reshape(B, K), both), expected)
    program = jax.jit(lambda queries, items: retrieved(queries, items, NONE)[:])
    exported = export.export(program, platforms=["cpu", "cuda", "rocm", "tpu"])(QUERIES, ITEMS)
    assert_same(type(expected)(*exported.call(QUERIES, ITEMS)), expected)


def test_memory_of_a_large_catalogue():
    given = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((1024, 64), (1_000_000, 64))]
    compiled = jax.jit(partial(jaxrank.retrieve_top_k, k=100)).lower(*given).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 300 * 2**20  # of the 3.8 GiB that all scores take


@pytest.mark.parametrize(
    ("error", "message", "change"),
    [
        (ValueError, r"queries \(24, 23\), items", {"queries": QUERIES[:, 1:]}),
        (ValueError, r"queries must be \[b, d\]", {"queries": QUERIES[0]}),
        (ValueError, r"exclude must be \[b, e\]", {"exclude": EXCLUDE[0]}),
        (TypeError, "exclude must hold item indices", {"exclude": EXCLUDE / 2}),
        (ValueError, r"where must be \[m\]", {"where": WHERE[1:]}),
        (ValueError, "k must be at least 1; got 0", {"k": 0}),
        (TypeError, "k must be an int", {"k": 2.0}),
        (TypeError, "k must be an int", {"k": True}),
        (ValueError, "chunk_size must be at least 1", {"chunk_size": -1}),
    ],
)
def test_errors(error, message, change):
    with pytest.raises(error, match=message):
        jaxrank.retrieve_top_k(**{"queries": QUERIES, "items": ITEMS, "k": 3} | change)


# ----------------------------------------------------------------------------------------------------------------- NDCG


RELEVANT = np.where(RNG.random((B, 40)) < 0.8, np.array([RNG.permutation(M)[:40] for _ in range(B)]), -1)
GRADES = RNG.integers(0, 4, RELEVANT.shape)
RELEVANT[0] = -1
SMALL = jaxrank.table_gain([1, 2, 4, 7])  # an item without a label gains something too


def dense(relevant, labels):
    table = np.zeros((B, M), np.float32)
    for row in range(B):
        for item, label in reversed(list(zip(relevant[row], labels[row]))):
            if item >= 0:
                table[row, item] = label
    return table


@pytest.mark.parametrize("kind", ["normal", "signs"])
@pytest.mark.parametrize("options", [{"gain_fn": jaxrank.linear_gain, "empty": np.nan}, {"gain_fn": SMALL}])
def test_ndcg_is_that_of_all_scores_and_labels(kind, options):
    cutoffs = (1, 5, K)
    queries, items = EMBEDDINGS[kind]
    value = jaxrank.retrieval_ndcg_at_k(
        queries, items, RELEVANT, cutoffs, labels=GRADES, exclude=EXCLUDE, where=WHERE, **options
    )
    scores = naive_scores(queries, items, EXCLUDE, WHERE).astype(np.float32)
    expected = jaxrank.ndcg_at_k(scores, dense(RELEVANT, GRADES), cutoffs, ties="stable", **options)
    np.testing.assert_allclose(value, expected, rtol=1e-5)


def test_relevant_twice_out_of_reach_and_excluded():
    relevant = np.array([[2, 2, -1, -1], [0, 99, -1, 0], [1, -1, -1, -1], [-1, -1, -1, -1], [2, 2, 0, -1]])
    labels = np.array([[1, 1, 1, 1]] * 4 + [[1, 3, 1, 1]])
    items, queries = np.eye(3, dtype=np.float32), np.tile(np.float32([[3, 1, 2]]), (5, 1))
    exclude = np.array([[-1], [-1], [1], [-1], [-1]])
    value = jaxrank.retrieval_ndcg_at_k(queries, items, relevant, 10, labels=labels, exclude=exclude, empty=-1.0)
    second = 1 / np.log2(3)
    np.testing.assert_allclose(value, [second, 1 / (1 + second), 0, -1, 1], rtol=1e-6)


def test_ndcg_of_bad_input_is_nan_and_without_grades_binary():
    queries, grades = QUERIES.copy(), GRADES.astype(np.float32)
    queries[3, 0], grades[5, np.flatnonzero(RELEVANT[5] >= 0)[0]] = np.nan, np.nan
    value = jaxrank.retrieval_ndcg_at_k(queries, ITEMS, RELEVANT, K, labels=grades, exclude=EXCLUDE, where=WHERE)
    np.testing.assert_array_equal(np.flatnonzero(np.isnan(value)), [3, 5])
    binary = jaxrank.retrieval_ndcg_at_k(QUERIES, ITEMS, RELEVANT, K, exclude=EXCLUDE, where=WHERE)
    ones = jaxrank.retrieval_ndcg_at_k(
        QUERIES, ITEMS, RELEVANT, K, labels=np.ones_like(grades), exclude=EXCLUDE, where=WHERE
    )
    np.testing.assert_array_equal(binary, ones)


def test_ndcg_errors():
    for error, message, change in [
        (TypeError, "got None, which would retrieve the whole", {"k": None}),
        (TypeError, "relevant must hold item indices", {"relevant": RELEVANT / 2}),
        (ValueError, r"relevant must be \[b, r\]", {"relevant": RELEVANT[1:]}),
        (ValueError, "labels must have the shape of relevant", {"labels": GRADES[:, 1:]}),
    ]:
        with pytest.raises(error, match=message):
            jaxrank.retrieval_ndcg_at_k(**{"queries": QUERIES, "items": ITEMS, "relevant": RELEVANT, "k": 5} | change)
