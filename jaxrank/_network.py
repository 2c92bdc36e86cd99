"""The scorer of the command line: a multilayer perceptron on standardised features, in plain JAX."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, PyTree

from jaxrank._arrays import expand
from jaxrank._processes import ALONE, Processes
from jaxrank.data import RankingLists


def features_of(lists: RankingLists, name: str = "a file") -> Float32[np.ndarray, "rows f"]:
    """The features, which training cannot do without."""
    if lists.features is None:
        raise ValueError(f"{name} has no features; read a file that has them, or give RankingLists(features=...)")
    return lists.features


def init_mlp(key: Array, features: int, hidden: Sequence[int] = (64, 32)) -> PyTree:
    """Weights of a ReLU network with one output.

    The last layer is small and random: from zero scores, which tie, the gradient of NeuralSort says little, and large
    first scores are as if the temperature were too low.

    Args:
      key: a `jax.random.key`.
      features: features of a document.
      hidden: widths of the hidden layers.

    Returns:
      A list of layers, each `{"weight": [in, out], "bias": [out]}`.

    Example:
      >>> [layer["weight"].shape for layer in init_mlp(jax.random.key(0), 24)]
      [(24, 64), (64, 32), (32, 1)]
    """
    sizes = [features, *hidden, 1]
    keys = jax.random.split(key, len(sizes) - 1)
    scales = [2.0**0.5] * len(hidden) + [0.1]
    return [
        {"weight": jax.random.normal(key, (m, n)) * (scale / m**0.5), "bias": jnp.zeros(n)}
        for key, m, n, scale in zip(keys, sizes[:-1], sizes[1:], scales, strict=True)
    ]


def apply_mlp(params: PyTree, features: Float[Array, "*batch f"]) -> Float[Array, "*batch"]:
    """Scores of documents, `[..., f] -> [...]`, by the network that `init_mlp` makes."""
    x = features
    for i, layer in enumerate(params):
        x = jnp.dot(x if i == 0 else jax.nn.relu(x), layer["weight"])
        x += expand(layer["bias"], x.ndim)
    return x.squeeze(-1)


class Standardiser(NamedTuple):
    """Feature by feature: `log1p` where skewed, less `shift`, times `scale`; a constant feature becomes 0.

    Args:
      skewed: whether a feature goes through `log1p`.
      shift: its mean.
      scale: one over its standard deviation, or 0.
    """

    skewed: Bool[np.ndarray, " f"]
    shift: Float32[np.ndarray, " f"]
    scale: Float32[np.ndarray, " f"]

    def __call__(self, lists: RankingLists) -> RankingLists:
        """The lists with standardised features."""
        return replace(lists, features=self.transform(features_of(lists)))

    def transform(self, features: Float32[np.ndarray, "rows f"]) -> Float32[np.ndarray, "rows f"]:
        logs = np.log1p(np.maximum(features, 0), where=self.skewed, out=features.copy())
        return (logs - self.shift) * self.scale


def fit_standardiser(features: Float32[np.ndarray, "rows f"], processes: Processes = ALONE) -> Standardiser:
    """Measures the training set's features; one with a long upper tail, and never negative, is skewed.

    With several processes, each gives the rows that it holds, and all get the measures of all rows.

    Example:
      >>> fit_standardiser(np.array([[1, 0], [2, 0], [3, 0], [1000, 0]], np.float32)).skewed.tolist()
      [True, False]
    """
    logs = np.log1p(np.maximum(features, 0))
    count = processes.total(np.array([len(features)]))

    def mean(values: Float[np.ndarray, "rows f"]) -> Float[np.ndarray, " f"]:
        return processes.total(values.sum(0, dtype=np.float64)) / count

    least = processes.gathered(features.min(0, initial=np.inf)).min(0)
    skewed = (least >= 0) & (_skewness(features, mean) > 1) & (_skewness(logs, mean) < _skewness(features, mean))
    values = np.where(skewed, logs, features)
    shift = mean(values)
    spread = np.sqrt(mean((values - shift) ** 2))
    scale = np.divide(1, spread, where=spread > 0, out=np.zeros_like(spread))
    return Standardiser(skewed, shift.astype(np.float32), scale.astype(np.float32))


def _skewness(
    values: Float32[np.ndarray, "rows f"], mean: Callable[[Float[np.ndarray, "rows f"]], Float[np.ndarray, " f"]]
) -> Float[np.ndarray, " f"]:
    centred = values - mean(values)
    spread = np.sqrt(mean(centred**2))
    return np.divide(mean(centred**3), spread**3, where=spread > 0, out=np.zeros_like(spread))
