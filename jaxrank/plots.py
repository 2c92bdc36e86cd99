"""The pictures that the command line and the notebooks show. matplotlib is loaded when one is drawn."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from jaxrank._typing import ArrayLike

SAME = 1e-6  # values of equal lists differ by rounding


def learning_curve(history: Float[np.ndarray, "epochs 2"], *, k: int | None = 10, title: str = "") -> Any:
    """Training loss and validation NDCG@k over the epochs, with the best epoch marked.

    Args:
      history: a row for each epoch: training loss, validation NDCG (`TrainState.history`).
      k: the cutoff, for the axis.
      title: of the picture.

    Returns:
      A matplotlib `Figure`, to save (`savefig`) or to show.

    Raises:
      ImportError: without matplotlib.

    Example:
      >>> figure = learning_curve(np.array([[0.5, 0.6], [0.4, 0.7], [0.3, 0.65]]))
      >>> [axes.get_ylabel() for axes in figure.axes]
      ['training loss', 'validation NDCG@10']
    """
    figure = _figure(7.0, 5.0)
    upper, lower = figure.subplots(2, 1, sharex=True)
    epochs, best = np.arange(1, len(history) + 1), int(np.argmax(history[:, 1]))
    upper.plot(epochs, history[:, 0], color="C1")
    upper.set_ylabel("training loss")
    lower.plot(epochs, history[:, 1], color="C0")
    lower.plot(epochs[best], history[best, 1], "o", color="C0", label=f"best: {history[best, 1]:.4f}, epoch {best + 1}")
    lower.set(xlabel="epoch", ylabel="validation NDCG" if k is None else f"validation NDCG@{k}")
    lower.legend(loc="lower right", frameon=False)
    for axes in (upper, lower):
        _open(axes)
    lower.xaxis.get_major_locator().set_params(integer=True)
    figure.suptitle(title)
    return figure


def query_differences(values: ArrayLike, *, names: Sequence[str], metric: str = "NDCG") -> Any:
    """How each later system differs from the first on each list: sorted, so that wins and losses can be counted.

    Args:
      values: `[systems, lists]`, two systems or more; a list that is NaN in a panel's systems is left out.
      names: of the systems.
      metric: what the values are.

    Returns:
      A matplotlib `Figure`, with a panel for each system but the first.

    Raises:
      ImportError: without matplotlib.
      ValueError: fewer than two systems, or not a name for each.

    Example:
      >>> figure = query_differences([[0.2, 0.5, 0.4], [0.3, 0.4, 0.4]], names=["old", "new"])
      >>> figure.axes[0].get_title()
      'new: 1 better, 1 worse, 1 equal'
    """
    table = _systems(values, names, 2)
    panels = len(table) - 1
    figure = _figure(7.0, 1.0 + 2.4 * panels)
    rows = figure.subplots(panels, 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for axes, system, name in zip(rows, table[1:], names[1:], strict=True):
        differences = system - table[0]
        _difference_bars(axes, np.sort(differences[~np.isnan(differences)])[::-1], name)
        axes.set_ylabel(f"{metric} less {names[0]}")
    rows[-1].set_xlabel("queries, sorted by difference")
    rows[-1].xaxis.get_major_locator().set_params(integer=True)
    return figure


def _difference_bars(axes: Any, differences: Float[np.ndarray, " lists"], name: str) -> None:
    better, worse = int((differences > SAME).sum()), int((differences < -SAME).sum())
    for sign, color in ((1, "C0"), (-1, "C3")):
        one_sided = sign * np.maximum(sign * differences, 0)
        axes.stairs(one_sided, np.arange(len(differences) + 1), fill=True, color=color)
    mean = differences.mean()
    axes.axhline(mean, color="black", ls="--", lw=1, label=f"mean {mean:+.4f}")
    axes.axhline(0, color="black", lw=0.8)
    axes.set_title(f"{name}: {better} better, {worse} worse, {len(differences) - better - worse} equal")
    axes.margins(x=0.01)
    axes.legend(loc="upper right", frameon=False)
    _open(axes)


def ndcg_by_cutoff(values: ArrayLike, cutoffs: Sequence[int], *, names: Sequence[str]) -> Any:
    """Mean NDCG@K against K, with 95 % intervals (1.96 standard errors).

    Args:
      values: `[systems, lists, cutoffs]`; a list with a NaN is left out.
      cutoffs: the values of K, rising.
      names: of the systems.

    Returns:
      A matplotlib `Figure`.

    Raises:
      ImportError: without matplotlib.
      ValueError: no system, not a name for each, or not a value for each cutoff.

    Example:
      >>> figure = ndcg_by_cutoff(np.array([[[0.2, 0.5], [0.4, 0.5]]]), [1, 5], names=["model"])
      >>> figure.axes[0].get_ylabel()
      'NDCG@K'
    """
    table = _systems(values, names, 1)
    if table.shape[2:] != (len(cutoffs),):
        raise ValueError(f"got values {table.shape} and {len(cutoffs)} cutoffs; expected [systems, lists, cutoffs]")
    figure = _figure(7.0, 4.0)
    axes = figure.subplots()
    for system, name in zip(table, names, strict=True):
        kept = system[~np.isnan(system).any(1)]
        mean, half = kept.mean(0), 1.96 * kept.std(0, ddof=1) / len(kept) ** 0.5
        (line,) = axes.plot(cutoffs, mean, "o-", ms=4, label=name)
        axes.fill_between(cutoffs, mean - half, mean + half, color=line.get_color(), alpha=0.15, lw=0)
    axes.set(xscale="log", xlabel="cutoff K", ylabel="NDCG@K", xticks=list(cutoffs), xticklabels=map(str, cutoffs))
    axes.minorticks_off()
    axes.legend(frameon=False)
    _open(axes)
    return figure


def relaxed_matrices(matrices: ArrayLike, *, titles: Sequence[str]) -> Any:
    """Relaxed permutation matrices side by side: dark where a rank is likely to be held by an item.

    Args:
      matrices: `[panels, k, n]`, rows of `neural_sort` or `soft_sort`.
      titles: one for each panel.

    Returns:
      A matplotlib `Figure`.

    Raises:
      ImportError: without matplotlib.
      ValueError: no panel, not a title for each, or not matrices.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxrank import neural_sort
      >>> figure = relaxed_matrices([neural_sort(jnp.array([0.0, 2.0, 1.0]))], titles=["temperature 1"])
      >>> figure.axes[0].get_title()
      'temperature 1'
    """
    panels = _systems(matrices, titles, 1)
    if panels.ndim != 3:
        raise ValueError(f"got matrices of shape {panels.shape}; expected [panels, k, n]")
    figure = _figure(0.8 + 2.2 * len(panels), 2.6)
    columns = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axes, matrix, title in zip(columns, panels, titles, strict=True):
        image = axes.imshow(matrix, cmap="Blues", vmin=0, vmax=1, extent=_cells(matrix.shape))
        axes.set(title=title, xlabel="item")
    columns[0].set_ylabel("rank")
    figure.colorbar(image, ax=list(columns), shrink=0.8)  # pyright: ignore[reportPossiblyUnboundVariable]
    return figure


def _cells(shape: tuple[int, ...]) -> tuple[float, float, float, float]:
    """Cells centred on 1, 2, 3, ..."""
    k, n = shape
    return 0.5, n + 0.5, k + 0.5, 0.5


def _systems(values: ArrayLike, names: Sequence[str], least: int) -> Float[np.ndarray, "systems ..."]:
    table = np.asarray(values, np.float64)
    if table.ndim < 2 or len(table) < least or len(table) != len(names):
        raise ValueError(
            f"got values of shape {table.shape} and {len(names)} names; expected [systems, ...] with a name for each, "
            f"and at least {least}"
        )
    return table


def _open(axes: Any) -> None:
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _figure(width: float, height: float) -> Any:
    """A figure outside pyplot: no display is needed and nothing global is kept."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError('plots are drawn with matplotlib: pip install "jaxrank[plots]"') from error
    return Figure((width, height), layout="constrained")
