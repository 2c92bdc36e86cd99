"""`jaxrank compare`: are two runs, or several, different on the same queries?"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from jaxtyping import Float32

from jaxrank._evaluate_command import Gain, Missing, PresetName, Settings, Source, Ties
from jaxrank._evaluate_command import _settings as settings_of
from jaxrank._evaluate_command import trec_source as read_trec
from jaxrank.data import DataError
from jaxrank.significance import Comparison, Pair, compare

Format = StrEnum("Format", ["table", "json"])
LONG = 200_000_000  # numbers drawn: below it nobody waits for a bar


class Runs(NamedTuple):
    """The runs' values for the queries that all of them have."""

    names: list[str]
    queries: tuple[str, ...]
    values: Float32[np.ndarray, "runs queries"]
    dropped: int


def compare_runs(
    qrels: Annotated[Path, typer.Argument(metavar="QRELS", help="Judgements, as for evaluate.")],
    runs: Annotated[list[Path], typer.Argument(metavar="RUN_A RUN_B [RUN_C ...]", help="Two rankings or more.")],
    k: Annotated[str, typer.Option("-k", metavar="K", help="Cutoff: how many results count, or all.")] = "10",
    gain: Annotated[Gain | None, typer.Option(help="As for evaluate.", show_default="exponential")] = None,
    ties: Annotated[Ties | None, typer.Option(help="As for evaluate.", show_default="average")] = None,
    empty: Annotated[
        str | None, typer.Option(metavar="VALUE", help="As for evaluate; skip leaves such queries out.")
    ] = None,
    missing: Annotated[
        Missing | None,
        typer.Option(
            help="Judged queries that a run lacks: nothing retrieved, or left out of all runs.", show_default="count"
        ),
    ] = None,
    preset: Annotated[PresetName | None, typer.Option(metavar="NAME", help="As for evaluate.")] = None,
    resamples: Annotated[int, typer.Option(min=1000, help="For each test and interval.")] = 100_000,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same figures.")] = 0,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the differences by query: .png, .svg or .pdf.")
    ] = None,
    format: Annotated[Format, typer.Option(help="How to print the figures.")] = Format.table,
) -> None:
    """Compare runs by NDCG@K on the same queries.

    Means with 95 % bootstrap intervals; for each pair of runs the paired randomisation test and the paired t-test
    (Holm's correction with three runs or more), wins, losses and ties; and the queries that moved most.
    """
    if len(runs) < 2:
        raise typer.BadParameter("got one run; give two or more, after the judgements", param_hint="RUN_B")
    _check_plot(plot)
    settings = settings_of([k], gain, ties, empty, missing, preset)
    cutoff, *more = settings.cutoffs
    if more:
        raise typer.BadParameter(f"{k!r}; runs are compared at one cutoff", param_hint="-k")
    read = _read(qrels, runs, settings)
    with _progress(resamples, *read.values.shape) as on_resamples:
        found = _compared(read, resamples, seed, on_resamples)
    metric = "NDCG" if cutoff is None else f"NDCG@{cutoff}"
    if plot is not None:
        from jaxrank.plots import query_differences

        query_differences(read.values, names=read.names, metric=metric).savefig(plot)
    if format == Format.json:
        print(json.dumps(_as_json(found, read, metric, seed, resamples), indent=2))
    else:
        _print_tables(found, read, metric)


def _check_plot(path: Path | None) -> None:
    if path is not None and path.suffix not in (".png", ".svg", ".pdf"):
        raise typer.BadParameter(f"{path}; expected a name that ends in .png, .svg or .pdf", param_hint="--plot")
    if path is not None and not path.parent.is_dir():
        raise typer.BadParameter(f"{path}; there is no directory {path.parent}", param_hint="--plot")


def _read(qrels: Path, runs: list[Path], settings: Settings) -> Runs:
    sources = [read_trec(qrels, run, settings) for run in runs]
    by_query = [_by_query(source) for source in sources]
    common = [query for query in by_query[0] if all(query in values for values in by_query)]
    if len(common) < 2:
        raise DataError(f"the runs have {len(common)} judged queries in common; expected 2 or more")
    values = np.array([[values[query] for query in common] for values in by_query], np.float32)
    every = {query for values in by_query for query in values}
    return Runs(_names(runs), tuple(common), values, len(every) - len(common))


def _by_query(source: Source) -> dict[str, float]:
    return dict(zip(source.queries, source.values[:, 0].tolist(), strict=True))


def _names(runs: list[Path]) -> list[str]:
    """File names, or paths where those are equal."""
    names = [run.name for run in runs]
    names = names if len(set(names)) == len(runs) else [str(run) for run in runs]
    if len(set(names)) < len(runs):
        raise typer.BadParameter("the same file twice", param_hint="RUN_A RUN_B")
    return names


def _compared(read: Runs, resamples: int, seed: int, on_resamples: Callable[[int], object]) -> Comparison:
    try:
        return compare(
            *read.values, names=read.names, resamples=resamples, moved=10, seed=seed, on_resamples=on_resamples
        )
    except ValueError as error:
        raise DataError(str(error)) from error


@contextmanager
def _progress(resamples: int, runs: int, queries: int) -> Iterator[Callable[[int], object]]:
    """A bar on standard error, where somebody looks and it takes more than moments."""
    from rich.console import Console
    from rich.progress import Progress

    steps = 1 + runs * (runs - 1) // 2
    console = Console(stderr=True)
    hidden = not console.is_terminal or resamples * queries * steps < LONG
    with Progress(console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task("resampling", total=steps * resamples)
        yield lambda count: bar.advance(task, count)


# ------------------------------------------------------------------------------------------------------- the figures


def _as_json(found: Comparison, read: Runs, metric: str, seed: int, resamples: int) -> dict[str, Any]:
    return {
        "metric": metric.lower(),
        "queries": found.lists,
        "left_out": found.left_out + read.dropped,
        "confidence": 0.95,
        "resamples": resamples,
        "seed": seed,
        "systems": [_rounded(system._asdict()) for system in found.systems],
        "pairs": [_rounded(pair._asdict()) for pair in found.pairs],
        "moved": [{"query": query} | row for query, row in _moved(found, read)],
    }


def _moved(found: Comparison, read: Runs) -> list[tuple[str, dict[str, float]]]:
    return [
        (read.queries[i], _rounded(dict(zip(read.names, read.values[:, i].tolist(), strict=True)))) for i in found.moved
    ]


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    """Numbers to what float32 holds."""
    return {name: float(f"{value:.7g}") if isinstance(value, float) else value for name, value in row.items()}


def _print_tables(found: Comparison, read: Runs, metric: str) -> None:
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    console.print(f"{metric} of {len(read.names)} runs on {found.lists:,} queries", style="bold")
    console.print(
        _table(
            ("run", "mean", "95 % interval"),
            [(s.name, f"{s.mean:.4f}", f"{s.low:.4f} to {s.high:.4f}") for s in found.systems],
        )
    )
    console.print(
        _table(
            ("difference", "mean", "95 % interval", "p rand.", "p t", "+/-/="),
            [_pair_row(pair) for pair in found.pairs],
        )
    )
    if found.moved:
        console.print("Queries that moved most", style="bold")
        console.print(_table(("query", *read.names), [_moved_row(*row) for row in _moved(found, read)]))
    for note in _notes(found, read):
        print(note, file=sys.stderr)


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> Any:
    from rich.table import Table

    table = Table()
    for i, name in enumerate(header):
        table.add_column(name, justify="right" if i else "left", overflow="fold", no_wrap=i > 0)
    for row in rows:
        table.add_row(*row)
    return table


def _pair_row(pair: Pair) -> tuple[str, ...]:
    return (
        f"{pair.second} - {pair.first}",
        f"{pair.difference:+.4f}",
        f"{pair.low:+.4f} to {pair.high:+.4f}",
        _p_text(pair.p_randomisation),
        _p_text(pair.p_t),
        f"{pair.wins}/{pair.losses}/{pair.ties}",
    )


def _p_text(p: float) -> str:
    return f"{p:.4f}" if p >= 1e-4 else "<1e-4"


def _moved_row(query: str, values: dict[str, float]) -> tuple[str, ...]:
    return query, *(f"{value:.4f}" for value in values.values())


def _notes(found: Comparison, read: Runs) -> list[str]:
    notes = ["p rand.: paired randomisation test; p t: paired t-test; +/-/=: queries better, worse, equal."]
    if len(found.pairs) > 1:
        notes.append(f"p-values are corrected for {len(found.pairs)} pairs by Holm's method.")
    if found.left_out:
        notes.append(f"Without any relevant document, left out: {found.left_out:,} queries.")
    if read.dropped:
        notes.append(f"Not in every run, left out: {read.dropped:,} queries.")
    return notes
