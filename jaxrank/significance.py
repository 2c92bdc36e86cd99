"""Are two systems different? Means with bootstrap intervals and paired tests on their values for the same lists.

SciPy does the statistics; here is what makes 100 000 resamples of 10 000 lists fit in memory, and the correction for
testing several pairs.
"""

import itertools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int, UInt8

from jaxrank._typing import ArrayLike

DRAWN = 1 << 21  # numbers drawn at once: 16 MiB
SAME = 1e-6  # values of equal lists differ by rounding

OnResamples = Callable[[int], object]


class System(NamedTuple):
    """One system's mean over the lists, with a bootstrap interval.

    Args:
      name: of the system.
      mean: of its values.
      low: lower end of the interval.
      high: upper end.
    """

    name: str
    mean: float
    low: float
    high: float


class Pair(NamedTuple):
    """How the second of two systems differs from the first, on the same lists.

    Args:
      first: a system.
      second: another.
      difference: mean of the second less mean of the first.
      low: lower end of its bootstrap interval.
      high: upper end.
      p_randomisation: p-value of the paired randomisation test, two-sided, corrected for the number of pairs.
      p_t: p-value of the paired t-test, two-sided, corrected likewise.
      wins: lists on which the second is better.
      losses: lists on which it is worse.
      ties: lists on which they agree.
    """

    first: str
    second: str
    difference: float
    low: float
    high: float
    p_randomisation: float
    p_t: float
    wins: int
    losses: int
    ties: int


class Comparison(NamedTuple):
    """What `compare` found.

    Args:
      systems: in the order given.
      pairs: every system with every later one.
      moved: positions of the lists on which the systems lie furthest apart, furthest first.
      lists: how many lists were compared.
      left_out: how many were left out, since they have no value (NaN) in any system.
    """

    systems: tuple[System, ...]
    pairs: tuple[Pair, ...]
    moved: tuple[int, ...]
    lists: int
    left_out: int


def compare(
    *values: ArrayLike,
    names: Sequence[str] | None = None,
    resamples: int = 100_000,
    confidence: float = 0.95,
    moved: int = 5,
    seed: int = 0,
    on_resamples: OnResamples = lambda count: None,
) -> Comparison:
    """Compares systems by their values on the same lists: `compare(ndcg_a, ndcg_b)`, or more of them.

    Under the null hypothesis of the randomisation test each list's difference `d_i` is as likely `-d_i`:
    `p = P(|sum_i s_i d_i| >= |sum_i d_i|)` over random signs s; all of them are counted where there are no more than
    `resamples`. Intervals are percentiles of means over lists drawn with replacement. With several pairs p-values are
    Holm's, so that the chance of any false alarm is bounded.

    Args:
      values: `[lists]`, one array for each system, at least two; entry i of all belongs to the same list. NaN is a
        list without a value (`empty=nan`): it is left out, and has to be NaN in all systems.
      names: of the systems; "A", "B", ... by default.
      resamples: how many for each test and interval. Memory does not depend on it.
      confidence: of the intervals.
      moved: how many of the lists that moved most to name.
      seed: the same seed gives the same figures.
      on_resamples: called with a number of resamples when so many more are done, to show progress; there are
        `resamples` for the intervals and as many for each pair.

    Returns:
      A `Comparison`.

    Raises:
      ImportError: without SciPy.
      ValueError: fewer than two systems or lists, lengths that differ, NaN in some systems only, or infinite values.

    Example:
      >>> a = np.array([0.2, 0.5, 0.9, 0.4, 0.1, 0.6, 0.3])
      >>> found = compare(a, a + 0.1, names=["old", "new"])
      >>> pair = found.pairs[0]
      >>> round(pair.difference, 3), pair.p_randomisation, pair.wins  # 2 of the 2^7 signs are as extreme
      (0.1, 0.015625, 7)

    References:
      Smucker, Allan and Carterette (2007), A comparison of statistical significance tests for information retrieval
      evaluation; Sakai (2006), Evaluating evaluation metrics based on the bootstrap; Holm (1979), A simple
      sequentially rejective multiple test procedure.
    """
    table, left_out = _checked(values)
    names = _names(names, len(table))
    if resamples < 1 or not 0 < confidence < 1:
        raise ValueError(
            f"got resamples={resamples} and confidence={confidence}; expected 1 or more, and between 0 and 1"
        )
    rng = np.random.default_rng(seed)
    pairs = list(itertools.combinations(range(len(table)), 2))
    centres, lows, highs = _intervals(table, pairs, resamples, confidence, rng, on_resamples)
    differences = [table[second] - table[first] for first, second in pairs]
    p_randomisation = holm([_randomisation_p(difference, resamples, rng, on_resamples) for difference in differences])
    p_t = holm([_t_test_p(difference) for difference in differences])
    systems = [System(*row) for row in zip(names, centres, lows, highs, strict=False)]
    intervals = zip(pairs, centres[len(table) :], lows[len(table) :], highs[len(table) :], strict=True)
    compared = [
        Pair(names[first], names[second], centre, low, high, p_r, p, *_counts(difference))
        for ((first, second), centre, low, high), difference, p_r, p in zip(
            intervals, differences, p_randomisation, p_t, strict=True
        )
    ]
    kept = np.flatnonzero(~np.isnan(np.asarray(values[0], np.float64)))
    furthest = most_moved(table, moved)
    return Comparison(tuple(systems), tuple(compared), tuple(kept[furthest].tolist()), table.shape[1], left_out)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction of p-values, in their order: the i-th smallest of m counts m - i + 1 times, and never falls.

    Args:
      p_values: one for each test.

    Returns:
      The corrected p-values, in the same order, at most 1.

    Example:
      >>> holm([0.01, 0.04, 0.03])
      [0.03, 0.06, 0.06]
    """
    p, order = np.asarray(p_values, np.float64), np.argsort(p_values)
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)), 1)
    return corrected.tolist()


def most_moved(values: Float[np.ndarray, "systems lists"], count: int) -> Int[np.ndarray, " moved"]:
    """The lists on which the systems lie furthest apart, furthest first, earlier ones first among equals."""
    spread = np.ptp(values, axis=0)
    order = np.argsort(-spread, kind="stable")[:count]
    return order[spread[order] > SAME]


# -------------------------------------------------------------------------------------------------------- the border


def _checked(values: Sequence[ArrayLike]) -> tuple[Float[np.ndarray, "systems lists"], int]:
    if len(values) < 2:
        raise ValueError(f"got {len(values)} system; expected the values of two or more: compare(values_a, values_b)")
    arrays = [np.asarray(column, np.float64) for column in values]
    shapes = [array.shape for array in arrays]
    if any(len(shape) != 1 for shape in shapes) or len(set(shapes)) > 1:
        raise ValueError(
            f"got values of shapes {', '.join(map(str, shapes))}; expected one value for each list, of the same lists "
            "in the same order (a metric of several cutoffs: take one column)"
        )
    table = np.stack(arrays)
    missing = np.isnan(table)
    if (missing.any(0) != missing.all(0)).any():
        raise ValueError(
            f"list {np.flatnonzero(missing.any(0) != missing.all(0))[0]} is NaN in some systems only; a list without "
            "a relevant item is so in all of them, so NaN elsewhere comes from NaN scores"
        )
    if np.isinf(table).any():
        raise ValueError("got an infinite value; expected finite ones, or NaN for a list without a value")
    kept = ~missing[0]
    if kept.sum() < 2:
        raise ValueError(f"got {kept.sum()} lists with a value; expected 2 or more, to see how they vary")
    return table[:, kept], int((~kept).sum())


def _names(names: Sequence[str] | None, count: int) -> list[str]:
    if names is None:
        return [chr(ord("A") + i) if count <= 26 else str(i + 1) for i in range(count)]
    if len(set(names)) != count:
        raise ValueError(f"got names {list(names)}; expected {count} different ones, one for each system")
    return list(names)


# ---------------------------------------------------------------------------------------------------------- the tests


def _stats() -> Any:
    try:
        from scipy import stats
    except ImportError as error:
        raise ImportError('the tests are those of SciPy: pip install "jaxrank[cli]"') from error
    return stats


def _intervals(
    table: Float[np.ndarray, "systems lists"],
    pairs: list[tuple[int, int]],
    resamples: int,
    confidence: float,
    rng: np.random.Generator,
    on_resamples: OnResamples,
) -> tuple[list[float], ...]:
    """Centres, lower and upper ends: of the means of the systems, then of the differences of the pairs."""

    def means(*columns: Float[np.ndarray, "..."], axis: int) -> Float[np.ndarray, "..."]:
        if columns[0].ndim > 1:
            on_resamples(len(columns[0]))
        found = np.stack([column.mean(axis) for column in columns])
        return np.concatenate([found, np.stack([found[second] - found[first] for first, second in pairs])])

    drawn = _stats().bootstrap(
        tuple(table),
        means,
        n_resamples=resamples,
        batch=max(DRAWN // table.shape[1], 1),
        vectorized=True,
        paired=True,
        confidence_level=confidence,
        method="percentile",
        rng=rng,
    )
    ends = drawn.confidence_interval
    return means(*table, axis=-1).tolist(), ends.low.tolist(), ends.high.tolist()


def _randomisation_p(
    differences: Float[np.ndarray, " lists"], resamples: int, rng: np.random.Generator, on_resamples: OnResamples
) -> float:
    n = len(differences)
    if n < 63 and 2**n <= resamples:
        exact = _stats().permutation_test(
            (differences,), np.sum, permutation_type="samples", n_resamples=resamples, batch=DRAWN // n
        )
        on_resamples(resamples)
        return float(exact.pvalue)

    # `permutation_test` would draw an order for each pair, sixty times slower: one bit for each is the same test.
    def flips(size: tuple[int, int]) -> UInt8[np.ndarray, "drawn lists"]:
        on_resamples(size[0])
        return np.unpackbits(rng.integers(0, 256, (size[0], -(-n // 8)), np.uint8), axis=1, count=n)

    def flipped_sum(kept: UInt8[np.ndarray, "..."], axis: int = -1) -> Float[np.ndarray, "..."] | np.float64:
        return (2 * kept.astype(np.float64) - 1) @ differences

    test = _stats().monte_carlo_test(
        np.ones(n, np.uint8),
        flips,
        flipped_sum,
        vectorized=True,
        n_resamples=resamples,
        batch=max(DRAWN // n, 1),
    )
    return float(test.pvalue)


def _t_test_p(differences: Float[np.ndarray, " lists"]) -> float:
    if np.ptp(differences) == 0:  # t is then 0/0 or infinite
        return float(differences[0] == 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # SciPy's, of differences that are nearly constant
        return float(_stats().ttest_rel(differences, np.zeros_like(differences)).pvalue)


def _counts(differences: Float[np.ndarray, " lists"]) -> tuple[int, int, int]:
    wins, losses = int((differences > SAME).sum()), int((differences < -SAME).sum())
    return wins, losses, len(differences) - wins - losses
