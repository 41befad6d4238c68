"""Texts said all at once, through the verbs: autoencoders and maps."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import mapsto
from mapsto.errors import ConfigError
from mapsto.models.search import Sample
from mapsto.tasks.check import check_run
from mapsto.tasks.config import Config, override
from mapsto.tasks.run import load
from mapsto.tasks.sample import sample
from mapsto.tasks.show import show
from mapsto.tasks.train import train

SMALL = ["output.autoregressive=false", "model.dim=16", "model.depth=1", "model.heads=2", "threads=1"]
LETTERS = ["input.vocabulary=characters", "output.vocabulary=characters"]


def codes(rows=300):
    """Pairs of letters of which each code has mostly one, two to five of them."""
    rng, pairs = np.random.default_rng(0), ["aa", "bb", "ab"]
    liked = [np.where(np.arange(3) == i, 0.9, 0.05) for i in range(3)]
    return ["".join(rng.choice(pairs, rng.integers(2, 6), p=p)) for p in liked for _ in range(rows // 3)]


def bits(rows=300):
    rng = np.random.default_rng(0)
    return ["".join(rng.choice(list("ab"), 6)) * 2 for _ in range(rows)]


def fitted(folder, rows, *settings, name, inputs=(), targets=(), out=None):
    config = override(Config(), [*SMALL, *LETTERS, *settings])
    config.data.source = str(folder / "rows.jsonl")
    config.data.inputs, config.data.targets = list(inputs), list(targets)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    console = Console(file=out, width=200) if out else Console(quiet=True)
    return train(config, name=name, root=folder, console=console)


@pytest.fixture(scope="module")
def again(tmp_path_factory):
    folder = tmp_path_factory.mktemp("again")
    rows = [{"code": code} for code in codes()]
    more = ("model.latent=2", "train.steps=300", "train.lr=0.01")
    return fitted(folder, rows, *more, name="codes", inputs=["code:sequence"])


@pytest.fixture(scope="module")
def mapped(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mapped")
    rows = [{"code": code, "loud": code.upper()} for code in bits()]
    more = ("train.steps=400", "train.lr=0.01", "model.dim=32")
    return fitted(folder, rows, *more, name="loud", inputs=["code:sequence"], targets=["loud:sequence"])


def test_what_is_said_at_once_must_come_through_z(again):
    run, result = again
    assert run.model.decoder.output.kind == "parallel"
    assert run.model.decoder.output.limit == 10
    assert result["metrics"]["mutual_information"] > 0.3
    assert result["metrics"]["nll"] < 0.8 * result["baselines"]["unigram"]["nll"]


def test_codes_are_drawn_and_a_path_leads_from_one_to_another(again, tmp_path):
    run, _ = again
    rows = sample(run.folder, count=40)
    assert all(set(row["code"]) <= set("ab") and len(row["code"]) <= 11 for row in rows)
    assert rows == sample(run.folder, count=40)
    assert len({row["code"] for row in rows}) > 5
    path = sample(
        run.folder, between=("aaaaaaaa", "bbbbbbbb"), count=5, out=tmp_path / "path.jsonl", how=Sample(temperature=0)
    )
    assert path[0]["code"].count("a") > path[-1]["code"].count("a")


def test_it_is_shown_and_loaded_again(again):
    run, _ = again
    assert Path(show(run.folder)["report"]).is_file()
    assert load(run.folder).predict(["abaaba"]) == run.predict(["abaaba"])


@pytest.mark.slow
def test_trained_models_that_say_all_at_once_keep_the_laws(again, mapped):
    for run, _ in (again, mapped):
        found = check_run(run.folder, Console(quiet=True))["laws"]
        assert not [law for law in found if not law["passed"]]


def test_a_map_that_says_all_at_once_is_judged_asked_and_shown(mapped):
    run, result = mapped
    assert {"nll", "perplexity", "token_accuracy", "exact_match", "per"} <= result["metrics"].keys()
    assert result["metrics"]["token_accuracy"] > 0.9
    assert result["metrics"]["exact_match"] > 0.9
    (row,) = run.predict(["abbabbabbabb"])
    assert row["loud"] == "ABBABBABBABB"
    (row,) = run.predict(["abbabbabbabb"], beam=3, best=2)
    assert row["loud.best"][0]["value"] == "ABBABBABBABB"
    drawn = sample(run.folder, given="abbabbabbabb", count=3)
    assert len(drawn) == 3
    assert Path(show(run.folder)["report"]).is_file()


@pytest.mark.parametrize(
    ("inputs", "targets", "message"),
    [
        (["nothing"], ["code:sequence"], "a language model goes on from what it wrote.   Leave it out"),
        (["code:sequence"], ["side:label"], "nothing is written here.   Leave it out"),
    ],
)
def test_only_texts_are_said_at_once(tmp_path, inputs, targets, message):
    rows = [{"code": code, "side": code[0]} for code in codes()]
    with pytest.raises(ConfigError, match=message):
        fitted(tmp_path, rows, name="no", inputs=inputs, targets=targets)


def visits(rows=400):
    rng = np.random.default_rng(0)
    z = rng.standard_normal(rows)
    seen = rng.poisson(np.exp(1 + z) * rng.gamma(2.0, 0.5, rows))
    return [
        {"visits": None if rng.random() < 0.1 else int(n), "height": float(h), "year": int(y)}
        for n, h, y in zip(seen, 170 + 5 * z + rng.standard_normal(rows), rng.integers(1990, 2020, rows), strict=True)
    ]


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    folder, out = tmp_path_factory.mktemp("shop"), io.StringIO()
    more = ("output.autoregressive=true", "model.latent=2", "train.steps=200")
    made = fitted(folder, visits(), *more, name="shop", out=out)
    return *made, out.getvalue()


class TestCounts:
    def test_training_says_which_columns_are_counts_and_why(self, shop):
        run, _, told = shop
        assert "visits (count)" in told
        assert "counts        visits: whole numbers that a negative binomial distribution fits better" in told
        assert [t.counted for t in run.model.output.targets.values()] == [True, False, False]

    def test_counts_are_drawn_filled_and_refused(self, shop):
        run, result, _ = shop
        rows = sample(run.folder, count=50)
        assert all(row["visits"] == int(row["visits"]) >= 0 for row in rows)
        (row,) = run.predict([{"visits": None, "height": 180.0, "year": 2000}])
        assert row["visits.low"] == int(row["visits.low"]) <= row["visits"] <= row["visits.high"]
        (other,) = run.predict([{"visits": None, "height": 160.0, "year": 2000}])
        assert other["visits"] < row["visits"]
        assert result["metrics"]["nll"] < result["baselines"]["full covariance"]["nll"]
        with pytest.raises(mapsto.errors.DataError, match=r"is 2\.5, and counts are 0, 1, 2"):
            run.predict([{"visits": 2.5, "height": 180.0, "year": 2000}])

    def test_a_count_is_mapped_to_where_that_is_asked_for(self, tmp_path):
        rows = [row for row in visits() if row["visits"] is not None]
        more = ("output.autoregressive=true", "output.number=count", "train.steps=100")
        run, result = fitted(tmp_path, rows, *more, name="visits", inputs=["height:number"], targets=["visits:number"])
        assert run.model.output.targets["visits"].counted
        assert result["metrics"]["nll"] < 4
        (row,) = run.predict([{"height": 180.0}])
        assert row["visits"] > 3
