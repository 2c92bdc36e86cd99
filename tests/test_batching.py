"""Padded batches: every row once, little padding, few shapes, the same for the same seed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxrank.data import RankingLists, length_buckets, padded_batches
from jaxrank.data._lists import as_float32


def make(lengths, features=3):
    rows = int(np.sum(lengths))
    column = np.arange(1, rows + 1, dtype=np.float32)
    return RankingLists(
        tuple(map(str, range(len(lengths)))),
        np.array(lengths, np.int64),
        column,
        -column,
        column[:, None] * np.ones(features, np.float32) if features else None,
    )


def long_tailed(count=5000):
    return np.maximum(1, np.random.default_rng(0).lognormal(4, 1, count)).astype(np.int64)


LENGTHS = {
    "lognormal": long_tailed(),
    "power law": (np.random.default_rng(1).pareto(1.2, 20000) * 10 + 1).astype(int).clip(1, 20000),
    "equal": np.full(1000, 100),
    "nearly equal": 1000 + np.random.default_rng(2).integers(0, 30, 2000),
    "two kinds": np.repeat([3, 1000], 500),
}


@pytest.mark.parametrize("name", LENGTHS)
@pytest.mark.parametrize("batch_size", [None, 32])
def test_padding_stays_below_fifteen_per_cent_in_few_shapes(name, batch_size):
    lengths = LENGTHS[name]
    buckets = length_buckets(lengths, batch_size=batch_size)
    batches = [-(-len(bucket.lists) // bucket.rows) for bucket in buckets]
    slots = sum(count * bucket.rows * bucket.length for count, bucket in zip(batches, buckets, strict=True))
    assert 1 - lengths.sum() / slots < 0.15
    assert len(buckets) <= {"lognormal": 18, "power law": 28}.get(name, 2)


@pytest.mark.parametrize("options", [{}, {"batch_size": 7}, {"max_slots": 500}, {"max_padding": 0.9}, {"rng": 3}])
@pytest.mark.parametrize("features", [0, 3])
def test_every_row_is_batched_once_and_whole(options, features):
    lists = make(long_tailed(200), features)
    seen, shapes = [], set()
    for batch in padded_batches(lists, **options):
        shapes.add(batch.labels.shape)
        for row, chosen in enumerate(batch.lists):
            rows = slice(*lists.offsets[chosen : chosen + 2]) if chosen >= 0 else slice(0)
            valid = batch.where[row]
            np.testing.assert_array_equal(batch.labels[row, valid], lists.labels[rows])
            np.testing.assert_array_equal(batch.scores[row, valid], lists.scores[rows])
            assert not batch.labels[row, ~valid].any()
            if features:
                np.testing.assert_array_equal(batch.features[row, valid], lists.features[rows])
        seen += batch.lists[batch.lists >= 0].tolist()
        assert (batch.features is None) == (not features)
        assert batch.lists.shape[0] <= options.get("batch_size", np.inf)
    assert sorted(seen) == list(range(len(lists)))
    assert len(shapes) == len({length for _, length in shapes})


@given(st.lists(st.integers(0, 40), max_size=60), st.integers(1, 9), st.floats(0.01, 0.99))
def test_padding_keeps_its_limit(lengths, batch_size, limit):
    lengths = np.array(lengths, np.int64)
    buckets = length_buckets(lengths, batch_size=batch_size, max_padding=limit)
    assert sorted(i for bucket in buckets for i in bucket.lists) == list(range(len(lengths)))
    slots = sum(len(bucket.lists) * bucket.length for bucket in buckets)
    filled = np.maximum(lengths, 1).sum()  # a list of none still has one slot
    assert slots == 0 or 1 - filled / slots <= limit
    for bucket in buckets:
        assert lengths[bucket.lists].max() <= bucket.length
        assert bucket.rows <= batch_size


def brute_force(lengths, limit):
    """The fewest buckets, by trying all divisions."""
    different = sorted(set(lengths))
    best = len(different)
    for choice in range(2 ** (len(different) - 1)):
        edges = [edge for i, edge in enumerate(different[:-1]) if choice >> i & 1] + [different[-1]]
        slots = sum(min(edge for edge in edges if edge >= length) for length in lengths)
        if 1 - sum(lengths) / slots < limit:
            best = min(best, len(edges))
    return best


@given(st.lists(st.integers(1, 30), min_size=1, max_size=40).filter(lambda x: len(set(x)) < 9), st.floats(0.05, 0.5))
def test_no_division_needs_fewer_buckets(lengths, limit):
    assert len(length_buckets(np.array(lengths), max_padding=limit)) == brute_force(lengths, limit)


def test_epochs_differ_and_seeds_repeat_them():
    lists = make(long_tailed(300), 0)

    def orders(rng):
        return [[batch.lists.tolist() for batch in padded_batches(lists, batch_size=16, rng=rng)] for _ in range(2)]

    first, second = orders(np.random.default_rng(5))
    assert first != second
    assert orders(np.random.default_rng(5)) == [first, second]
    shapes = {tuple(sorted(map(len, epoch))) for epoch in (first, second)}
    assert len(shapes) == 1


def test_without_a_seed_the_order_is_that_of_the_lists():
    batches = list(padded_batches(make([2, 1, 2, 1]), max_padding=0.1))
    assert [batch.lists.tolist() for batch in batches] == [[1, 3], [0, 2]]


def test_a_list_longer_than_a_batch_has_a_batch_of_its_own():
    assert [(b.rows, b.length) for b in length_buckets(np.array([100, 1]), max_slots=10)] == [(1, 1), (1, 100)]


def test_no_lists_no_batches():
    assert list(padded_batches(make([]))) == []


@pytest.mark.parametrize("option", [{"batch_size": 0}, {"max_slots": 0}, {"max_padding": 0.0}])
def test_options_that_make_no_sense_are_refused(option):
    with pytest.raises(ValueError, match=f"{next(iter(option))} is 0"):
        length_buckets(np.array([1]), **option)


@pytest.mark.parametrize(
    "columns, message",
    [
        ((("a",), np.array([1, 1]), np.zeros(2, np.float32)), "1 queries but 2 lengths"),
        ((("a",), np.array([2]), np.zeros(3, np.float32)), "labels has 3 rows but the lengths add up to 2"),
    ],
)
def test_columns_that_do_not_fit_are_refused(columns, message):
    with pytest.raises(ValueError, match=message):
        RankingLists(*columns)


def test_lists_are_immutable_and_leave_the_callers_arrays_alone():
    labels = np.zeros(1, np.float32)
    lists = RankingLists(("a",), np.array([1]), labels)
    with pytest.raises(ValueError, match="read-only"):
        lists.labels[0] = 1
    labels[0] = 1


close = st.builds(lambda whole, part: whole + part * 1e-9, st.integers(-2, 2), st.integers(0, 2))


@given(st.lists(st.lists(close | st.sampled_from([-np.inf, np.inf, 0.0, -0.0]), max_size=6), max_size=5), st.booleans())
def test_float32_keeps_the_order_and_the_ties_of_each_list(lists, descending):
    lists = [sorted(scores, reverse=True) if descending else scores for scores in lists]
    lengths = np.array([len(scores) for scores in lists], np.int64)
    rounded = as_float32(np.array([score for scores in lists for score in scores], np.float64), lengths)
    for scores, got in zip(lists, np.split(rounded, np.cumsum(lengths)), strict=False):
        scores = np.array(scores)
        np.testing.assert_array_equal(got[:, None] > got, scores[:, None] > scores)
        np.testing.assert_array_equal(got == -np.inf, scores == -np.inf)
