"""Laws that hold on every list, and a naive oracle in plain Python for all options at once.

Shapes are few, so that each law compiles a handful of programs and then only draws numbers: six lists an example.
"""

import itertools
import math

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import jaxrank
from jaxrank import dcg_at_k, ideal_dcg_at_k, ndcg_at_k, ranked_ndcg_at_k

TIES = ("average", "stable", "best", "worst")
SHAPE = LISTS, N = 6, 7
CUTOFFS = (1, 2, 3, 5)  # short of the whole list, so that ties go on past the last one
EMPTY = 0.125

GAINS = {
    "exponential": (jaxrank.exponential_gain, lambda y: math.expm1(y * math.log(2))),
    "linear": (jaxrank.linear_gain, float),
    "table": (jaxrank.table_gain([0, 1, 1, 5, 12]), lambda y: [0, 1, 1, 5, 12][int(y)]),
    "falling table": (jaxrank.table_gain([0, 3, 0, 7, 2]), lambda y: [0, 3, 0, 7, 2][int(y)]),
}
DISCOUNTS = {
    "log2": (jaxrank.log2_discount, lambda i: 1 / math.log2(i + 1)),
    "reciprocal": (jaxrank.reciprocal_discount, lambda i: 1 / i),
    "geometric": (jaxrank.geometric_discount(0.75), lambda i: 0.75 ** (i - 1)),
}


def oracle(scores, labels, where, k, gain, discount, ties):
    """NDCG@k of one list, by the definition."""

    def dcg(gains):
        return math.fsum(g * discount(i) for i, g in enumerate(gains[:k], 1))

    items = [(s, 0.0 if y <= 0 else gain(y)) for s, y, w in zip(scores, labels, where, strict=True) if w]
    ideal = dcg(sorted((g for _, g in items), reverse=True))
    ranked = []
    for score in sorted({s for s, _ in items if s != -math.inf}, reverse=True):
        group = [g for s, g in items if s == score]
        mean = math.fsum(group) / len(group)
        ranked += {
            "average": [mean] * len(group),
            "stable": group,
            "best": sorted(group, reverse=True),
            "worst": sorted(group),
        }[ties]
    return dcg(ranked) / ideal if ideal > 0 else EMPTY


def oracle_values(scores, labels, where, cutoffs, gain, discount, ties):
    lists = [array.tolist() for array in (scores, labels, where)]
    return [[oracle(s, y, w, k, gain, discount, ties) for k in cutoffs] for s, y, w in zip(*lists, strict=True)]


def arrays(elements, dtype: type = np.float32, shape: tuple[int, ...] = SHAPE):
    return hnp.arrays(dtype, shape, elements=elements)


# No subnormal numbers: XLA counts them as 0 on the CPU.
TIED_SCORES = st.sampled_from([-np.inf, -1.5, -0.0, 0.0, 0.5, 3.0, np.inf])
SCORES = TIED_SCORES | st.floats(allow_nan=False, allow_subnormal=False, width=32)
GRADES = st.sampled_from([-2, 0, 0, 1, 2, 3, 4])
LABELS = GRADES | st.floats(2**-100, 40, width=32)
MASKS = arrays(st.booleans(), bool)


def same(values, others):
    """To the last bit; NaN is NaN."""
    np.testing.assert_array_equal(np.asarray(values), np.asarray(others))


def close(values, others, rtol=1e-6):
    np.testing.assert_allclose(np.asarray(values), np.asarray(others), rtol=rtol, atol=1e-7)


# ----------------------------------------------------------------------------------------------------------- the oracle


# Every tie rule with every gain, every tie rule and every gain with every discount.
RULES = [
    (ties, gain, list(DISCOUNTS)[(i + j) % len(DISCOUNTS)])
    for (i, ties), (j, gain) in itertools.product(enumerate(TIES), enumerate(GAINS))
]


@pytest.mark.parametrize(("ties", "gain", "discount"), RULES)
@settings(max_examples=12)
@given(data=st.data())
def test_oracle(ties, gain, discount, data):
    scores = data.draw(arrays(SCORES))
    labels = data.draw(arrays(GRADES if "table" in gain else LABELS))
    where = data.draw(MASKS)
    (gain_fn, gain_of), (discount_fn, discount_of) = GAINS[gain], DISCOUNTS[discount]
    values = ndcg_at_k(
        scores, labels, CUTOFFS, where=where, gain_fn=gain_fn, discount_fn=discount_fn, ties=ties, empty=EMPTY
    )
    close(values, oracle_values(scores, labels, where, CUTOFFS, gain_of, discount_of, ties))


@pytest.mark.parametrize("ties", TIES)
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(scores=arrays(SCORES, np.float64), labels=arrays(LABELS, np.float64), where=MASKS)
def test_oracle_in_float64(x64, ties, scores, labels, where):
    values = ndcg_at_k(scores, labels, CUTOFFS, where=where, ties=ties, empty=EMPTY)
    rules = GAINS["exponential"][1], DISCOUNTS["log2"][1], ties
    close(values, oracle_values(scores, labels, where, CUTOFFS, *rules), 1e-12)


@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("distinct", [1, 3, 40, 10**6])
def test_oracle_on_long_lists(ties, distinct):
    """Longer than what is averaged by pairs, and cut in the middle of ties."""
    rng = np.random.default_rng(distinct)
    scores = rng.integers(0, distinct, (4, 150)).astype(np.float32)
    labels, where = rng.integers(-1, 5, scores.shape), rng.random(scores.shape) < [[0.1], [0.5], [0.9], [1]]
    cutoffs = (10, 47, 48, 49, 50, 100, 150)
    rules = GAINS["exponential"][1], DISCOUNTS["log2"][1], ties
    expected = oracle_values(scores, labels, where, cutoffs, *rules)
    close(ndcg_at_k(scores, labels, cutoffs, where=where, ties=ties, empty=EMPTY), expected)
    expected = np.ravel(oracle_values(scores, labels, where, (48,), *rules))
    close(ndcg_at_k(scores, labels, 48, where=where, ties=ties, empty=EMPTY), expected)


# ------------------------------------------------------------------------------------------------------------- the laws


@pytest.mark.parametrize("ties", TIES)
@given(scores=arrays(SCORES), labels=arrays(LABELS), where=MASKS)
def test_range(ties, scores, labels, where):
    values = np.asarray(ndcg_at_k(scores, labels, CUTOFFS, where=where, ties=ties))
    assert ((values >= 0) & (values <= 1)).all(), values


@pytest.mark.parametrize("ties", ["average", "best"])
def test_a_nearly_perfect_order_is_not_above_1(ties):
    """Grades that differ by rounding, in an order that is not quite theirs: the two sums round differently."""
    rng = np.random.default_rng(0)
    labels = np.float32(rng.integers(0, 5, (512, 60)) * (1 + 1e-7 * rng.normal(size=(512, 60))))
    values = np.asarray(ndcg_at_k(np.float32(labels + 1e-6 * rng.normal(size=labels.shape)), labels, ties=ties))
    assert (values <= 1).all() and (values > 1 - 1e-5).all()


@pytest.mark.parametrize("gain", ["exponential", "linear", "table"])
@pytest.mark.parametrize("ties", TIES)
@settings(max_examples=25)
@given(data=st.data())
def test_a_perfect_order_is_exactly_1(ties, gain, data):
    labels = data.draw(arrays(GRADES if gain == "table" else LABELS))
    where = data.draw(MASKS)
    values = ndcg_at_k(labels, labels, CUTOFFS, where=where, ties=ties, gain_fn=GAINS[gain][0], empty=1.0)
    same(values, np.ones_like(values))


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_perfect_long_order_is_exactly_1(seed):
    labels = np.random.default_rng(seed).choice([0, 1, 2, 0.3, 2.7], (8, 60)).astype(np.float32)
    for k in (30, (1, 10, 48, 49, 60)):
        values = ndcg_at_k(labels, labels, k, empty=1.0)
        same(values, np.ones_like(values))


@pytest.mark.parametrize("ties", ["average", "best", "worst"])
@given(scores=arrays(SCORES), labels=arrays(LABELS), where=MASKS, order=st.permutations(range(N)))
def test_the_order_of_the_input_does_not_matter(ties, scores, labels, where, order):
    values = ndcg_at_k(scores, labels, CUTOFFS, where=where, ties=ties)
    close(ndcg_at_k(scores[:, order], labels[:, order], CUTOFFS, where=where[:, order], ties=ties), values)


@given(scores=st.permutations(range(N)), labels=arrays(LABELS), order=st.permutations(range(N)))
def test_the_order_of_the_input_does_not_matter_to_stable_without_ties(scores, labels, order):
    scores = np.broadcast_to(np.float32(scores), SHAPE)
    values = ndcg_at_k(scores, labels, CUTOFFS, ties="stable")
    same(ndcg_at_k(scores[:, order], labels[:, order], CUTOFFS, ties="stable"), values)


MONOTONE = {
    "shift": lambda s: s - 7,
    "scale": lambda s: 1e30 * s,
    "cube": lambda s: s**3 + s,
    "logistic": lambda s: 1 / (1 + np.exp(-s)),
    "rank": lambda s: np.searchsorted(np.unique(s), s),
}


@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("name", MONOTONE)
@settings(max_examples=10)
@given(scores=arrays(st.integers(-4, 4)), labels=arrays(LABELS), where=MASKS)
def test_only_the_order_of_the_scores_matters(name, ties, scores, labels, where):
    values = ndcg_at_k(scores, labels, CUTOFFS, where=where, ties=ties)
    same(ndcg_at_k(MONOTONE[name](scores).astype(np.float32), labels, CUTOFFS, where=where, ties=ties), values)


@pytest.mark.parametrize("ties", TIES)
@given(scores=arrays(SCORES), labels=arrays(LABELS), where=MASKS)
def test_dcg_never_falls_with_k(ties, scores, labels, where):
    for values in (
        dcg_at_k(scores, labels, CUTOFFS, where=where, ties=ties),
        ideal_dcg_at_k(labels, CUTOFFS, where=where),
    ):
        assert (np.diff(values, axis=-1) >= 0).all(), values


@pytest.mark.parametrize("ties", TIES)
@given(scores=arrays(SCORES), labels=arrays(LABELS), where=MASKS)
def test_ndcg_is_the_ratio_of_its_halves(ties, scores, labels, where):
    ideal = np.asarray(ideal_dcg_at_k(labels, CUTOFFS, where=where))
    dcg = np.asarray(dcg_at_k(scores, labels, CUTOFFS, where=where, ties=ties))
    ratio = np.divide(dcg, ideal, out=np.full_like(dcg, EMPTY), where=ideal > 0)
    close(ndcg_at_k(scores, labels, CUTOFFS, where=where, ties=ties, empty=EMPTY), ratio)


@pytest.mark.parametrize("ties", TIES)
@given(scores=arrays(SCORES), labels=arrays(LABELS), where=MASKS, order=st.permutations(range(N + 3)))
def test_a_padded_list_is_the_shorter_list(ties, scores, labels, where, order):
    """Three more slots anywhere, holding anything."""

    def pad(array, fill):
        return np.concatenate([array, np.broadcast_to(fill, (LISTS, 3))], axis=-1)[:, order]

    keep = sorted(range(N + 3), key=lambda i: order[i])[:N]  # where the items went ...
    back = np.argsort(keep)  # ... and the order they now stand in, which `stable` goes by
    padded = pad(scores, [np.nan, np.inf, 0]), pad(labels, [np.nan, np.inf, 9])
    values = ndcg_at_k(*padded, CUTOFFS, where=pad(where, False), ties=ties)
    close(values, ndcg_at_k(scores[:, back], labels[:, back], CUTOFFS, where=where[:, back], ties=ties))


@pytest.mark.parametrize("ties", TIES)
@given(data=st.data())
def test_a_batch_mate_never_changes_a_value(ties, data):
    scores, others = data.draw(arrays(SCORES)), data.draw(arrays(SCORES | st.just(np.nan)))
    labels, where = data.draw(arrays(LABELS)), data.draw(MASKS)
    values = ndcg_at_k(scores, labels, CUTOFFS, where=where, ties=ties)
    mixed = np.concatenate([scores[: LISTS // 2], others[LISTS // 2 :]])
    same(ndcg_at_k(mixed, labels, CUTOFFS, where=where, ties=ties)[: LISTS // 2], values[: LISTS // 2])


@given(scores=arrays(SCORES), labels=arrays(LABELS), where=MASKS)
def test_the_tie_rules_are_ordered(scores, labels, where):
    average, stable, best, worst = (
        np.asarray(ndcg_at_k(scores, labels, CUTOFFS, where=where, ties=ties)) for ties in TIES
    )
    slack = 1e-6
    assert (worst <= average + slack).all() and (average <= best + slack).all()
    assert (worst <= stable + slack).all() and (stable <= best + slack).all()


@settings(max_examples=25)
@given(scores=arrays(TIED_SCORES, shape=(5,)), labels=arrays(LABELS, shape=(5,)))
def test_the_tie_rules_over_every_order_of_the_input(scores, labels):
    """Input order breaks ties, so all permutations break them in all ways: their mean, maximum and minimum."""
    orders = np.array(list(itertools.permutations(range(5))))
    cutoffs = (1, 2, 3, 4, 5)
    broken = np.asarray(ndcg_at_k(scores[orders], labels[orders], cutoffs, ties="stable"), np.float64)
    for ties, reduce in {"average": np.mean, "best": np.max, "worst": np.min}.items():
        close(ndcg_at_k(scores, labels, cutoffs, ties=ties), reduce(broken, axis=0))


@pytest.mark.parametrize("ties", ["average", "worst"])
@given(scores=arrays(SCORES), labels=arrays(LABELS), where=MASKS)
def test_one_cutoff_is_a_column_of_many(ties, scores, labels, where):
    values = ndcg_at_k(scores, labels, CUTOFFS, where=where, ties=ties)
    close(ndcg_at_k(scores, labels, 2, where=where, ties=ties), values[:, 1])
    whole = ndcg_at_k(scores, labels, where=where, ties=ties)
    same(ndcg_at_k(scores, labels, 10 * N, where=where, ties=ties), whole)
    close(ndcg_at_k(scores, labels, (1, N), where=where, ties=ties)[:, 1], whole)


@given(scores=arrays(SCORES), labels=arrays(GRADES), exponent=st.integers(-120, 120))
def test_linear_gain_has_no_unit(scores, labels, exponent):
    values = ndcg_at_k(scores, labels, CUTOFFS, gain_fn=jaxrank.linear_gain)
    same(ndcg_at_k(scores, np.ldexp(labels, exponent), CUTOFFS, gain_fn=jaxrank.linear_gain), values)


@pytest.mark.parametrize("ties", TIES)
@given(scores=arrays(SCORES), labels=arrays(LABELS), where=MASKS, order=st.permutations(range(N)))
def test_ideal_labels_stand_for_what_was_not_retrieved(ties, scores, labels, where, order):
    scores[:, 4:] = -np.inf
    values = ndcg_at_k(scores, labels, CUTOFFS, where=where, ties=ties)
    judged = np.where(where, labels, 0)[:, order]
    retrieved = ndcg_at_k(scores[:, :4], labels[:, :4], CUTOFFS, where=where[:, :4], ties=ties, ideal_labels=judged)
    close(retrieved, values)


@given(scores=st.permutations(range(N)), labels=arrays(LABELS), where=MASKS)
def test_ranked_relevance_is_the_labels_in_descending_order_of_score(scores, labels, where):
    values = ndcg_at_k(np.broadcast_to(np.float32(scores), SHAPE), labels, CUTOFFS, where=where)
    descending = np.argsort(scores)[::-1]
    close(ranked_ndcg_at_k(labels[:, descending], CUTOFFS, where=where[:, descending]), values)
