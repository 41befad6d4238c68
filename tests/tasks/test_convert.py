"""A trained model gets other attention and back: bits, errors by formula, what fine-tuning wins, what is refused."""

import io
import json
import math

import numpy as np
import pytest
import torch
from rich.console import Console

from mapsto.attention.favor import FavorAttention
from mapsto.errors import ConfigError, ModelFileError
from mapsto.tasks.config import Config, override, read_config
from mapsto.tasks.convert import convert
from mapsto.tasks.evaluate import evaluate
from mapsto.tasks.honesty import some
from mapsto.tasks.predict import predict
from mapsto.tasks.run import load
from mapsto.tasks.show import show
from mapsto.tasks.train import train
from mapsto.tasks.transfer import layers, shifts, transfer

QUIET = Console(quiet=True)


def words(path, rows=240, length=24, seed=0):
    """Which of two letters comes first? Attention must find the first a or b among others."""
    draw = np.random.default_rng(seed)
    lines = []
    for _ in range(rows):
        letters = draw.choice(list("cdefg"), length)
        first, second = draw.permutation(["a", "b"])
        one, two = sorted(draw.choice(length, 2, replace=False))
        letters[one], letters[two] = first, second
        lines.append(f"{''.join(letters)},{first}")
    path.write_text("\n".join(["text,label", *lines]) + "\n")


def trained(root, *settings, name="run"):
    path = root / "words.csv"
    if not path.exists():
        words(path)
    config = Config()
    config.data.source, config.data.inputs, config.data.targets = str(path), ["text:sequence"], ["label"]
    config = override(config, ["size=xs", "input.vocabulary=characters", "model.dropout=0", *settings])
    return train(config, name=name, console=QUIET, root=root)[0]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    root = tmp_path_factory.mktemp("convert")
    return trained(root, "train.steps=400", "train.batch_tokens=1024", "train.lr=0.005")


@pytest.fixture(scope="module")
def linear(run):
    """Converted, and not trained on: the new run, the result, and what was said."""
    stream = io.StringIO()
    new, result = convert(run.folder, "favor:64", console=Console(file=stream, width=300))
    return new, result, stream.getvalue()


def probabilities(folder):
    texts = ["cdbcaefg", "aaaccbbb", "gfedcb", "a"]
    return [row["label.probability"] for row in predict(folder, texts, console=None)]


def test_there_and_back_again_gives_the_same_bits(run, linear):
    back, result = convert(linear[0].folder, "softmax")
    assert probabilities(back.folder) == probabilities(run.folder)
    assert probabilities(linear[0].folder) != probabilities(run.folder)
    assert result["metrics"]["converted"] == pytest.approx(run.result["metrics"], abs=1e-6)
    own, theirs = (dict(load(folder).model.named_parameters()) for folder in (run.folder, back.folder))
    assert own.keys() == theirs.keys()
    assert all(torch.equal(p, theirs[n]) for n, p in own.items())


def test_a_linear_model_made_exact_and_linear_again_gives_the_same_bits(tmp_path):
    first = trained(tmp_path, "train.steps=5", "model.attention=favor:16")
    exact, _ = convert(first.folder, "softmax")
    assert exact.config.model.normalise is True  # it was trained so
    again, _ = convert(exact.folder, "favor:16")
    assert probabilities(again.folder) == probabilities(first.folder)


def test_the_run_itself_is_not_touched(run, linear):
    before = {p: p.read_bytes() for p in run.folder.rglob("*") if p.is_file()}
    new, _ = convert(run.folder, "window:8")
    assert new.folder != run.folder
    assert {p: p.read_bytes() for p in run.folder.rglob("*") if p.is_file()} == before


def test_the_new_run_is_a_run(run, linear, monkeypatch):
    new, result, _ = linear
    assert new.folder.name == "run-favor"
    again = load(new.folder)
    assert again.config.model.attention == read_config(new.folder / "config.yaml").model.attention == "favor:64"
    assert again.config.init == str(run.folder)
    assert again.result["baselines"] == run.result["baselines"]
    assert evaluate(new.folder)["metrics"] == pytest.approx(result["metrics"]["converted"], abs=1e-6)
    assert "trust" in [p.rpartition("/")[2].removesuffix(".png") for p in show(new.folder)["plots"]]
    assert "favor:64 attention" in (new.folder / "model" / "README.md").read_text()
    known = json.loads((new.folder / "conversion.json").read_text())
    assert known == result
    assert "answers moved by" in (new.folder / "log.txt").read_text()
    with pytest.raises(ConfigError, match="there is nothing to convert"):
        convert(new.folder, "favor:64")


def test_the_json_and_the_table_say_what_happened(run, linear):
    _, result, text = linear
    assert set(result) == {
        "run",
        "from",
        "attention",
        "normalise",
        "layers",
        "metrics",
        "intervals",
        "steps",
        "share",
        "seconds",
    }
    assert result["attention"] == {"before": "softmax", "after": "favor:64"}
    assert (result["normalise"], result["steps"], result["share"]) == (False, 0, 0.0)
    assert set(result["metrics"]) == set(result["intervals"]) == {"before", "converted"}
    assert result["metrics"]["before"] == pytest.approx(run.result["metrics"], abs=1e-6)
    assert [(one["layer"], one["head"]) for one in result["layers"]] == [
        (f"encoder {n}", head) for n in (1, 2) for head in (1, 2)
    ]
    assert set(result["layers"][0]) == {"layer", "head", "error", "predicted", "predicted_95", "measured"}
    json.dumps(result, allow_nan=False)
    assert "softmax -> favor:64" in text
    assert text.index("before") < text.index("converted")
    assert f"note: the features are too few for these queries and keys.   mapsto convert {run.folder}" in text


def test_the_error_of_each_head_is_that_of_its_answers(run, linear):
    old, new = load(run.folder), load(linear[0].folder)
    batch = some(old.feed("test"))
    found = shifts(new.model, old.model, batch)
    with torch.no_grad():
        memory = old.model.collect(batch)
        items = old.model.encoder.position.add(memory.items, memory.places)
        for number, (block, other) in enumerate(zip(old.model.encoder.blocks, new.model.encoder.blocks, strict=True)):
            x = memory.replace(items=block.attention_norm(items))
            q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in block.attention.qkv(x.items).chunk(3, -1))
            logits = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(~x.valid[:, None, None], -math.inf)
            exact = torch.softmax(logits, -1) @ v
            linear_ = other.attention.attention(q, k, v, valid=x.valid)
            there = x.valid[:, None, :, None]
            for head in range(2):
                off, size = ((t[:, head : head + 1] * there).square().sum().sqrt() for t in (linear_ - exact, exact))
                one = found[2 * number + head]
                assert (one.layer, one.head) == (f"encoder {number + 1}", head + 1)
                assert one.error == pytest.approx(float(off / size), rel=1e-3)
            items = block(memory.replace(items=items), None, old.model.encoder.position, False).items


def test_temperatures_are_those_of_the_logits_and_no_more_than_features_carry(run):
    from mapsto.tasks.build import build
    from mapsto.tasks.dataset import Measured

    old = load(run.folder)
    batch = some(old.feed("train"))
    calls = {}
    for name, layer in layers(old.model).items():
        layer.attention.register_forward_hook(
            lambda _, args, given, out, n=name: calls.__setitem__(n, (args, given)), with_kwargs=True
        )
    old.model.answers(batch)
    measured = Measured([part.settings() for part in old.model.sources.values()], old.model.output.settings())
    for kind in ("softmax", "favor:64"):
        config = old.config.model.model_copy(update={"attention": kind, "normalise": True})
        model = build(old.schema, measured, config, seed=0)
        transfer(model, old.model, batch)
        for name, layer in layers(model).items():
            (q, k, _), given = calls[name]
            there = slice(None) if given["valid"] is None else given["valid"]
            mean = [x.norm(dim=-1).transpose(0, 1)[:, there].flatten(1).mean(1) for x in (q, k)]
            expected = mean[0] * mean[1] / math.sqrt(q.shape[-1])
            if isinstance(layer.attention, FavorAttention):
                expected = expected.clamp(max=layer.attention.sharpness(q.shape[-1]))
            torch.testing.assert_close(layer.log_temperature.exp(), expected, rtol=1e-4, atol=0)


def test_fine_tuning_recovers_what_conversion_lost(run):
    stream = io.StringIO()
    new, result = convert(
        run.folder, "favor:64", normalise=True, tune="25%", name="tuned", console=Console(file=stream, width=300)
    )
    metrics = result["metrics"]
    assert metrics["before"]["accuracy"] > 0.9
    assert metrics["converted"]["nll"] > metrics["before"]["nll"] + 0.1
    assert metrics["tuned"]["nll"] < (metrics["before"]["nll"] + metrics["converted"]["nll"]) / 2
    assert (result["steps"], result["share"], result["normalise"]) == (100, 0.25, True)
    assert new.folder.name == "tuned"
    assert "after 100 steps, 25.0% of the run's own" in stream.getvalue()
    assert evaluate(new.folder)["metrics"] == pytest.approx(metrics["tuned"], abs=1e-6)
    kept = read_config(new.folder / "config.yaml")
    assert (kept.train.steps, kept.init, kept.model.normalise) == (100, str(run.folder), True)
    assert any(name.endswith("log_temperature") for name, _ in load(new.folder).model.named_parameters())
    assert json.loads((new.folder / "conversion.json").read_text()) == result


def test_what_cannot_be_is_refused(run, tmp_path):
    folder = run.folder
    for settings, text in (
        ({"attention": "softmax"}, "has softmax attention already"),
        ({"attention": "auto"}, "say which kind"),
        ({"attention": "favour:256"}, 'Did you mean "favor"'),
        ({"attention": "favor:256", "normalise": True}, "--attention favor:256 --normalise --tune 5%"),
        ({"attention": "favor:256", "tune": "some"}, "expected steps such as 200, or a share of the run's 400"),
        ({"attention": "favor:256", "tune": "0%"}, "expected steps"),
    ):
        with pytest.raises(ConfigError, match=text):
            convert(folder, **settings)
    with pytest.raises(ModelFileError, match="there is no run folder"):
        convert(tmp_path / "none", "favor:256")


def test_an_unfinished_run_is_refused(run, tmp_path):
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(run.folder, copy)
    (copy / "result.json").unlink()
    with pytest.raises(ModelFileError, match="is not finished"):
        convert(copy, "favor:64")
    shutil.rmtree(copy / "model")
    with pytest.raises(ModelFileError, match="holds no finished model"):
        convert(copy, "favor:64")


def test_a_position_that_adds_to_logits_is_refused_for_a_kind_without(tmp_path):
    biased = trained(tmp_path, "train.steps=2", "model.position=alibi")
    with pytest.raises(ConfigError, match="ALiBi positions add to the logits"):
        convert(biased.folder, "favor:64")
    assert convert(biased.folder, "window:8")[0].folder.is_dir()


def test_a_model_without_attention_is_refused(tmp_path):
    without = trained(tmp_path, "train.steps=2", "model.mixer=gated")
    with pytest.raises(ConfigError, match="gated memory in the place of attention"):
        convert(without.folder, "favor:64")


def test_a_normalised_model_is_not_normalised_again(tmp_path):
    first = trained(tmp_path, "train.steps=2", "model.attention=favor:16")
    with pytest.raises(ConfigError, match="normalised queries and keys already"):
        convert(first.folder, "softmax", normalise=True, tune="2")


def test_starting_from_a_run_whose_inputs_differ_copies_what_fits(run, tmp_path):
    words(tmp_path / "words.csv", rows=90, length=9, seed=5)
    new = trained(tmp_path, "train.steps=1", "train.lr=0.0000001", f"init={run.folder}", "model.attention=favor:64")
    own, theirs = (dict(load(folder).model.named_parameters()) for folder in (new.folder, run.folder))
    name = "encoder.blocks.0.attention.qkv.weight"
    torch.testing.assert_close(own[name], theirs[name], atol=1e-4, rtol=0)


def test_nothing_global_is_drawn(run):
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    convert(run.folder, "favor:32", name="other")
    assert torch.equal(torch.rand(3), expected)
