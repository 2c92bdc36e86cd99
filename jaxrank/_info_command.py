"""`jaxrank info`: what there is to choose from, in a sentence each, and what a bug report should name."""

import importlib.metadata
import json
import platform
import sys
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated

import jax
import typer

import jaxrank
from jaxrank.presets import PRESETS

Format = StrEnum("Format", ["table", "json"])
Sentences = dict[str, str]  # by name

TIES = {
    "average": "The expectation over random orders of the tied items, exact also at the cutoff (the default).",
    "stable": "Input order.",
    "best": "The tied items by gain, highest first: an upper bound.",
    "worst": "The tied items by gain, lowest first: a lower bound.",
}
PACKAGES = ("jax", "jaxlib", "numpy", "jaxtyping", "optax", "safetensors", "scipy", "scikit-learn", "pyarrow")


def info(format: Annotated[Format, typer.Option(help="How to print it.")] = Format.table) -> None:
    """List gains, discounts, tie rules, relaxations, losses and presets, and the versions for a bug report."""
    sections = catalogue() | {"versions": versions(), "devices": devices()}
    if format == Format.json:
        print(json.dumps(sections, indent=2))
    else:
        _print_sections(sections)


def catalogue() -> dict[str, Sentences]:
    """What the options of the library may be; a preset's sentence is how it differs from our defaults."""
    named = {suffix: _first_lines(name for name in jaxrank.__all__ if name.endswith(suffix)) for suffix in SUFFIXES}
    return {
        "gains (gain_fn)": named["_gain"],
        "discounts (discount_fn)": named["_discount"],
        "tied scores (ties)": TIES,
        "relaxations (relaxation)": _first_lines(["neural_sort", "soft_sort"]),
        "losses": named["_loss"],
        "presets": {name: preset.summary for name, preset in PRESETS.items()},
    }


SUFFIXES = ("_gain", "_discount", "_loss")


def _first_lines(names: Iterable[str]) -> Sentences:
    return {name: (getattr(jaxrank, name).__doc__ or "").split("\n\n")[0].replace("`", "").strip() for name in names}


def versions() -> Sentences:
    """Python, the platform and the packages that jaxrank may call."""
    found = {"jaxrank": jaxrank.__version__, "python": platform.python_version(), "platform": platform.platform()}
    return found | {package: _version(package) for package in PACKAGES}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def devices() -> Sentences:
    """What JAX computes on."""
    try:
        kinds = [f"{device.platform} ({device.device_kind})" for device in jax.devices()]
    except RuntimeError as error:  # a driver that does not answer is what the report is about
        return {"error": str(error)}
    counted = ", ".join(f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds))
    return {"devices": counted, "64-bit types": "on" if jax.config.jax_enable_x64 else "off"}  # pyright: ignore[reportAttributeAccessIssue]


def _print_sections(sections: dict[str, Sentences]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False)
    width = max(len(name) for sentences in sections.values() for name in sentences)
    for title, sentences in sections.items():
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(min_width=width, no_wrap=True)
        table.add_column(overflow="fold")
        for name, sentence in sentences.items():
            table.add_row(name, sentence)
        console.print(title, style="bold")
        console.print(table)
        console.print()
    print("How a system differs from jaxrank's defaults is what its preset says; use it by --preset.", file=sys.stderr)
