"""Autoencoders through the verbs: what a user types, sees and gets."""

import json
from contextlib import suppress

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

import mapsto
from mapsto.errors import ConfigError, DataError
from mapsto.models.bound import Capacity, Elbo, Iwae, Reconstruction
from mapsto.tasks.autoencoder import bound
from mapsto.tasks.check import check_run
from mapsto.tasks.config import Config, override
from mapsto.tasks.convert import convert
from mapsto.tasks.evaluate import evaluate
from mapsto.tasks.folds import train_folds
from mapsto.tasks.imagined import grid
from mapsto.tasks.latent import evidence, surprise
from mapsto.tasks.predict import predict
from mapsto.tasks.sample import sample
from mapsto.tasks.section import TrainConfig
from mapsto.tasks.show import show
from mapsto.tasks.train import train
from mapsto.training.checkpoint import Checkpoints
from mapsto.training.loop import Trainer
from mapsto.training.parallel import World
from mapsto.training.plan import Plan

QUICK = ["train.steps=40", "model.dim=32", "train.evaluate_every=20"]


def blobs(rows: int = 120, side: int = 6):
    """Grey pictures of a bright spot somewhere, and which side it is on."""
    rng = np.random.default_rng(0)
    at = rng.uniform(1, side - 2, (rows, 2))
    row, column = np.mgrid[:side, :side]
    far = (row - at[:, :1, None]) ** 2 + (column - at[:, 1:, None]) ** 2
    images = np.round(255 * np.exp(-far / 2)).astype(np.uint8)
    return {"image": images, "label": ["left" if x < side / 2 else "right" for x in at[:, 1]]}


def trained(tmp_path, rows, *settings, name="vae"):
    config = override(Config(), [*QUICK, "model.latent=2", *settings])
    return train(config, rows, name=name, root=tmp_path, console=Console(quiet=True))


@pytest.fixture(scope="module")
def spots(tmp_path_factory):
    folder = tmp_path_factory.mktemp("latent")
    np.savez(folder / "spots.npz", **{k: np.array(v) for k, v in blobs().items()})
    config = override(Config(), [*QUICK, "model.latent=2"])
    config.data.source = str(folder / "spots.npz")
    return train(config, name="spots", root=folder, console=Console(quiet=True))


def test_the_report_has_all_names_and_none_of_them_is_empty(spots):
    _, result = spots
    metrics = result["metrics"]
    gaps = ("amortisation_gap", "approximation_gap")
    for name in ("elbo", "reconstruction", "kl", "nll", "bits_per_dim", "active_units", *gaps):
        assert np.isfinite(metrics[name]), name
    assert set(metrics["iwae"]) == {"1", "5", "50", "500"}
    rungs = [metrics["iwae"][k] for k in ("1", "5", "50", "500")]
    assert rungs == sorted(rungs)
    assert metrics["nll"] == -rungs[-1]
    assert metrics["elbo"] == pytest.approx(-metrics["reconstruction"] - metrics["kl"])
    assert metrics["kl"] >= 0
    assert set(result["baselines"]) >= {"independent pixels", "probabilistic PCA 2"}
    assert result["intervals"]["elbo"][0] < metrics["elbo"] < result["intervals"]["elbo"][1]
    json.dumps(result)


def test_evaluate_gives_the_same_report(spots):
    run, result = spots
    again = evaluate(run.folder)
    assert again["metrics"].pop("iwae") == pytest.approx(result["metrics"]["iwae"], rel=1e-5)
    assert again["metrics"] == pytest.approx({k: v for k, v in result["metrics"].items() if k != "iwae"}, rel=1e-5)


class Dealt(World):
    """One of several processes, who takes what the others gave from a list."""

    def __init__(self, rank, size, given, sharded):
        super().__init__()
        self.rank, self.size, self.given, self.sharded = rank, size, given, sharded

    def share(self, data, *, starting=False):
        self.given[self.rank] = data
        return self.given


@pytest.mark.parametrize("size", [2, 3, 7])
@pytest.mark.parametrize("sharded", [False, True])
def test_processes_that_share_the_work_find_the_same_evidence(spots, size, sharded, monkeypatch):
    run, _ = spots
    feed = run.feed("train")
    monkeypatch.setattr(feed, "once", lambda: np.array_split(feed.rows, 5))
    alone, strange = evidence(run.model, feed, ks=(1, 5)), surprise(run.model, feed)
    for ask in (
        lambda world: evidence(run.model, feed, ks=(1, 5), world=world),
        lambda world: surprise(run.model, feed, world),
    ):
        given = [b""] * size
        for rank in range(size):  # what each gives, before any has all
            with suppress(Exception):
                ask(Dealt(rank, size, given, sharded))
        for rank in range(size):
            found = ask(Dealt(rank, size, given, sharded))
            if isinstance(found, np.ndarray):
                assert np.array_equal(found, strange)
                continue
            for name, array in alone.arrays().items():
                assert np.array_equal(found.arrays()[name], array), name


def test_embeddings_are_the_same_bits_at_every_call_and_after_loading(spots):
    run, _ = spots
    images = blobs()["image"][:5]
    first, second = run.predict(images), run.predict(images)
    again = mapsto.load(run.folder).predict(images)
    assert first == second == again
    assert len(first[0]["latent"]) == 2
    alone = run.predict(images[2:3])
    assert alone[0]["latent"] == pytest.approx(first[2]["latent"], abs=1e-5)
    assert run.predict(images, embed=True)[0]["embedding"] == first[0]["latent"]


def test_samples_are_pictures_and_a_function_of_the_seed(spots, tmp_path):
    run, _ = spots
    rows = sample(run.folder, count=5, out=tmp_path / "new.png")
    assert [len(row["latent"]) for row in rows] == [2] * 5
    with Image.open(tmp_path / "new.png") as picture:
        assert picture.size[0] > picture.size[1] > 60
    sample(run.folder, count=5, out=tmp_path / "a.npz")
    sample(run.folder, count=5, out=tmp_path / "b.npz")
    a, b = (np.load(tmp_path / name) for name in ("a.npz", "b.npz"))
    assert a["images"].shape == (5, 6, 6, 1)
    assert np.array_equal(a["images"], b["images"])
    assert 0 <= a["images"].min() <= a["images"].max() <= 1


def test_a_path_begins_and_ends_where_it_should(spots, tmp_path):
    run, _ = spots
    ends = []
    for i in (0, 1):
        ends.append(tmp_path / f"{i}.png")
        Image.fromarray(blobs()["image"][i]).save(ends[-1])
    rows = sample(run.folder, between=(str(ends[0]), str(ends[1])), count=7, out=tmp_path / "path.npz")
    for i, row in ((0, rows[0]), (1, rows[-1])):
        assert row["latent"] == pytest.approx(run.predict(ends[i])[0]["latent"], abs=1e-5)
    middle = np.mean([rows[0]["latent"], rows[-1]["latent"]], 0)
    assert rows[3]["latent"] == pytest.approx(middle.tolist(), abs=1e-5)
    near = sample(run.folder, given=str(ends[0]), count=3, out=tmp_path / "near.npz")
    assert near[0]["latent"] != near[1]["latent"]


def test_show_draws_what_was_learned(spots):
    pytest.importorskip("matplotlib")
    run, _ = spots
    made = show(run.folder)
    names = {path.rpartition("/")[2] for path in made["plots"]}
    assert names == {"curves.png", "kl.png", "plane.png", "again.png", "samples.png", "dimensions.png", "between.png"}
    assert not made["left_out"]
    assert "Along each dimension" in (run.folder / "report.html").read_text("utf-8")
    assert "autoencoder" in (run.folder / "model" / "README.md").read_text("utf-8")


def test_check_holds_the_run_to_the_laws(spots):
    run, _ = spots
    found = check_run(run.folder, Console(quiet=True))
    assert {one["law"] for one in found["laws"]} == set("EBND")
    assert all(one["passed"] for one in found["laws"])
    assert 0 <= found["calibration"]["p"] <= 1
    assert found["calibration"]["rows"] == 1000


def test_binarised_pictures_are_judged_by_the_same_bits_each_time(tmp_path):
    run, result = trained(tmp_path, blobs(), "output.binarise=true")
    assert run.model.output.head.density == "bernoulli"
    assert len(run.model.rework) == 1
    test = run.evaluate(blobs())
    assert test["metrics"]["elbo"] == run.evaluate(blobs())["metrics"]["elbo"]
    assert set(result["baselines"]) == {"independent pixels"}
    assert result["metrics"]["nll"] < 36 * np.log(2) + 5


def test_grey_pixels_are_refused_for_bits(tmp_path):
    with pytest.raises(DataError, match=r"row \d+.*grey pixels.*output.binarise=true"):
        trained(tmp_path, blobs(), "output.density=bernoulli")


def test_every_density_learns(tmp_path):
    for density in ("continuous_bernoulli", "logistic:components=2", "gaussian:sigma=dims"):
        _, result = trained(tmp_path, blobs(), f"output.density={density}", name=density.partition(":")[0])
        assert np.isfinite(result["metrics"]["nll"])


def test_every_posterior_and_prior_goes_through_a_run(tmp_path):
    for posterior, prior in (("full", "standard"), ("flow:layers=2", "mixture:components=3"), ("normal", "mixture")):
        run, result = trained(
            tmp_path, blobs(), f"model.posterior={posterior}", f"model.prior={prior}", name=posterior[:4] + prior[:4]
        )
        again = mapsto.load(run.folder)
        assert again.predict(blobs()["image"][:2]) == run.predict(blobs()["image"][:2])
        assert result["metrics"]["kl"] > -0.5


def test_patches_and_transformers_say_pictures_too(tmp_path):
    run, result = trained(tmp_path, blobs(), "input.patch=3", "model.memory=2", "model.heads=2", "model.depth=1")
    assert run.model.output.grid == (2, 2)
    assert np.isfinite(result["metrics"]["elbo"])
    rows = sample(run.folder, count=2, out=tmp_path / "new.npz")
    assert len(rows) == 2


def test_texts_are_said_again_and_sampled(tmp_path):
    rng = np.random.default_rng(0)
    rows = [{"word": "".join(rng.choice(list("ab"), 4)) * 2} for _ in range(200)]
    columns = 'data.inputs=["word:sequence"]'
    settings = ("model.heads=2", "model.depth=1", "input.vocabulary=characters", "output.vocabulary=characters")
    run, result = trained(tmp_path, rows, columns, *settings)
    assert result["metrics"]["bits_per_dim"] > 0
    written = sample(run.folder, count=3)
    assert all(set(row["word"]) <= set("ab") for row in written)
    path = sample(run.folder, between=("aaaaaaaa", "bbbbbbbb"), count=4, out=tmp_path / "path.jsonl")
    assert len(path) == len((tmp_path / "path.jsonl").read_text().splitlines()) == 4


def holed(rows: int = 160):
    """Three numbers that go together, a label that goes with them, one column for nothing; a tenth of the cells missing."""
    rng = np.random.default_rng(0)
    z = rng.standard_normal(rows)
    table = {
        "a": z + 0.1 * rng.standard_normal(rows),
        "b": 10 - 2 * z + 0.1 * rng.standard_normal(rows),
        "c": 100 * z + 5 * rng.standard_normal(rows),
        "sign": np.where(z > 0, "plus", "minus"),
        "same": np.full(rows, 7.0),
    }
    gone = rng.random((rows, 4)) < 0.1
    cells = {
        name: [None if g else x for x, g in zip(v.tolist(), gone[:, i % 4], strict=True)]
        for i, (name, v) in enumerate(table.items())
    }
    return cells | {"same": table["same"].tolist()}, table


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("holes")
    cells, _ = holed()
    rows = [dict(zip(cells, row, strict=True)) for row in zip(*cells.values(), strict=True)]
    (folder / "holed.csv").write_text(
        "\n".join([",".join(cells), *(",".join("" if x is None else str(x) for x in row.values()) for row in rows)])
        + "\n"
    )
    config = override(Config(), ["model.latent=1", "train.epochs=60", "model.dim=32", "train.lr=0.01"])
    config.data.source = str(folder / "holed.csv")
    return train(config, name="holed", root=folder, console=Console(quiet=True))


class TestTables:
    def test_hidden_cells_are_guessed_better_than_by_their_mean(self, numbers):
        run, result = numbers
        assert [c for c, _ in run.schema.output.columns] == [
            "a",
            "b",
            "c",
            "sign",
        ]  # what is always the same is left out
        metrics, plain = result["metrics"], result["baselines"]["independent columns"]
        assert metrics["imputation_rmse"] < 0.6 * plain["imputation_rmse"]
        assert metrics["imputation_accuracy"] > 0.7
        assert 0.5 < metrics["imputation_coverage"] <= 1
        assert metrics["nll"] < plain["nll"]
        assert set(result["baselines"]) == {"independent columns", "full covariance of the numbers"}
        json.dumps(result)

    def test_holes_are_filled_and_what_is_known_stays(self, numbers, tmp_path):
        run, _ = numbers
        cells, truth = holed()
        data = run.config.data.source
        found = run.predict(data)
        assert len(found) == 160
        off = []
        for i, row in enumerate(found):
            for name in ("a", "b", "c"):
                if cells[name][i] is None:
                    assert row[f"{name}.low"] < row[name] < row[f"{name}.high"]
                    off.append((row[name] - truth[name][i]) / truth[name].std())
                else:
                    assert row[name] == pytest.approx(cells[name][i], rel=1e-12)
                    assert row[f"{name}.low"] is None
            assert row["sign"] in ("plus", "minus")
            assert (row["sign.probability"] is None) == (cells["sign"][i] is not None)
        assert np.sqrt(np.mean(np.square(off))) < 0.6
        assert found == run.predict(data)
        predict(run.folder, [data], out=tmp_path / "filled.csv")
        lines = (tmp_path / "filled.csv").read_text().splitlines()
        assert '"a.low"' in lines[0]
        assert len(lines) == 161
        assert '"sign.probability.plus"' in lines[0]
        assert '"sign.probability",' not in lines[0]

    def test_new_rows_go_together_as_the_real_ones_do(self, numbers, tmp_path):
        run, _ = numbers
        rows = run.sample(400)
        a, b = (np.array([row[name] for row in rows]) for name in ("a", "b"))
        assert np.corrcoef(a, b)[0, 1] < -0.8
        assert rows == run.sample(400)
        like = sample(run.folder, given='{"a": 2.0}', count=50, out=tmp_path / "like.jsonl")
        assert np.mean([row["b"] for row in like]) < 9
        assert all(row["sign"] in ("plus", "minus") for row in like)
        path = run.between({"a": -2.0}, {"a": 2.0}, 5)
        assert [row["a"] for row in path] == sorted(row["a"] for row in path)

    def test_a_row_that_does_not_fit_is_told_why(self, numbers, tmp_path):
        run, _ = numbers
        with pytest.raises(ConfigError, match=r'no column "sgin".*Did you mean "sign"'):
            sample(run.folder, given='{"sgin": "plus"}')
        with pytest.raises(ConfigError, match=r'"sign": no training row has "pluss".*Did you mean "plus"'):
            sample(run.folder, given='{"sign": "pluss"}')
        with pytest.raises(ConfigError, match="expected a row as"):
            sample(run.folder, given='{"a": ')
        with pytest.raises(DataError, match=r"row 2: .*has no cell that is known"):
            run.predict(
                [{"a": 1.0, "b": None, "c": None, "sign": None}, {"a": None, "b": None, "c": None, "sign": None}]
            )

    def test_strange_rows_are_told_apart(self, numbers, tmp_path):
        run, result = numbers
        usual, odd = {"a": 1.0, "b": 8.0, "c": 100.0, "sign": "plus"}, {"a": 1.0, "b": 12.0, "c": 100.0, "sign": "plus"}
        rows = run.predict([usual, odd, usual], surprise=True)
        assert rows[0]["p_value"] > 0.2 > rows[1]["p_value"]
        assert rows[1]["nll"] > rows[0]["nll"] + 5
        assert rows[0]["nll"] == pytest.approx(rows[2]["nll"], abs=1e-5)
        assert 0 <= result["metrics"]["surprising"] <= 1
        predict(run.folder, [run.config.data.source], surprise=True, out=tmp_path / "told.parquet")
        (run.folder / "result.json").rename(run.folder / "kept.json")
        content = json.loads((run.folder / "kept.json").read_text())
        (run.folder / "result.json").write_text(json.dumps({k: v for k, v in content.items() if k != "usual"}))
        with pytest.raises(ConfigError, match="no validation rows"):
            run.predict([usual], surprise=True)
        (run.folder / "kept.json").replace(run.folder / "result.json")

    def test_show_draws_columns_correlations_and_guesses(self, numbers):
        pytest.importorskip("matplotlib")
        run, _ = numbers
        names = {path.rpartition("/")[2] for path in show(run.folder)["plots"]}
        assert names == {"curves.png", "kl.png", "columns.png", "together.png", "guessed.png"}

    def test_check_holds_the_run_to_the_laws(self, numbers):
        run, _ = numbers
        assert all(one["passed"] for one in check_run(run.folder, Console(quiet=True))["laws"])

    def test_a_column_that_is_always_the_same_is_refused_where_it_is_named(self, tmp_path):
        config = override(Config(), [*QUICK, "model.latent=1"])
        config.data.inputs = ["a", "same"]
        with pytest.raises(DataError, match='"same" is the same in every row'):
            train(config, holed()[0], root=tmp_path, console=Console(quiet=True))


def waves(rows: int = 80, steps: int = 12):
    rng = np.random.default_rng(0)
    phase, high = rng.uniform(0, 1, rows), rng.uniform(0.5, 2, rows)
    x = high[:, None] * np.sin(2 * np.pi * (np.arange(steps) / steps + phase[:, None])) + 0.1 * rng.standard_normal(
        (rows, steps)
    )
    cut = [row[: steps - (4 if i % 5 == 0 else 0)] for i, row in enumerate(x.tolist())]  # some are shorter
    return {"wave": cut}


def test_series_are_said_again_and_sampled(tmp_path):
    (tmp_path / "waves.jsonl").write_text("".join(json.dumps({"wave": x}) + "\n" for x in waves()["wave"]))
    config = override(Config(), [*QUICK, "model.latent=2", "model.heads=2", "model.depth=1"])
    config.data.source = str(tmp_path / "waves.jsonl")
    config.data.inputs = ["wave:series"]
    run, result = train(config, name="waves", root=tmp_path, console=Console(quiet=True))
    assert np.isfinite(result["metrics"]["nll"])
    assert set(result["baselines"]) == {"independent steps"}  # with steps missing there is no PCA
    assert run.sample(3).shape == (3, 12)
    rows = sample(run.folder, count=2, out=tmp_path / "new.jsonl")
    assert len(rows[0]["wave"]) == 12
    assert run.encode(waves()["wave"][:2]).shape == (2, 2)
    assert all(one["passed"] for one in check_run(run.folder, Console(quiet=True))["laws"])
    names = {path.rpartition("/")[2] for path in show(run.folder)["plots"]}
    assert names == {"curves.png", "kl.png", "plane.png", "again.png", "samples.png"}


def test_of_whole_series_the_simple_models_are_exact(tmp_path):
    whole = {"wave": [x for x in waves()["wave"] if len(x) == 12]}
    config = override(Config(), [*QUICK, "model.latent=2", "model.heads=2", "model.depth=1", "train.steps=4"])
    config.data.inputs = ["wave:series"]
    _, result = train(config, whole, name="whole", root=tmp_path, console=Console(quiet=True))
    each = result["baselines"]
    assert set(each) == {"independent steps", "probabilistic PCA 2", "full covariance"}
    assert each["probabilistic PCA 2"]["nll"] < each["independent steps"]["nll"] - 5
    assert result["metrics"]["nll"] > each["probabilistic PCA 2"]["nll"]


def test_a_plain_autoencoder_reports_what_it_loses_and_whether_z_can_be_moved(tmp_path):
    run, result = trained(tmp_path, blobs(), "train.bound=reconstruction", "train.steps=300")
    assert set(result["metrics"]) == {"reconstruction", "kept"}
    assert len(result["deviations"]) == 2
    small, large = (
        result["metrics"]["kept"],
        trained(tmp_path, blobs(), "train.bound=reconstruction", "model.latent=24", "train.steps=300", name="large")[1],
    )
    assert small > 0.8
    assert large["metrics"]["kept"] < small - 0.3  # two numbers say where the spot is: the others are nobody's
    assert "Lower model.latent" in large["notes"][0]
    one = blobs()["image"][:1]
    with pytest.raises(ConfigError, match="no distribution to draw from"):
        run.sample(3)
    near, far = (run.sample(40, like=one, spread=spread) for spread in (0.1, 1.0))
    base = run.sample(1, like=one, spread=1e-6)
    assert np.abs(near - base).mean() < 0.5 * np.abs(far - base).mean()
    with pytest.raises(ConfigError, match="no density"):
        run.predict(one, surprise=True)


@pytest.mark.parametrize("setting", ["train.noise=0.3", "train.bound=capacity:2"])
def test_other_ways_to_learn_go_through_a_run(tmp_path, setting):
    run, result = trained(tmp_path, blobs(), setting)
    assert np.isfinite(result["metrics"]["elbo"])
    assert mapsto.load(run.folder).evaluate(blobs())["metrics"]["elbo"] == run.evaluate(blobs())["metrics"]["elbo"]


def test_folds_average_the_report(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = override(Config(), [*QUICK, "model.latent=2", "train.steps=8", "data.folds=3"])
    _, result = train_folds(config, blobs(60), name="vae", console=Console(quiet=True))
    each = [one["metrics"]["iwae"]["5"] for one in result["folds"]]
    assert result["metrics"]["iwae"]["5"] == pytest.approx(np.mean(each))


def test_an_autoencoder_is_not_converted(spots):
    run, _ = spots
    with pytest.raises(ConfigError, match="is an autoencoder"):
        convert(run.folder, "favor:16")


def test_a_run_that_goes_on_comes_to_the_same_bits(spots, tmp_path):
    run, _ = spots

    def begin():
        from mapsto.tasks.build import build

        model = build(run.schema, run.dataset().measured, run.config.model, seed=3)
        return Trainer(model, Plan(steps=12, lr=1e-2, warmup=2), run.feed("train"), None, Quiet(), checkpoints)

    checkpoints = Checkpoints(tmp_path / "checkpoints", {"run": "a"})
    whole = begin()
    whole.run()
    first = begin()
    first.run(until=5)
    first.save()
    second = begin()
    second.restore(checkpoints.newest())
    assert second.progress.step == 5
    second.run()
    assert torch.equal(whole.flat.weights, second.flat.weights)
    assert torch.equal(whole.average, second.average)


class Quiet:
    def stepped(self, step, loss):
        pass

    def evaluated(self, record):
        pass

    def skipped(self, step, rows, cause):
        raise AssertionError(cause)

    def unsaved(self, error):
        raise AssertionError(error)

    def positions(self):
        return {}


def test_a_collapse_is_found_and_explained(tmp_path):
    _, result = trained(tmp_path, blobs(), "output.density=gaussian:sigma=1.0", "train.beta=2", "train.steps=300")
    assert result["metrics"]["active_units_kl"] == 0
    first, second, third = result["notes"]
    assert first.startswith("the KL of 2 of 2 latent dimensions is under 0.01 nat")
    assert "sigma = 1 is fixed, and its square is above" in second
    assert "output.density=gaussian" in second
    assert "train.beta=2" in third
    page = tmp_path / "report.html"
    evaluate(tmp_path / "vae", {"image": blobs()["image"]}, out=page)
    assert "the decoder ignores them" in page.read_text("utf-8")


class TestSettings:
    def test_bounds_are_what_was_typed(self):
        one = bound(TrainConfig(beta=2.0, beta_warmup=0.5, free="dims:0.2"), 100)
        assert isinstance(one, Elbo)
        assert (one.beta, one.warmup) == (2.0, 50)
        assert one.free(torch.tensor([[0.1, 1.0]])).tolist() == pytest.approx([1.2])
        two = bound(TrainConfig(bound="iwae:7"), 100)
        assert isinstance(two, Iwae)
        assert two.samples == 7
        assert isinstance(bound(TrainConfig(bound="reconstruction"), 100), Reconstruction)
        assert bound(TrainConfig(bound="elbo:samples=3"), 100).samples == 3
        four = bound(TrainConfig(bound="capacity:20", beta=3.0, beta_warmup=0.5), 100)
        assert isinstance(four, Capacity)
        assert (four.nats, four.beta, four.warmup) == (20, 3, 50)

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"bound": "elbow"}, 'Did you mean "elbo"'),
            ({"bound": "iwae:many"}, "a number of samples"),
            ({"bound": "iwae:5", "beta": 2.0}, "are for the elbo"),
            ({"bound": "capacity"}, "expected nats, as in capacity:20"),
            ({"free": "dims"}, "expected dims:0.1"),
            ({"free": "bits:1"}, "expected dims:0.1"),
        ],
    )
    def test_a_wrong_setting_is_told_what_is_right(self, settings, message):
        with pytest.raises(ConfigError, match=message):
            bound(TrainConfig(**settings), 100)

    def test_what_cannot_be_said_again_is_refused(self, tmp_path):
        rows = {"text": [f"some words, the {i}th time" for i in range(40)], "a": list(range(40))}
        with pytest.raises(
            ConfigError, match=r"one picture, sequence or series, or the columns.*text \(sequence\), a \(vector\)"
        ):
            trained(tmp_path, rows)

    def test_moved_pictures_are_refused(self, tmp_path):
        with pytest.raises(ConfigError, match="not what is to be said again"):
            trained(tmp_path, blobs(), "input.shift=1")

    def test_sharding_is_refused(self, tmp_path):
        with pytest.raises(ConfigError, match=r"an autoencoder is not sharded.*Leave train\.shard out"):
            trained(tmp_path, blobs(), "train.shard=true")

    def test_other_runs_have_no_latent_space(self, tmp_path):
        config = override(Config(), [*QUICK, "model.heads=2", "model.depth=1"])
        config.data.targets = ["label"]
        run, _ = train(config, blobs(), name="labels", root=tmp_path, console=Console(quiet=True))
        with pytest.raises(ConfigError, match="mapsto train DATA --latent"):
            _ = run.autoencoder


def test_a_sheet_has_every_picture_in_its_place():
    shown = np.zeros((3, 2, 2, 1))
    shown[2] = 1
    made = grid(shown, 2, scale=1, gap=1)
    assert made.shape == (7, 7, 3)
    assert (made[1:3, 1:3] == 0).all()
    assert (made[4:6, 1:3] == 255).all()
    assert (made[0] == 255).all()
