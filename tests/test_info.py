"""`python -m jaxrank info`: everything that can be chosen is there, with a sentence."""

import json

import jax
import numpy
import pytest

import jaxrank
from jaxrank import _info_command
from jaxrank.cli import run
from jaxrank.metrics import TIE_RULES


@pytest.fixture
def info(capsys):
    def info(*arguments):
        with pytest.raises(SystemExit) as stop:
            run(["info", *arguments])
        assert stop.value.code == 0
        return capsys.readouterr().out

    return info


def test_everything_is_listed(info):
    sections = json.loads(info("--format", "json"))
    names = {title: list(sentences) for title, sentences in sections.items()}
    assert names["gains (gain_fn)"] == ["exponential_gain", "linear_gain", "table_gain"]
    assert names["discounts (discount_fn)"] == ["geometric_discount", "log2_discount", "reciprocal_discount"]
    assert sorted(names["tied scores (ties)"]) == sorted(TIE_RULES)
    assert names["relaxations (relaxation)"] == ["neural_sort", "soft_sort"]
    assert {"approx_ndcg_loss", "lambda_ndcg_loss", "smooth_ndcg_loss"} <= set(names["losses"])
    assert names["presets"] == list(jaxrank.presets.PRESETS)
    assert (sections["versions"]["jax"], sections["versions"]["numpy"]) == (jax.__version__, numpy.__version__)
    assert sections["devices"]["devices"] == "8 x cpu (cpu)"
    for sentences in sections.values():
        assert all(sentence and "\n" not in sentence for sentence in sentences.values())


def test_table(info):
    text = " ".join(info().split())
    for name, preset in jaxrank.presets.PRESETS.items():
        assert name in text
        assert preset.summary in text


def test_what_is_not_there(monkeypatch):
    def fails():
        raise RuntimeError("no such device")

    monkeypatch.setattr(_info_command, "PACKAGES", ("no-such-package",))
    monkeypatch.setattr(jax, "devices", fails)
    assert _info_command.versions()["no-such-package"] == "not installed"
    assert _info_command.devices() == {"error": "no such device"}
