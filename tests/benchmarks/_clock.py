"""The clock of the benchmarks: ways to do one thing, timed in one process, in turns."""

import argparse
import importlib.util
import json
import time
from collections.abc import Callable

import jax
import numpy as np

Way = Callable[[], object]


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def seconds(way: Way) -> float:
    start = time.perf_counter()
    jax.block_until_ready(way())
    return time.perf_counter() - start


def alternated(ways: dict[str, Way], rounds: int, budget: float) -> dict[str, np.ndarray]:
    """Times of each way, in rounds: all of them see the same state of a shared machine. Slow ways run less often.

    Each round has an order of its own, as one way leaves its mark on the next: threads of PyTorch spin for a while.
    """
    rng = np.random.default_rng(0)
    once = {name: (seconds(way), seconds(way))[1] for name, way in ways.items()}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for i in range(rounds):
        for name in rng.permutation(list(ways)).tolist():
            often = max(1, int(rounds * min(1, budget / (once[name] * rounds))))
            times[name].append(seconds(ways[name]) if i < often else np.nan)
    return {name: np.array(values) for name, values in times.items()}


def rows(case: str, ours: str, times: dict[str, np.ndarray]) -> list[dict]:
    table = []
    for name, values in times.items():
        low, middle, high = np.nanpercentile(values, [25, 50, 75]) * 1e3
        ratio = float(np.nanmedian(values / times[ours]))
        table.append({"case": case, "way": name, "ms": middle, "low": low, "high": high, "ratio": ratio})
    return table


def compile_seconds(function: Callable, *arrays: jax.Array) -> float:
    start = time.perf_counter()
    jax.jit(lambda *given: function(*given)).lower(*arrays).compile()  # a new function: nothing is cached
    return time.perf_counter() - start


def show(table: list[dict]) -> None:
    case = None
    for row in table:
        if row["case"] != case:
            case = row["case"]
            print(f"\n{case:28s} {'ms':>10s} {'quartiles':>19s} {'ratio':>9s}")
        notes = "".join(f"   {row[unit]:.1f} {unit}" for unit in ("MiB", "GB/s") if unit in row)
        notes += f"   compiled in {row['compile s']:.2f} s" if "compile s" in row else ""
        spread = f"{row['low']:9.3f}-{row['high']:.3f}"
        print(f"  {row['way']:26s} {row['ms']:10.3f} {spread:>19s} {row['ratio']:8.2f}x{notes}")


def arguments(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="one size, as 1024x1000")
    parser.add_argument("--repeats", type=int, default=15, help="rounds")
    parser.add_argument("--budget", type=float, default=3.0, help="seconds that one slow way may take in a case")
    parser.add_argument("--json", help="write the rows here too")
    return parser


def report(table: list[dict], path: str | None) -> None:
    print(
        f"jax {jax.__version__} on {jax.devices()[0].device_kind}; ratio: time over that of jaxrank in the same round"
    )
    show(table)
    if path:
        with open(path, "w") as file:
            json.dump(table, file, indent=1)
