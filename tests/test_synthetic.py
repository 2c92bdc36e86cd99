"""The generated set: the same for everyone, shaped like real ones, and neither trivial nor hopeless."""

import numpy as np
import pytest

from jaxrank.data.synthetic import GRADE_SHARES, generated_splits
from jaxrank.training import best_feature, ndcg_by_list


@pytest.fixture(scope="module")
def splits():
    return generated_splits()


def test_a_seed_fixes_the_set(splits):
    again, other = generated_splits(), generated_splits(seed=1)
    for name, lists in splits.items():
        np.testing.assert_array_equal(lists.features, again[name].features)
        np.testing.assert_array_equal(lists.labels, again[name].labels)
    assert not np.array_equal(splits["train"].lengths, other["train"].lengths)


def test_parts_share_no_query(splits):
    names = [query for lists in splits.values() for query in lists.queries]
    assert len(set(names)) == len(names) == 700


def test_grades_have_their_shares(splits):
    labels = np.concatenate([lists.labels for lists in splits.values()])
    np.testing.assert_allclose(np.bincount(labels.astype(int)) / len(labels), GRADE_SHARES, atol=2e-4)


def test_lengths_have_a_long_tail(splits):
    lengths = splits["train"].lengths
    assert lengths.min() >= 3
    assert lengths.max() > 5 * np.median(lengths)


def test_some_features_are_skewed_and_none_is_constant(splits):
    features = splits["train"].features
    assert np.isfinite(features).all() and (features.std(0) > 0).all()
    assert (features[:, :2].max(0) > 20 * np.median(features[:, :2], 0)).all()


def test_queries_differ_in_difficulty(splits):
    """More between the means of queries than the noise of single documents explains."""
    lists = splits["train"]
    means = np.add.reduceat(lists.labels, lists.offsets[:-1]) / lists.lengths
    assert means.var() > 2 * (lists.labels.var() / lists.lengths).mean()


def test_one_feature_is_not_enough_and_there_is_a_signal(splits):
    feature, sign = best_feature(splits["train"], 10)
    single = ndcg_by_list(splits["test"], sign * splits["test"].features[:, feature], 10).mean()
    random = ndcg_by_list(splits["test"], np.zeros(len(splits["test"].labels), np.float32), 10).mean()
    assert random + 0.05 < single < 0.75


@pytest.mark.parametrize("options", [{"features": 7}, {"queries": (10, 0, 10)}])
def test_impossible_sets_are_refused(options):
    with pytest.raises(ValueError, match="expected at least 8 features"):
        generated_splits(**options)
