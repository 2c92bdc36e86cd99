"""How `jaxrank evaluate` prints its figures: a table to read, tab-separated values, or JSON."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from jaxrank.data._files import Watch

Format = StrEnum("Format", ["table", "tsv", "json"])
SOME = 5  # names in a note


class Report(NamedTuple):
    """Figures and what they are figures of."""

    name: str
    metrics: tuple[str, ...]
    queries: tuple[str, ...]
    values: Float[np.ndarray, "lists cutoffs"]
    settings: Mapping[str, Any]
    missing: tuple[str, ...]
    unjudged: tuple[str, ...]
    notes: tuple[str, ...]


class Summary(NamedTuple):
    """Figures over the queries that count; NaN values do not."""

    mean: Float[np.ndarray, " cutoffs"]
    stderr: Float[np.ndarray, " cutoffs"]
    count: int


def summarise(values: Float[np.ndarray, "lists cutoffs"]) -> Summary:
    kept = values[~np.isnan(values).any(1)].astype(np.float64)
    count = len(kept)
    nothing = np.full(values.shape[1], np.nan)
    mean = kept.mean(0) if count else nothing
    return Summary(mean, kept.std(0, ddof=1) / np.sqrt(count) if count > 1 else nothing, count)


def show(report: Report, *, per_query: bool, format: Format) -> None:
    """Prints the figures on standard output; what to know about them goes to standard error, or into the JSON."""
    if format == Format.json:
        print(json.dumps(_as_json(report, per_query), indent=2))
        return
    if format == Format.tsv:
        print("\n".join("\t".join(row) for row in _rows(report, per_query, digits=6)))
    else:
        _print_table(report, per_query)
    for note in _notes(report):
        print(note, file=sys.stderr)


@contextmanager
def reading_bar(wanted: bool = True) -> Iterator[Callable[[str], Watch | None]]:
    """Makes a bar for each file that is read, on standard error where that is a terminal."""
    if not (wanted and sys.stderr.isatty()):  # no need to import what would draw nothing
        yield lambda name: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[pace]}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield lambda name: _file_bar(progress, name)


def _file_bar(progress: Any, name: str) -> Watch:
    task, start = progress.add_task(f"reading {name}", pace=""), time.monotonic()

    def watch(lines: int, done: int, size: int) -> None:
        pace = f"{lines:,} lines, {lines / max(time.monotonic() - start, 1e-6):,.0f} lines/s"
        progress.update(task, completed=done, total=size, pace=pace)

    return watch


def _as_json(report: Report, per_query: bool) -> dict[str, Any]:
    mean, stderr, count = summarise(report.values)
    figures = {
        metric: {"mean": _number(float(mean[i])), "stderr": _number(float(stderr[i]))}
        for i, metric in enumerate(report.metrics)
    }
    answer = {"name": report.name, "metrics": figures, "queries": count, "settings": dict(report.settings)}
    answer |= {"missing": report.missing, "unjudged": report.unjudged, "notes": report.notes}
    if per_query:
        answer["per_query"] = {
            query: dict(zip(report.metrics, map(_number, row.tolist()), strict=True))
            for query, row in zip(report.queries, report.values, strict=True)
        }
    return answer


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(f"{value:.7g}")  # what float32 holds


def _rows(report: Report, per_query: bool, digits: int) -> list[list[str]]:
    rows = [["query", *report.metrics]]
    if per_query:
        rows += [[query, *_texts(row, digits)] for query, row in zip(report.queries, report.values, strict=True)]
    return [*rows, ["all", *_texts(summarise(report.values).mean, digits)]]


def _texts(values: Float[np.ndarray, " cutoffs"], digits: int) -> list[str]:
    return [f"{value:.{digits}f}" for value in values]


def _print_table(report: Report, per_query: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    mean, stderr, count = summarise(report.values)
    table = Table()
    if per_query:
        header, *body, last = _rows(report, per_query, digits=4)
        for i, name in enumerate(header):
            table.add_column(name, justify="right" if i else "left")
        for row in body:
            table.add_row(*row)
        table.add_section()
        table.add_row(*last, style="bold")
    else:
        for name in ("metric", "mean", "standard error"):
            table.add_column(name, justify="left" if name == "metric" else "right")
        for row in zip(report.metrics, _texts(mean, 4), _texts(stderr, 4), strict=True):
            table.add_row(*row)
    console = Console(highlight=False, markup=False)
    console.print(f"NDCG of {report.name}: {_count(count, 'query', 'queries')}", style="bold")
    console.print(table)


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


def _notes(report: Report) -> list[str]:
    words = {name: f"{value:g}" if isinstance(value, float) else value for name, value in report.settings.items()}
    notes = [*report.notes, "Settings: " + "; ".join(f"{name} {word}" for name, word in words.items()) + "."]
    if report.missing:
        counted = "counted as nothing retrieved" if report.settings["missing"] == "count" else "left out"
        notes.append(f"Judged but missing from the run, {counted}: {_some(report.missing)}.")
    if report.unjudged:
        notes.append(f"In the run but not judged, left out: {_some(report.unjudged)}.")
    left_out = len(report.queries) - summarise(report.values).count
    if left_out:
        notes.append(f"Without any relevant document, left out: {_count(left_out, 'query', 'queries')}.")
    return notes


def _some(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - SOME:,} more" if len(names) > SOME else ""
    return f"{_count(len(names), 'query', 'queries')} ({', '.join(names[:SOME])}{more})"
