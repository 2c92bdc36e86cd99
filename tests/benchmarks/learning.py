"""Does it pay to train on smooth NDCG? k-fold training on LightGBM's ranking example, one row a loss.

    python -m tests.benchmarks.learning [--losses smooth,softmax] [--folds 10] [--seeds 3] [--epochs 60]

The 251 queries of `../shared/data/lightgbm_rank` (train and test merged) are dealt into folds; each fold is the test
set once, the next one is for early stopping. Every loss trains the same network from the same start on the same
batches.
All folds and seeds of a loss train at once, as one compiled program with a leading axis of runs; the step is
`jaxrank.training.train_step` and the loss `named_loss`, as `python -m jaxrank train` has them. LightGBM's lambdarank
has the same folds. Differences are paired by query: each query's test NDCG, averaged over seeds, less that of softmax.
"""

import argparse
import pathlib
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrank import ndcg_at_k
from jaxrank.data import RankingLists, padded_batches, read_letor
from jaxrank.training import (
    BATCH_SIZE,
    LOSSES,
    apply_mlp,
    default_optimiser,
    features_of,
    fit_standardiser,
    init_mlp,
    named_loss,
    ndcg_by_list,
    take_lists,
    train_step,
)

FOLDER = pathlib.Path(__file__).parents[3] / "shared" / "data" / "lightgbm_rank"
BASELINE, LIGHTGBM = "softmax", "lightgbm"
LAMBDAMART = {  # as the example's train.conf
    "objective": "lambdarank",
    "metric": "ndcg",
    "eval_at": [10],
    "min_data_in_leaf": 50,
    "min_sum_hessian_in_leaf": 5.0,
    "bagging_fraction": 0.9,
    "bagging_freq": 1,
    "num_threads": 1,
    "verbose": -1,
}


class Lists(NamedTuple):
    """All queries, padded to one length."""

    features: Any
    labels: Any
    where: Any


class Runs(NamedTuple):
    """One run a (fold, seed): the queries it trains on, stops by, and is tested on (-1: none)."""

    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray
    seed: np.ndarray


def merged() -> RankingLists:
    """Train and test files as one set, without the features that never vary."""
    parts = [read_letor(FOLDER / f"rank.{name}", n_features=300) for name in ("train", "test")]
    features = np.concatenate([features_of(part) for part in parts])
    return RankingLists(
        tuple(str(i) for i in range(sum(map(len, parts)))),
        np.concatenate([part.lengths for part in parts]),
        np.concatenate([part.labels for part in parts]),
        features=features[:, features.std(0) > 0],
    )


def deal(queries: int, folds: int, seeds: int) -> Runs:
    order = np.random.default_rng(0).permutation(queries)
    parts = np.array_split(order, folds)
    width = max(map(len, parts))
    rows = []
    for seed in range(seeds):
        for fold in range(folds):
            test, valid = parts[fold], parts[(fold + 1) % folds]
            train = np.setdiff1d(order, np.concatenate([test, valid]))[: queries - 2 * width]
            rows.append((train, _filled(valid, width), _filled(test, width), seed))
    return Runs(*(np.stack(column) for column in zip(*rows, strict=True)))


def _filled(chosen: np.ndarray, width: int) -> np.ndarray:
    return np.pad(chosen, (0, width - len(chosen)), constant_values=-1)


def padded(lists: RankingLists) -> Lists:
    """Standardised by all queries: the features have no labels in them, and every loss has the same."""
    scaled = fit_standardiser(features_of(lists))(lists)
    batch = next(padded_batches(scaled, batch_size=len(lists), max_padding=1.0))
    order = np.argsort(batch.lists)
    assert batch.features is not None
    return Lists(*(jnp.asarray(x[order]) for x in (batch.features, batch.labels, batch.where)))


def train_all(loss_fn: Any, lists: Lists, runs: Runs, epochs: int, hidden: tuple[int, ...] = (64, 32)) -> np.ndarray:
    """NDCG@5 and @10 of validation and test queries after each epoch, `[epochs, runs, valid and test, 2]`."""
    optimiser = default_optimiser()
    params = jax.vmap(lambda seed: init_mlp(jax.random.key(seed), lists.features.shape[2], hidden))(runs.seed)
    opt_state = jax.vmap(optimiser.init)(params)
    steps = runs.train.shape[1] // BATCH_SIZE
    step = jax.vmap(lambda p, o, batch: train_step(apply_mlp, loss_fn, optimiser, p, o, *batch)[:2])

    @jax.jit
    def epoch(params, opt_state, batches, held_out):
        def body(carry, chosen):
            return step(carry[0], carry[1], jax.tree.map(lambda x: x[chosen], lists)), None

        params, opt_state = jax.lax.scan(body, (params, opt_state), batches)[0]
        features, labels, where = jax.tree.map(lambda x: x[held_out], lists)
        return params, opt_state, ndcg_at_k(jax.vmap(apply_mlp)(params, features), labels, (5, 10), where=where)

    values = []
    held_out = jnp.asarray(np.concatenate([runs.valid, runs.test], 1))
    for number in range(epochs):
        orders = [np.random.default_rng((seed, number)).permutation(runs.train.shape[1]) for seed in runs.seed]
        chosen = np.take_along_axis(runs.train, np.stack(orders), 1)[:, : steps * BATCH_SIZE]
        batches = jnp.asarray(chosen.reshape(len(chosen), steps, BATCH_SIZE).swapaxes(0, 1))
        params, opt_state, value = epoch(params, opt_state, batches, held_out)
        values.append(np.asarray(value))
    return np.stack(values)


def by_query(values: np.ndarray, runs: Runs, queries: int) -> np.ndarray:
    """Test NDCG@5 and @10 of each query after the epoch with the best validation NDCG@10, averaged over seeds."""
    width = runs.valid.shape[1]
    valid = np.average(
        values[:, :, :width, 1], axis=2, weights=np.broadcast_to(runs.valid >= 0, values.shape[:2] + (width,))
    )
    best = valid.argmax(0)
    tested = values[best, np.arange(values.shape[1]), width:]
    return _mean_by_query(tested, runs, queries)


def _mean_by_query(tested: np.ndarray, runs: Runs, queries: int) -> np.ndarray:
    total, count = np.zeros((queries, 2)), np.zeros((queries, 1))
    np.add.at(total, runs.test[runs.test >= 0], tested[runs.test >= 0])
    np.add.at(count, runs.test[runs.test >= 0], 1)
    return total / count


def lightgbm(lists: RankingLists, runs: Runs) -> np.ndarray:
    """LambdaMART with the parameters of the example, 100 trees, early stopping."""
    import lightgbm

    tested = np.zeros((*runs.test.shape, 2))
    for run, (train, valid, test, seed) in enumerate(zip(*runs, strict=True)):
        train, valid = (_dataset(take_lists(lists, chosen[chosen >= 0])) for chosen in (train, valid))
        stop = lightgbm.early_stopping(30, verbose=False)
        model = lightgbm.train(LAMBDAMART | {"seed": int(seed)}, train, 100, valid_sets=[valid], callbacks=[stop])
        chosen = test[test >= 0]
        held_out = take_lists(lists, chosen)
        scores = np.asarray(model.predict(features_of(held_out)), np.float32)
        tested[run, : len(chosen)] = ndcg_by_list(held_out, scores, (5, 10))
    return _mean_by_query(tested, runs, len(lists))


def _dataset(lists: RankingLists) -> Any:
    import lightgbm

    return lightgbm.Dataset(features_of(lists), lists.labels, group=lists.lengths, params={"verbose": -1})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--losses", default=",".join([*LOSSES, LIGHTGBM]))
    parser.add_argument("--folds", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=60)
    options = parser.parse_args()
    lists = merged()
    runs, arrays = deal(len(lists), options.folds, options.seeds), padded(lists)

    def tested(name: str) -> np.ndarray:
        if name == LIGHTGBM:
            return lightgbm(lists, runs)
        return by_query(train_all(named_loss(name), arrays, runs, options.epochs), runs, len(lists))

    print("| loss | NDCG@5 | less softmax | NDCG@10 | less softmax | seconds |\n|---|---|---|---|---|---|", flush=True)
    found = {}
    for name in dict.fromkeys([BASELINE, *options.losses.split(",")]):
        start = time.perf_counter()
        found[name] = tested(name)
        cells = [cell for i in (0, 1) for cell in (f"{found[name][:, i].mean():.4f}", paired(found, name, BASELINE, i))]
        print("| " + " | ".join([name, *cells, f"{time.perf_counter() - start:.0f}"]) + " |", flush=True)
    if {"smooth", LIGHTGBM} <= set(found):
        print(f"\nsmooth less {LIGHTGBM}, NDCG@10: {paired(found, 'smooth', LIGHTGBM, 1)}")


def paired(found: dict[str, np.ndarray], name: str, other: str, cutoff: int) -> str:
    """Mean difference over queries, its standard error, and t."""
    if name == other:
        return ""
    difference = found[name][:, cutoff] - found[other][:, cutoff]
    mean, error = difference.mean(), difference.std(ddof=1) / len(difference) ** 0.5
    return f"{mean:+.4f} ± {error:.4f} (t = {mean / error:.1f})"


if __name__ == "__main__":
    main()
