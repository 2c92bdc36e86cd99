"""Every public symbol says on its page what it is, what it takes and gives, when it refuses, how, and whence.

That the examples run is for the doctests; the pages are built by `python -m pdoc --math jaxrank` (extra `dev`).
"""

import importlib
import inspect
import re

import pytest

import jaxrank

PAGES = {
    "jaxrank": jaxrank.__all__,
    "jaxrank.data": importlib.import_module("jaxrank.data").__all__,
    "jaxrank.data.synthetic": ["generated_splits", "write_trec_example"],
    "jaxrank.plots": ["learning_curve", "ndcg_by_cutoff", "query_differences", "relaxed_matrices"],
    "jaxrank.presets": ["Preset"],
    "jaxrank.significance": ["Comparison", "Pair", "System", "compare", "holm"],
    "jaxrank.training": importlib.import_module("jaxrank.training").__all__,
}
SYMBOLS = {
    f"{module}.{name}": getattr(importlib.import_module(module), name)
    for module, names in PAGES.items()
    for name in names
}
CLASSES = {name: symbol for name, symbol in SYMBOLS.items() if inspect.isclass(symbol)}
FUNCTIONS = {name: symbol for name, symbol in SYMBOLS.items() if inspect.isfunction(symbol)}
# The metric and what is read, compared and drawn: pages that stand alone. The parts of the training loop need less.
FULL = {name: symbol for name, symbol in FUNCTIONS.items() if not name.startswith("jaxrank.training.")}
METRIC = {name: symbol for name, symbol in FUNCTIONS.items() if name.count(".") == 1}
ELEMENTWISE = {
    f"jaxrank.{name}" for name in ("exponential_gain", "linear_gain", "log2_discount", "reciprocal_discount")
}
PLAIN = {"jaxrank.significance.holm", "jaxrank.data.synthetic.write_trec_example"} | ELEMENTWISE  # refuse nothing
OURS = {"jaxrank.dense_segments", "jaxrank.retrieve_top_k"}  # from no paper


def page(symbol):
    return inspect.getdoc(symbol) or ""


def section(symbol, title):
    found = re.search(rf"^{title}:\n((?:  .*\n|\n)+)", page(symbol) + "\n", re.M)
    return found[1] if found else ""


def parametrize(symbols):
    return pytest.mark.parametrize("name, symbol", symbols.items(), ids=symbols)


@parametrize(CLASSES | FUNCTIONS)
def test_summary(name, symbol):
    first = page(symbol).split("\n\n")[0]
    assert first and "\n" not in first, f"{name} needs a summary of one line"
    assert first[-1] in ".:" and len(first) < 120


@parametrize(CLASSES | FULL)
def test_everything_that_is_given_is_documented(name, symbol):
    if inspect.isclass(symbol) and issubclass(symbol, Exception):
        return  # its argument is the message
    given = [parameter for parameter in inspect.signature(symbol).parameters if not parameter.startswith("_")]
    documented = re.findall(r"^  (\w+): \S", section(symbol, "Args") + section(symbol, "Attributes"), re.M)
    assert documented == given


@parametrize(FULL)
def test_returns_raises_and_an_example(name, symbol):
    assert section(symbol, "Returns") or section(symbol, "Yields")
    assert section(symbol, "Raises") or name in PLAIN
    example = section(symbol, "Example")
    assert ">>> " in example and symbol.__name__ in example


@parametrize(METRIC)
def test_formula_shapes_and_source(name, symbol):
    text = page(symbol).split("Args:")[0]
    assert "`" in text or "softmax" in text, f"{name} needs its formula"
    if name not in ELEMENTWISE:
        assert re.search(r"`[^`]*\[[^`]*\][^`]*`", section(symbol, "Args") + section(symbol, "Returns")) or "Fn" in str(
            inspect.signature(symbol).return_annotation
        )
    assert section(symbol, "References") or name in OURS, f"{name} needs a source"


def test_doctests_of_the_pages_are_collected():
    """Each example is found by doctest, decorated or not, so that it is run."""
    import doctest

    for name, symbol in FULL.items():
        module = importlib.import_module(inspect.unwrap(symbol).__module__)
        found = {test.name.split(".")[-1] for test in doctest.DocTestFinder(exclude_empty=True).find(module)}
        assert symbol.__name__ in found, name
