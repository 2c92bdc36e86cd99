"""A generated learning-to-rank set, for a first look and for tests: no download, the same for everyone."""

from pathlib import Path

import numpy as np
from jaxtyping import Float, Float32, Int

from jaxrank.data._lists import RankingLists

GRADE_SHARES = (0.52, 0.23, 0.13, 0.08, 0.04)  # of grades 0 to 4, much as in the public web search sets
NAMES = ("train", "valid", "test")


def generated_splits(
    *, queries: tuple[int, int, int] = (400, 100, 200), features: int = 24, seed: int = 0
) -> dict[str, RankingLists]:
    r"""Generates training, validation and test lists that share one hidden relevance function.

    $$ \text{grade} = \#\{c : u(x) + \text{query} + \text{noise} > c\}, \qquad
       u(x) = x_1 x_2 + |x_3| - x_4^2 / 2 + 2 \max(x_5, 0) + x_6 \text{query} + \dots $$

    The features are observed through distortions (counts with a long tail, flags, saturation), so no single one of
    them ranks well and a linear model is not enough. Lengths have a long tail, and some queries are harder than others.

    Args:
      queries: lists in each of the three parts.
      features: features of a document, at least 8; those past the first 8 are copies with noise, or noise alone.
      seed: the same seed gives the same set.

    Returns:
      The lists by name: "train", "valid" and "test", with features and grades 0 to 4.

    Raises:
      ValueError: fewer than 8 features, or a part without queries.

    Example:
      >>> splits = generated_splits(queries=(30, 10, 10))
      >>> [len(lists) for lists in splits.values()], splits["train"].features.shape[1]
      ([30, 10, 10], 24)
    """
    if features < 8 or min(queries) < 1:
        raise ValueError(
            f"got features={features} and queries={queries}; expected at least 8 features, and 1 query each"
        )
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(np.log(20), 0.7, sum(queries)).round(), 3, 200).astype(np.int64)
    owner = np.repeat(np.arange(len(lengths)), lengths)
    hidden = rng.normal(size=(len(owner), 8)) + 0.4 * rng.normal(size=(len(lengths), 8))[owner]
    grades = _grades(_utility(hidden, owner, rng), rng)
    return _split(lengths, grades, _observed(hidden, features, rng), queries)


def _utility(
    hidden: Float[np.ndarray, "rows 8"], owner: Int[np.ndarray, " rows"], rng: np.random.Generator
) -> Float[np.ndarray, " rows"]:
    intent, level = rng.normal(size=(2, owner[-1] + 1))  # what the query asks for, and how easily it is met
    x = hidden.T
    value = x[0] * x[1] + np.abs(x[2]) - x[3] ** 2 / 2 + 2 * np.maximum(x[4], 0) + x[5] * intent[owner]
    return value + 0.7 * np.tanh(2 * x[6]) + 0.8 * level[owner]


def _grades(utility: Float[np.ndarray, " rows"], rng: np.random.Generator) -> Float32[np.ndarray, " rows"]:
    noisy = utility + 0.5 * utility.std() * rng.normal(size=len(utility))
    return np.searchsorted(np.quantile(noisy, np.cumsum(GRADE_SHARES)[:-1]), noisy).astype(np.float32)


def _observed(
    hidden: Float[np.ndarray, "rows 8"], features: int, rng: np.random.Generator
) -> Float32[np.ndarray, "rows f"]:
    counts = np.floor(np.exp(1.5 * hidden[:, [0, 4]]))
    flags = hidden[:, [2]] > 0.5
    plain = hidden[:, [1, 2, 3, 5, 6]]
    copies = hidden[:, rng.integers(8, size=features - 8)]
    weight = rng.uniform(0, 0.7, features - 8)
    return np.hstack([counts, flags, plain, weight * copies + rng.normal(size=copies.shape)]).astype(np.float32)


def _split(
    lengths: Int[np.ndarray, " lists"],
    grades: Float32[np.ndarray, " rows"],
    features: Float32[np.ndarray, "rows f"],
    queries: tuple[int, int, int],
) -> dict[str, RankingLists]:
    bounds = np.cumsum([0, *queries])
    rows = np.concatenate([[0], np.cumsum(lengths)])[bounds]
    return {
        name: RankingLists(
            tuple(str(query) for query in range(bounds[i], bounds[i + 1])),
            lengths[bounds[i] : bounds[i + 1]],
            grades[rows[i] : rows[i + 1]],
            features=features[rows[i] : rows[i + 1]],
        )
        for i, name in enumerate(NAMES)
    }


def write_trec_example(folder: Path, *, queries: int = 20, documents: int = 50, seed: int = 0) -> tuple[Path, Path]:
    """Writes a small TREC qrels file and a run that finds most, not all, of what is relevant.

    Args:
      folder: an existing folder.
      queries: number of queries.
      documents: documents retrieved for each.
      seed: the same seed gives the same files.

    Returns:
      The paths of qrels and run.

    Example:
      >>> import tempfile
      >>> qrels, run = write_trec_example(Path(tempfile.mkdtemp()))
      >>> run.read_text().splitlines()[0]
      'q01 Q0 d013 1 2.49 example'
    """
    rng = np.random.default_rng(seed)
    grades = rng.choice(4, size=(queries, documents + 10), p=(0.8, 0.1, 0.06, 0.04))
    scores = np.round(grades + rng.normal(0, 1.5, grades.shape), 2)
    judgements, lines = [], []
    for query in range(queries):
        name, retrieved = f"q{query + 1:02}", np.argsort(-scores[query, :documents], kind="stable")
        judgements += [f"{name} 0 d{document:03} {grade}" for document, grade in enumerate(grades[query])]
        lines += [
            f"{name} Q0 d{document:03} {rank} {scores[query, document]} example"
            for rank, document in enumerate(retrieved, 1)
        ]
    paths = folder / "example.qrels", folder / "example.run"
    for path, content in zip(paths, (judgements, lines), strict=True):
        path.write_text("\n".join(content) + "\n")
    return paths
