"""The pictures that the command line and the notebooks show. matplotlib is loaded when one is drawn."""

from typing import Any

import numpy as np
from jaxtyping import Float


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
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    lower.xaxis.get_major_locator().set_params(integer=True)
    figure.suptitle(title)
    return figure


def _figure(width: float, height: float) -> Any:
    """A figure outside pyplot: no display is needed and nothing global is kept."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError('plots are drawn with matplotlib: pip install "jaxrank[cli]"') from error
    return Figure((width, height), layout="constrained")
