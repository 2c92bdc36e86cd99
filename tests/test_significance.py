"""Comparing systems: against SciPy, against every sign enumerated, and against ranx's published test."""

import itertools

import numpy as np
import pytest
from scipy import stats

from jaxrank.significance import SAME, compare, holm


def lists(n, systems=2, seed=0, shift=0.05):
    rng = np.random.default_rng(seed)
    base = rng.uniform(size=n)
    return [np.clip(base + i * shift + rng.normal(0, 0.15, n), 0, 1) for i in range(systems)]


def enumerated_p(differences):
    """Fisher's randomisation test as Smucker et al. define it: every sign, counted."""
    observed = abs(differences.sum()) - 1e-12
    sums = [abs(np.dot(signs, differences)) for signs in itertools.product([1, -1], repeat=len(differences))]
    return np.mean(np.array(sums) >= observed)


@pytest.mark.parametrize("n", [2, 5, 9])
def test_few_lists_are_counted_exactly(n):
    a, b = lists(n)
    (pair,) = compare(a, b).pairs
    assert pair.p_randomisation == pytest.approx(enumerated_p(b - a))


def test_many_lists_agree_with_scipy():
    a, b = lists(60, shift=0.04)
    (pair,) = compare(a, b, resamples=20_000).pairs
    sampled = stats.permutation_test(
        (b - a,), np.sum, permutation_type="samples", n_resamples=20_000, rng=np.random.default_rng(7), batch=2000
    ).pvalue
    assert pair.p_randomisation == pytest.approx(sampled, abs=5 * np.sqrt(sampled / 20_000))
    assert pair.p_t == pytest.approx(stats.ttest_rel(b, a).pvalue)
    bootstrap = stats.bootstrap(
        (b - a,), np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(7), batch=2000
    ).confidence_interval
    assert (pair.low, pair.high) == pytest.approx(tuple(bootstrap), abs=1e-3)


def test_ranx():
    """`ranx.statistical_tests.fisher_randomization_test(a, b, n_permutations=1_000_000)` of ranx 0.3.21."""
    rng = np.random.default_rng(42)
    a = rng.uniform(size=50).round(4)
    b = np.clip(a + rng.normal(0.03, 0.1, 50), 0, 1).round(4)
    (pair,) = compare(a, b, resamples=200_000).pairs
    assert pair.p_randomisation == pytest.approx(0.234655, rel=0.02)


def test_means_and_counts():
    a, b, c = lists(40, 3)
    b[:3] = a[:3] + SAME / 2
    found = compare(a, b, c, names=["a", "b", "c"], resamples=2000)
    assert [s.mean for s in found.systems] == pytest.approx([a.mean(), b.mean(), c.mean()])
    assert all(s.low < s.mean < s.high for s in found.systems)
    assert [(p.first, p.second) for p in found.pairs] == [("a", "b"), ("a", "c"), ("b", "c")]
    for pair, difference in zip(found.pairs, [b - a, c - a, c - b], strict=True):
        assert pair.difference == pytest.approx(difference.mean())
        assert pair.low < pair.difference < pair.high
        assert pair.wins == (difference > SAME).sum()
        assert pair.losses == (difference < -SAME).sum()
        assert pair.wins + pair.losses + pair.ties == 40
    spread = np.ptp([a, b, c], axis=0)
    assert found.moved == tuple(np.argsort(-spread)[:5])


def test_holm():
    p = [0.04, 0.001, 0.5, 0.012, 0.03]
    assert holm(p) == pytest.approx([0.09, 0.005, 0.5, 0.048, 0.09])  # as statsmodels' multipletests(p, method="holm")
    a, b, c = lists(40, 3, shift=0.02)
    together = compare(a, b, c, resamples=2000).pairs
    alone = [stats.ttest_rel(x, y).pvalue for x, y in ((a, b), (a, c), (b, c))]
    assert [pair.p_t for pair in together] == pytest.approx(holm(alone))


def test_coverage():
    """A 90 % interval of the difference holds the truth nine times in ten, and a true null is rejected as announced."""
    rng, inside, rejected = np.random.default_rng(3), 0, 0
    for seed in range(100):
        a = rng.beta(2, 2, 40)
        b = a + rng.choice([-1, 1], 40) * rng.exponential(0.1, 40)
        (pair,) = compare(a, b, confidence=0.9, resamples=1000, seed=seed).pairs
        inside += pair.low <= 0 <= pair.high
        rejected += pair.p_randomisation <= 0.1
    assert 80 <= inside <= 97
    assert 3 <= rejected <= 20


def test_seed_and_progress():
    a, b = lists(50)
    done = []
    first, again, other = (compare(a, b, resamples=5000, seed=s, on_resamples=done.append) for s in (1, 1, 2))
    assert first == again != other
    assert sum(done) == 3 * 2 * 5000


def test_equal_and_constant():
    a, _ = lists(30)
    (same,) = compare(a, a, resamples=1000).pairs
    assert (same.p_t, same.p_randomisation, same.ties, same.low, same.high) == (1, 1, 30, 0, 0)
    (shifted,) = compare(a, a + 0.25, resamples=1000).pairs
    assert shifted.p_t < 1e-9
    assert shifted.p_randomisation < 0.01
    assert compare(a, a, resamples=1000).moved == ()


def test_lists_without_a_value_are_left_out():
    a, b = lists(20)
    kept = compare(a, b, resamples=1000)
    a, b = (np.insert(x, [0, 7], np.nan) for x in (a, b))
    found = compare(a, b, resamples=1000)
    assert (found.lists, found.left_out) == (20, 2)
    assert found.pairs == kept.pairs
    assert [a[i] - b[i] for i in found.moved] == [a[~np.isnan(a)][i] - b[~np.isnan(b)][i] for i in kept.moved]


@pytest.mark.parametrize(
    "values, options, match",
    [
        ([[0.1, 0.2]], {}, "two or more"),
        ([[0.1, 0.2], [0.1]], {}, r"shapes \(2,\), \(1,\)"),
        ([[[0.1, 0.2]], [[0.1, 0.2]]], {}, "one column"),
        ([[0.1, np.nan, 0.3], [0.1, 0.2, 0.3]], {}, "list 1 is NaN in some"),
        ([[0.1, np.inf, 0.3], [0.1, 0.2, 0.3]], {}, "infinite"),
        ([[0.1, np.nan], [0.1, np.nan]], {}, "1 lists with a value"),
        ([[0.1, 0.2], [0.1, 0.3]], {"names": ["a"]}, "expected 2 different ones"),
        ([[0.1, 0.2], [0.1, 0.3]], {"names": ["a", "a"]}, "expected 2 different ones"),
        ([[0.1, 0.2], [0.1, 0.3]], {"resamples": 0}, "resamples=0"),
        ([[0.1, 0.2], [0.1, 0.3]], {"confidence": 95.0}, "between 0 and 1"),
    ],
)
def test_errors(values, options, match):
    with pytest.raises(ValueError, match=match):
        compare(*values, **options)


def test_memory_does_not_grow_with_resamples():
    """Batches of SciPy's calls stay small: seen in the sizes that are reported."""
    a, b = lists(10_000)
    done = []
    compare(a, b, resamples=1000, on_resamples=done.append)
    assert max(done) * 10_000 <= 1 << 21
