"""The notebooks are kept as a reader should find them; that they run is for `jupyter nbconvert --execute` in CI."""

import ast
import json
import pathlib
import re

import pytest

FOLDER = pathlib.Path(__file__).parents[1] / "notebooks"
NAMES = ("ndcg", "surrogates", "train", "scale", "files")
TEXTS = {name: (FOLDER / f"{name}.ipynb").read_text() for name in NAMES}
CELLS = {name: json.loads(text)["cells"] for name, text in TEXTS.items()}

every_notebook = pytest.mark.parametrize("name", NAMES)


def source(cell):
    return "".join(cell["source"])


def code(cell):
    """Without the lines that are for IPython."""
    return "\n".join(line for line in source(cell).splitlines() if not line.startswith("%"))


def test_no_others():
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(NAMES)


@every_notebook
def test_outputs_are_kept_small_and_clean(name):
    outputs = [output for cell in CELLS[name] for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not any(output["output_type"] == "error" or output.get("name") == "stderr" for output in outputs)
    assert len(TEXTS[name]) < 60_000
    assert not any(cell["metadata"] for cell in CELLS[name])
    assert set(json.loads(TEXTS[name])["metadata"]) <= {"kernelspec", "language_info"}
    assert not re.search(r"/(tmp|root|home|work|Users|opt|var)/", TEXTS[name])


@every_notebook
def test_all_was_run_from_top_to_bottom(name):
    counts = [cell["execution_count"] for cell in CELLS[name] if cell["cell_type"] == "code"]
    assert counts == list(range(1, len(counts) + 1))


@every_notebook
def test_what_the_text_says_is_checked(name):
    """Text that says anything is followed, before the next text, by a cell that asserts; the last may point on."""
    parts, asserts = [], []
    for cell in CELLS[name]:
        if cell["cell_type"] == "markdown":
            parts.append(source(cell))
            asserts.append(False)
        else:
            asserts[-1] |= any(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(code(cell))))
    assert parts[0].startswith("# ")
    unchecked = [part for part, checked in list(zip(parts, asserts))[1:-1] if not checked]
    assert not unchecked
