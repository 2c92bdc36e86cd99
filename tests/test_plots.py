"""The pictures: what they say, and what they refuse."""

import subprocess
import sys

import numpy as np
import pytest

from jaxrank import plots


def test_query_differences():
    first = np.linspace(0, 1, 6)
    second = first + [0.1, -0.1, 0.2, 0, np.nan, -0.3]
    figure = plots.query_differences([first, second, first], names=["a", "b", "c"], metric="NDCG@5")
    upper, lower = figure.axes
    assert upper.get_title() == "b: 2 better, 2 worse, 1 equal"
    assert lower.get_title() == "c: 0 better, 0 worse, 6 equal"
    assert upper.get_ylabel() == "NDCG@5 less a"
    better, worse = (patch.get_data().values for patch in upper.patches)
    np.testing.assert_allclose(better, [0.2, 0.1, 0, 0, 0], atol=1e-12)
    np.testing.assert_allclose(worse, [0, 0, 0, -0.1, -0.3], atol=1e-12)


def test_ndcg_by_cutoff():
    values = np.random.default_rng(0).uniform(size=(2, 50, 3))
    figure = plots.ndcg_by_cutoff(values, [1, 5, 10], names=["a", "b"])
    (axes,) = figure.axes
    for line, band, system in zip(axes.lines, axes.collections, values):
        np.testing.assert_allclose(line.get_ydata(), system.mean(0))
        half = 1.96 * system.std(0, ddof=1) / 50**0.5
        ends = band.get_paths()[0].vertices[:, 1]
        assert ends.min() == pytest.approx((system.mean(0) - half).min())
        assert ends.max() == pytest.approx((system.mean(0) + half).max())
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "5", "10"]


def test_relaxed_matrices():
    matrices = np.random.default_rng(0).uniform(size=(3, 2, 5))
    figure = plots.relaxed_matrices(matrices, titles=["a", "b", "c"])
    *panels, _ = figure.axes
    for axes, matrix in zip(panels, matrices, strict=True):
        np.testing.assert_allclose(axes.images[0].get_array(), matrix)
        assert axes.images[0].get_extent() == [0.5, 5.5, 2.5, 0.5]


@pytest.mark.parametrize(
    "draw, match",
    [
        (lambda: plots.query_differences([[0.1, 0.2]], names=["a"]), "at least 2"),
        (lambda: plots.query_differences([[0.1], [0.2]], names=["a"]), "a name for each"),
        (lambda: plots.ndcg_by_cutoff(np.zeros((1, 4, 2)), [1, 5, 10], names=["a"]), "3 cutoffs"),
        (lambda: plots.ndcg_by_cutoff(np.zeros(4), [1], names=["a"]), "expected"),
        (lambda: plots.relaxed_matrices(np.zeros((2, 2)), titles=["a", "b"]), r"\[panels, k, n\]"),
    ],
)
def test_errors(draw, match):
    with pytest.raises(ValueError, match=match):
        draw()


def test_without_matplotlib():
    """The line to type, and nothing is drawn or loaded before."""
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from jaxrank import plots\n"
        "try: plots.query_differences([[0.1], [0.2]], names=['a', 'b'])\n"
        "except ImportError as error: print(error)\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert 'pip install "jaxrank[plots]"' in out
