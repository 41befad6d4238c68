"""A table of numbers to forecasts and back: train, evaluate, predict, show, and what is refused."""

import csv
import datetime
import json

import numpy as np
import pytest
from rich.console import Console

import mapsto
from mapsto import disk, document, manifest
from mapsto.errors import ConfigError, DataError, ModelFileError
from mapsto.tasks.config import Config, override
from mapsto.tasks.dataset import prepare
from mapsto.tasks.evaluate import evaluate
from mapsto.tasks.predict import predict
from mapsto.tasks.run import load
from mapsto.tasks.show import show

QUICK = {
    "size": "xs",
    "output.horizon": 5,
    "output.history": 14,
    "train.steps": 8,
    "threads": 1,
    "device": "cpu",
    "data.group": "shop",
    "data.times": "day",
}


def sales(path, days=120, shops=("north", "south"), seed=0):
    rng = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["day", "shop", "sold"])
        for i in range(days):
            for k, shop in enumerate(shops):
                day = datetime.date(2024, 1, 1) + datetime.timedelta(i)
                x = 10 ** (k + 1) * (3 + np.sin(2 * np.pi * i / 7) + 0.05 * rng.normal())
                writer.writerow([day, shop, "" if (i, k) == (50, 0) else f"{x:.4f}"])
    return path


@pytest.fixture
def run(tmp_path):
    return mapsto.fit(str(sales(tmp_path / "sales.csv")), target="sold", run="sales", settings=QUICK, quiet=True)


def test_a_table_of_one_number_a_row_is_forecast(run, tmp_path):
    result = run.result
    assert {"last value", "linear"} <= set(result["baselines"])
    assert any(name.startswith("season of ") for name in result["baselines"])
    assert {"mae", "rmse", "mase", "coverage", "nll"} <= set(result["metrics"])
    assert [set(one) for one in result["steps"]] == [{"mae", "rmse"}] * 5
    again = load(run.folder)
    counts = again.dataset().split.counts
    assert counts["test"] == 2 * (12 - 5 + 1)
    assert evaluate(run.folder)["metrics"] == pytest.approx(result["metrics"])
    rows = predict(run.folder, [str(tmp_path / "sales.csv")], out=tmp_path / "said.jsonl")
    assert [row["shop"] for row in rows] == ["north", "south"]
    assert all(len(row[key]) == 5 for row in rows for key in ("future", "future.sigma", "future.low", "future.high"))
    assert json.loads((tmp_path / "said.jsonl").read_text().splitlines()[1]) == rows[1]
    assert 15 < np.mean(rows[0]["future"]) < 45
    assert 150 < np.mean(rows[1]["future"]) < 450


def test_a_forecast_is_the_same_however_the_past_is_given(run, tmp_path):
    with (tmp_path / "sales.csv").open() as file:
        past = [float(row["sold"]) for row in csv.DictReader(file) if row["shop"] == "south"]
    wanted = run.predict(str(tmp_path / "sales.csv"))[1]["future"]
    for given in (past, np.array(past), [past], [{"sold": past}], " ".join(map(str, past))):
        np.testing.assert_allclose(run.predict(given)[0]["future"], wanted, rtol=1e-5)


def test_other_data_are_tested_on_at_every_place(run, tmp_path):
    found = run.evaluate(str(sales(tmp_path / "more.csv", days=30, seed=5)))
    assert found["metrics"]["mae"] is not None
    assert found["baselines"]


def test_pictures_and_card_tell_of_a_forecast(run):
    made = show(run.folder, console=Console(quiet=True))
    assert [p.rpartition("/")[2] for p in made["plots"]] == ["curves.png", "forecasts.png", "steps.png"]
    assert not made["left_out"]
    card = (run.folder / "model/README.md").read_text()
    assert "to future (5 steps of a series of 1 channel)" in card
    assert "Of each series the last part was tested on" in card
    assert "decoder" in card


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("horizon", 0, "output.horizon: Input should be greater than or equal to 1"),
        ("noise", "pink", "output.noise: Input should be 'gaussian' or 'student'"),
        ("source", 3, "the output goes on from no series of as many channels"),
        ("mean", [0.0, 1.0], "2 means and 1 scales"),
        ("past", 13, r"output.linear is \(5, 14\) of torch.float32, expected \(5, 13\)"),
    ],
)
def test_settings_of_forecasts_are_checked(run, key, value, message):
    folder = run.folder / "model"
    content = disk.read_json(folder / "config.json")
    content["output"][key] = value
    (folder / "config.json").write_bytes(document.dump(content))
    manifest.seal(folder, {}, ["config.json", "model.safetensors"])
    with pytest.raises(ModelFileError, match=message):
        load(run.folder)


def config(*settings, targets=("x",)):
    made = override(Config(), ["output.horizon=3", *settings])
    made.data.targets = list(targets)
    return made


def test_lists_of_numbers_and_several_channels_are_cut():
    one = prepare(config(), {"x": [np.arange(40.0), np.arange(30.0)]})
    assert one.schema.inputs[0].columns == [("x", "series")]
    assert one.measured.output["horizon"] == 3
    assert one.measured.inputs[0]["relative"]
    two = prepare(config(targets=["u", "v"]), {"u": np.arange(40.0), "v": np.arange(40.0) ** 2, "w": np.ones(40)})
    assert len(two.measured.output["mean"]) == 2
    assert two.schema.inputs[0].name == "history"
    three = prepare(config(targets=[]), {"x": np.arange(40.0)})
    assert three.schema.output.columns == [("future", "series")]


@pytest.mark.parametrize(
    ("settings", "targets", "message"),
    [
        (["data.folds=5"], ["x"], "data.folds: forecasts of a series from its own past are parted by time"),
        (["data.split=part"], ["x"], "data.split: forecasts of a series from its own past are parted by time"),
        ([], [], "which column is to be forecast\\?   Say --to with one of x, z"),
        ([], ["y"], 'has no column "y"'),
        (["data.group=x"], ["x"], '"x" is both what is forecast and data.group'),
        (["output.horizon=30"], ["x"], "no future of 30 steps for train"),
    ],
)
def test_what_cannot_be_forecast_is_refused(settings, targets, message):
    with pytest.raises((ConfigError, DataError), match=message):
        prepare(config(*settings, targets=targets), {"x": np.arange(40.0), "z": np.arange(40.0), "part": ["a"] * 40})


def test_lists_after_a_series_are_forecast_if_they_are_called_series_or_differ_in_length():
    def kind(targets, after):
        made = Config()
        made.data.inputs, made.data.targets = ["x:series"], [targets]
        rows = [{"x": [1.0 * i, 2, 3], "y": after(i)} for i in range(30)]
        return prepare(made, rows).schema.output.kind

    assert kind("y:series", lambda i: [i, 2.0]) == "series"
    assert kind("y:series", lambda i: [i, 2.0, 3.0]) == "series"
    assert kind("y", lambda i: [float(i)] * (2 + i % 2)) == "series"
    assert kind("y", lambda i: [i, 2.0, 3.0]) == "items"
    assert kind("y", lambda i: [i, 2.0 * i]) == "vector"


def test_a_forecast_goes_on_from_a_series_of_as_many_channels_only():
    def measured(x):
        made = Config()
        made.data.inputs, made.data.targets = ["a", "x:series"], ["y:series"]
        rows = [{"a": 1.0 * i, "x": x + i, "y": [1.0, 2.0, i]} for i in range(30)]
        return prepare(made, rows).measured

    alike, other = measured(np.ones(4)), measured(np.ones((4, 2)))
    assert (alike.output["source"], alike.inputs[0]["relative"]) == (0, True)
    assert (other.output["source"], other.inputs[0]["relative"]) == (-1, False)


def test_a_table_row_gives_a_series():
    rng = np.random.default_rng(0)
    rows = [{"a": x, "b": rng.normal(), "y": [x, 2 * x, 3 * x]} for x in rng.normal(size=150).tolist()]
    given = {"size": "xs", "train.steps": 150, "train.lr": 0.01, "model.dropout": 0, "threads": 1, "device": "cpu"}
    run = mapsto.fit(rows, source=["a", "b"], target="y:series", settings=given, quiet=True)
    assert run.result["metrics"]["rmse"] < 0.3 * run.result["baselines"]["mean of each step"]["rmse"]
