"""Pictures and the report: what they show is what is true, and nothing from data runs or breaks out."""

import json
import math
import sys
from functools import partial
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from mapsto.collection import Collection
from mapsto.errors import ConfigError, ModelFileError
from mapsto.inputs.image import ImageInput
from mapsto.inputs.sequence import SequenceInput
from mapsto.inputs.series import SeriesInput
from mapsto.inputs.vector import VectorInput
from mapsto.models.mapper import Mapper
from mapsto.nn.multihead import MultiheadAttention
from mapsto.nn.pool import pool
from mapsto.nn.target import LabelTarget, NumberTarget
from mapsto.nn.transformer import Encoder
from mapsto.outputs.vector import VectorOutput
from mapsto.ragged import Ragged
from mapsto.tasks import report
from mapsto.tasks.card import model_card
from mapsto.tasks.config import Config, override
from mapsto.tasks.pictures import style
from mapsto.tasks.pictures.attention import attended
from mapsto.tasks.pictures.classes import LIMIT, calibration, condensed, confusions, label_bars
from mapsto.tasks.pictures.curves import curves, read_history
from mapsto.tasks.pictures.example import Example, costs, examples, spread
from mapsto.tasks.pictures.gallery import gallery
from mapsto.tasks.pictures.numbers import predictions
from mapsto.tasks.pictures.sheet import sheet
from mapsto.tasks.pictures.style import png
from mapsto.tasks.pictures.text import escape, visible
from mapsto.tasks.pictures.view import ImageView, SeriesView, TokensView, VectorView, views
from mapsto.tasks.run import load
from mapsto.tasks.score import answer
from mapsto.tasks.show import show
from mapsto.tasks.train import train
from mapsto.tasks.verdict import verdicts
from mapsto.vocabulary import Characters, Words

EVIL = "<script>alert(1)</script> $x_1$ \u202e\x07 & \"quoted\" 'single'"


def fitted(root, source, *settings, targets, inputs=(), name="run"):
    config = Config()
    config.data.inputs, config.data.targets = list(inputs), list(targets)
    if isinstance(source, Path):
        config.data.source, source = str(source), None
    config = override(config, ["train.steps=3", "size=xs", "model.depth=1", *settings])
    quiet = Console(quiet=True)
    return train(config, source, name=name, console=quiet, root=root)[0]


@pytest.fixture(scope="module")
def notes(tmp_path_factory):
    """A run on a text and a category to one of two labels, with hostile text in all of them."""
    root = tmp_path_factory.mktemp("notes")
    rows = []
    for i in range(90):
        word = ["calm", "fever"][i % 2]
        rows.append(
            {
                "note": f"{word} word{i % 7} {EVIL if i % 5 == 0 else 'seen'} {i}",
                "ward": ["A", "B <b>bold</b>", None][i % 3],
                "risk": ["low $5$", "high <i>"][i % 2],
            }
        )
    path = root / "notes.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    return fitted(
        root,
        path,
        "model.pool=attention",
        "input.vocabulary=words",
        inputs=["note:sequence", "ward:label"],
        targets=["risk:label"],
    )


@pytest.fixture(scope="module")
def drawn(notes):
    return gallery(notes)


@pytest.fixture(scope="module")
def houses(tmp_path_factory):
    """Numbers, a category and missing cells to two numbers and a label."""
    root = tmp_path_factory.mktemp("houses")
    draw = np.random.default_rng(0)
    lines = ["area,town,price,rent,grade"]
    for i in range(80):
        area = draw.normal(90, 20)
        shown = "" if i % 9 == 0 else f"{area:.2f}"
        town, price = ["Ghent", "Bruges"][i % 2], 2 * area + draw.normal()
        lines.append(f"{shown},{town},{price:.2f},{area / 9:.3f},{'AB'[i % 2]}")
    path = root / "houses.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    targets = ["price:number", "rent:number", "grade:label"]
    return fitted(root, path, inputs=["area:number", "town:label"], targets=targets)


class Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]

    def handle_data(self, data):
        self.text.append(data)


def parsed(path):
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    page.close()
    return page


def size(content):
    with Image.open(BytesIO(content)) as image:
        return image.size


# --- attention


def test_weights_of_a_layer_are_softmax_of_its_own_queries_and_keys():
    torch.manual_seed(0)
    layer = MultiheadAttention(8, 2).double()
    x = Collection.build(torch.randn(3, 5, 8).double(), torch.arange(5) < torch.tensor([[5], [2], [1]]))
    found = layer.weights(x)
    q, k, _ = layer.project(x.items, None)
    q, k = (t.reshape(3, 5, 2, 4).transpose(1, 2) for t in (q, k))
    logits = (q @ k.transpose(-1, -2) / math.sqrt(4)).masked_fill(~x.valid[:, None, None], -torch.inf)
    assert torch.allclose(found, torch.softmax(logits, -1), atol=1e-12)


def test_causal_weights_of_a_layer_see_nothing_later():
    x = Collection.build(torch.randn(2, 4, 8))
    found = MultiheadAttention(8, 2).weights(x, causal=True)
    assert (found.triu(1) == 0).all()
    assert torch.allclose(found.sum(-1), torch.ones(2, 2, 4))


def joined_model(reader="mean", depth=1):
    torch.manual_seed(0)
    columns = [{"name": c, "kind": "number", "mean": [0.0], "scale": [1.0]} for c in "abc"]
    parts = {"text": SequenceInput(8, vocabulary=Characters("xyz")), "row": VectorInput(8, columns=columns)}
    output = VectorOutput(8, targets={"y": {"kind": "label", "classes": ["no", "yes"]}})
    model = Mapper(parts, Encoder(8, depth, 2), pool(reader, 8, 2), output).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn_like(p) * 0.5)
    return model


def joined_batch(lengths):
    valid = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    ids = (torch.arange(valid.numel()).view(valid.shape) % 3 + 3).masked_fill(~valid, 0)
    numbers = torch.linspace(-1, 1, 3 * len(lengths)).view(-1, 3)
    labels = torch.zeros(len(lengths), 0, dtype=torch.int32)
    return {"text": {"ids": ids, "valid": valid}, "row": {"numbers": numbers, "labels": labels}}


@pytest.mark.parametrize("reader", ["mean", "attention", "class", "softmax", "sigmoid"])
def test_shown_weights_are_even_shares_and_do_not_depend_on_company(reader):
    model, lengths = joined_model(reader), [2, 6, 4]
    batch = joined_batch(lengths)
    found = attended(model, batch)
    for i, length in enumerate(lengths):
        assert [len(found.weights[i][n]) for n in ("text", "row")] == [length, 3]
        together = np.concatenate(list(found.weights[i].values()))
        assert together.mean() == pytest.approx(1, abs=1e-5)
        alone = {"text": {n: t[i : i + 1, :length] for n, t in batch["text"].items()}}
        alone["row"] = {n: t[i : i + 1] for n, t in batch["row"].items()}
        for name, weights in attended(model, alone).weights[0].items():
            assert np.allclose(weights, found.weights[i][name], atol=1e-5)


def test_mean_pooled_models_show_what_each_item_receives_in_the_last_layer():
    model = joined_model("mean", depth=2)
    batch = joined_batch([3])
    found = attended(model, batch).weights[0]
    with torch.no_grad():
        entered = model.collect(batch)
        first, last = model.encoder.blocks
        middle = first(entered, None, model.encoder.position, False)
        q, k, _ = last.attention.project(last.attention_norm(middle.items), None)
        q, k = (t.reshape(1, 6, 2, 4).transpose(1, 2) for t in (q, k))
        expected = torch.softmax(q @ k.transpose(-1, -2) / 2, -1).mean((0, 1, 2)) * 6
    assert np.allclose(np.concatenate([found["text"], found["row"]]), expected, atol=1e-5)


def test_a_model_without_attention_shows_none():
    assert attended(joined_model("mean", depth=0), joined_batch([2])) is None


# --- what the model receives


def columns_of(part, values):
    rows = [part.parse(v) for v in values]
    return {name: Ragged.pack([r[name] for r in rows]).take(np.arange(len(rows))) for name in rows[0]}


def test_tokens_are_shown_as_cut_with_unknown_ones_marked():
    part = SequenceInput(4, vocabulary=Words(["good", "film"]), limit=3)
    (view,) = views(part, columns_of(part, ["good odd film again"]))
    assert isinstance(view, TokensView)
    assert view.tokens == ["good", "<unknown>", "film"]
    assert view.unknown.tolist() == [False, True, False]
    assert view.full


def test_pixels_are_shown_standardised():
    part = ImageInput(4, channels=1, mean=[0.5], scale=[0.25], patch=2, stem="patches")
    pixels = np.arange(15, dtype=np.uint8).reshape(3, 5) * 17
    (view,) = views(part, columns_of(part, [pixels]))
    assert isinstance(view, ImageView)
    assert np.allclose(view.pixels[..., 0], (pixels / 255 - 0.5) / 0.25)
    assert view.grid == (2, 3)


def test_series_are_shown_in_their_own_units_without_the_filling_of_the_last_patch():
    part = SeriesInput(4, mean=[10.0, 0.0], scale=[2.0, 1.0], gap=0.5, patch=2)
    values = np.array([[8.0, 1.0], [12.0, np.nan], [10.0, 3.0]])
    (view,) = views(part, columns_of(part, [(values, np.array([5.0, 5.5, 6.0]))]))
    assert isinstance(view, SeriesView)
    assert np.allclose(view.values, values, equal_nan=True)
    assert np.allclose(view.times, [0, 0.5, 1.0])
    assert view.items == 2


def test_table_cells_are_shown_with_missing_and_unseen_marked():
    columns = [
        {"name": "age", "kind": "number", "mean": [40.0], "scale": [10.0]},
        {"name": "town", "kind": "label", "classes": ["Ghent"]},
    ]
    part = VectorInput(4, columns=columns)
    first, second, third = views(part, columns_of(part, [(50.0, "Ghent"), (None, "Paris"), (40.0, None)]))
    assert isinstance(first, VectorView)
    assert first.texts == ["50", "Ghent"]
    assert first.values[0] == pytest.approx(1.0)
    assert second.missing.tolist() == [True, False]
    assert second.unknown.tolist() == [False, True]
    assert third.missing.tolist() == [False, True]


# --- numbers behind the pictures


def test_calibration_equals_a_plain_loop():
    draw = np.random.default_rng(1)
    log_p = np.log(draw.dirichlet([1, 1, 1], 300))
    truth = draw.integers(0, 3, 300)
    rows, mean, share, error = calibration(log_p, truth)
    expected = 0.0
    for b in range(10):
        inside = [i for i in range(300) if b / 10 <= np.exp(log_p[i].max()) < (b + 1) / 10]
        assert rows[b] == len(inside)
        if inside:
            sure = np.mean([np.exp(log_p[i].max()) for i in inside])
            right = np.mean([log_p[i].argmax() == truth[i] for i in inside])
            assert (mean[b], share[b]) == (pytest.approx(sure), pytest.approx(right))
            expected += len(inside) / 300 * abs(right - sure)
    assert error == pytest.approx(expected)


def test_too_many_classes_are_pooled_and_no_row_is_lost():
    counts = np.random.default_rng(0).integers(0, 9, (50, 50))
    small, names = condensed(counts, [f"c{i}" for i in range(50)])
    assert small.shape == (LIMIT, LIMIT)
    assert small.sum() == counts.sum()
    assert names[-1] == f"{50 - LIMIT + 1} others"
    kept = [int(n[1:]) for n in names[:-1]]
    assert (small[:-1, :-1] == counts[np.ix_(kept, kept)]).all()


def test_examples_are_spread_over_labels_and_over_the_range_of_numbers():
    label = LabelTarget(4, classes=["a", "b"])
    assert spread(label, [np.array([i]) for i in (0, 0, 0, 1, 0, 1)], 4).tolist() == [0, 4, 3, 5]
    number = NumberTarget(4, mean=[0.0], scale=[1.0])
    picked = spread(number, [np.array([[v]]) for v in (5.0, 1.0, 3.0, 2.0, 4.0)], 3)
    assert picked.tolist() == [1, 2, 0]
    assert len(spread(label, [], 4)) == 0


def test_the_worst_mistakes_are_the_rows_of_least_likelihood(notes):
    feed = notes.feed("test")
    found = answer(notes.model, feed)
    cost = costs(found, len(feed.rows))
    p = np.exp(found.predicted["risk"]["log_probability"].astype(np.float64))
    assert np.allclose(cost, -np.log(p[np.arange(len(p)), found.target["risk"]]), atol=1e-5)
    (worst,) = examples(feed, cost.argsort()[-1:], notes.dataset().places, found)
    name, row = notes.dataset().places[feed.rows[cost.argmax()]]
    assert worst.where == f"{name} row {row}"
    line = json.loads(Path(notes.config.data.source).read_text(encoding="utf-8").splitlines()[row - 1])
    assert worst.truth.startswith(line["risk"])
    assert worst.views["note"].tokens[0] == line["note"].split()[0]


def test_a_history_that_was_cut_short_keeps_its_whole_lines(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 2, "loss": 1.0}\n{"step": 1, "loss": 2.0}\n{"step": 3, "lo', encoding="utf-8")
    assert [r["step"] for r in read_history(path)] == [1, 2]
    assert read_history(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("mine", "simple", "words", "beaten"),
    [
        ({"accuracy": 0.6}, {"accuracy": 0.7}, "A simple model does better: logistic", True),
        ({"accuracy": 0.7}, {"accuracy": 0.6}, "It does better than the simple models", False),
        ({"accuracy": 0.7}, {"accuracy": 0.7}, "A simple model does as well", False),
        ({"rmse": 2.0}, {"rmse": 1.0}, "A simple model does better", True),
        ({"rmse": 1.0}, {"rmse": 2.0}, "It does better", False),
    ],
)
def test_the_verdict_says_when_a_simple_model_does_better(mine, simple, words, beaten):
    result = {"metrics": mine, "intervals": {}, "baselines": {"logistic": simple}}
    (verdict,) = verdicts(result, ["y"])
    assert verdict.sentence.startswith(words)
    assert verdict.beaten == beaten


def test_the_verdict_says_when_the_difference_may_be_chance():
    intervals = {"accuracy": [0.5, 0.7]}
    result = {"metrics": {"accuracy": 0.6}, "intervals": intervals, "baselines": {"x": {"accuracy": 0.65}}}
    assert "may be chance" in verdicts(result, ["y"])[0].sentence
    result["baselines"]["x"]["accuracy"] = 0.75
    assert "may be chance" not in verdicts(result, ["y"])[0].sentence


# --- pictures


def drawings():
    draw = np.random.default_rng(0)
    history = [
        {"step": s, "loss": 1 / s, "val_loss": math.nan if s == 2 else 1 / s, "val_mae": s, "lr": 0.1, "best": True}
        for s in (1, 2, 3)
    ]
    tokens = TokensView(["$a$", EVIL, "日本", "ह"] * 40, np.array([False, True, False, False] * 40), True)
    image = ImageView(draw.normal(size=(7, 9, 3)), 4, draw.random((7, 9)))
    values = draw.normal(size=(12, 2))
    values[3, 1] = np.nan
    series = SeriesView(np.arange(12.0), values, np.arange(0, 12, 3.0), False)
    vector = VectorView(
        [f"column {i} $" for i in range(30)], draw.normal(size=30), ["x"] * 30, np.arange(30) == 2, np.arange(30) == 3
    )
    joined = [Example("f.csv row 1", {"a": tokens, "b": image, "c": series, "d": vector}, "yes", "no (0.6)", False)]
    even = [{n: np.ones(v.items) for n, v in joined[0].views.items()}]
    yield "curves", partial(curves, history)
    yield "no history", partial(curves, history[:1])
    for classes in (2, 6, 20, 40):
        p = np.log(draw.dirichlet(np.ones(classes), 100))
        names = [f"class {i} $ {EVIL}" for i in range(classes)]
        yield f"confusion of {classes}", partial(confusions, p, draw.integers(0, classes, 100), names)
    odds = draw.normal(size=(50, 3))
    yield "labels", partial(label_bars, odds, odds > [[0, 1, 99]], ["a", "b", "never"])
    value = draw.normal(size=(60, 2))
    yield "numbers, one sigma", partial(predictions, value, np.ones((60, 2)), value + 0.1)
    yield "numbers, a sigma each", partial(predictions, value, draw.random((60, 2)) + 0.1, value + 0.1)
    yield "one number", partial(predictions, [[1.0]], [[1.0]], [[1.0]])
    yield "joined", partial(sheet, joined, "joined")
    yield "joined, weighed", partial(sheet, joined, "joined", weights=even)
    for name, view in joined[0].views.items():
        alone = [Example("f row 1", {name: view}, "yes")] * 3
        yield f"{name} alone", partial(sheet, alone, "alone")
        yield f"{name} weighed", partial(sheet, alone, "alone", weights=[{name: np.ones(view.items)}] * 3)


@pytest.mark.parametrize("draw", [pytest.param(d, id=n) for n, d in drawings()])
def test_every_picture_draws_without_a_warning(draw):
    width, height = size(png(draw()))
    assert width == 1152
    assert 100 < height < 6000


def test_the_same_picture_is_the_same_file():
    draw = dict(drawings())["confusion of 6"]
    assert png(draw()) == png(draw())


def test_drawing_changes_no_setting_of_the_process():
    import matplotlib

    before = dict(matplotlib.rcParams)
    figure = dict(drawings())["curves"]()
    png(figure)
    assert dict(matplotlib.rcParams) == before
    assert not hasattr(figure, "number")  # pyplot numbers the figures that it manages


def test_a_missing_matplotlib_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    style._settings.cache_clear()
    try:
        with pytest.raises(ConfigError, match=r"pip install 'mapsto\[plot\]'"):
            curves([])
    finally:
        style._settings.cache_clear()


# --- the verb and the report


def test_show_writes_every_picture_and_the_report(notes, tmp_path):
    written = show(notes.folder, out=tmp_path)
    assert [Path(p).name for p in written["plots"]] == [
        "curves.png",
        "confusion.png",
        "received.png",
        "mistakes.png",
        "attention.png",
    ]
    assert all(size(Path(p).read_bytes())[0] == 1152 for p in written["plots"])
    page = parsed(Path(written["report"]))
    assert page.tags.count("img") == 5
    text = " ".join(page.text)
    for wanted in ("What is mapped", "How well", "Settings", "Environment", "logistic", "the pooling's attention"):
        assert wanted in text


def test_the_report_runs_nothing_and_loads_nothing(notes, drawn, tmp_path):
    report.write(notes, tmp_path / "report.html", drawn=drawn)
    page = parsed(tmp_path / "report.html")
    assert not {"script", "iframe", "object", "embed", "link", "form", "base", "svg", "b2"} & set(page.tags)
    policy = [v for tag, name, v in page.attributes if tag == "meta" and "default-src" in str(v)]
    assert policy
    assert policy[0].startswith("default-src 'none'; img-src data:")
    for _, name, value in page.attributes:
        assert not name.startswith("on")
        if name in ("src", "href"):
            assert value.startswith("data:image/png;base64,")
    raw = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "\x07" not in raw
    assert "\u202e" not in raw
    assert "<i>" not in raw.replace('<i class="where">', "")
    assert "url(" not in raw
    assert "high &lt;i&gt;" in raw


def test_a_report_without_escaping_would_be_caught(notes, drawn, tmp_path, monkeypatch):
    monkeypatch.setattr("mapsto.tasks.report.escape", str)
    monkeypatch.setattr("mapsto.tasks.page.escape", str)
    report.write(notes, tmp_path / "report.html", drawn=drawn)
    with pytest.raises(AssertionError):
        assert "<i>" not in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_several_targets_get_a_picture_and_a_table_each(houses, tmp_path):
    written = show(houses.folder, out=tmp_path)
    names = [Path(p).stem for p in written["plots"]]
    assert names == ["curves", "numbers-price", "numbers-rent", "confusion-grade", "received", "mistakes", "attention"]
    page = parsed(Path(written["report"]))
    assert {"price", "rent", "grade"} <= set(page.text)


def test_metrics_of_other_data_are_named_as_such(notes, drawn, tmp_path):
    result = {"metrics": {"accuracy": 0.25}, "intervals": {}, "baselines": {}}
    report.write(notes, tmp_path / "report.html", result=result, drawn=drawn)
    assert "Measured on the data that evaluate was given" in " ".join(parsed(tmp_path / "report.html").text)


def test_a_run_on_rows_in_memory_shows_what_it_can(tmp_path):
    rows = [{"tokens": ["a", "b", "c"][: 2 + i % 2], "tags": ["x", "y", "x"][: 2 + i % 2]} for i in range(40)]
    rows = [{**r, "tokens": [*r["tokens"], f"t{i % 12}"], "tags": [*r["tags"], "y"]} for i, r in enumerate(rows)]
    run = fitted(tmp_path, rows, inputs=["tokens:sequence"], targets=["tags:items"])
    made = gallery(run)
    assert [p.name for p in made.pictures] == ["curves", "confusion", "received", "mistakes", "attention"]
    again = show(run.folder)
    assert [Path(p).name for p in again["plots"]] == ["curves.png"]
    assert "rows in memory" in again["left_out"][0]
    assert "Left out" in parsed(Path(again["report"])).text


def test_data_that_changed_since_training_are_not_shown_as_the_models(notes, tmp_path):
    path = Path(notes.config.data.source)
    before = path.read_bytes()
    path.write_bytes(before.replace(b"calm", b"quiet and calm"))
    try:
        written = show(notes.folder, out=tmp_path)
    finally:
        path.write_bytes(before)
    assert [Path(p).name for p in written["plots"]] == ["curves.png"]
    assert "has changed since" in written["left_out"][0]


def test_show_without_a_run_says_so(tmp_path):
    with pytest.raises(ModelFileError, match="there is no run folder"):
        show(tmp_path / "none")


def test_the_model_card_says_what_the_model_is_and_how_to_use_it(notes):
    card = model_card(load(notes.folder, device="cpu"), notes.result)
    assert f"mapsto predict runs/{notes.folder.name} rows.csv" in card
    assert f'mapsto.load("runs/{notes.folder.name}").predict([{{"note": ..., "ward": ...}}])' in card
    assert "| logistic |" in card
    assert "can only answer with the labels named above" in card
    assert "<i>" not in card.replace("\\<i\\>", "")
    assert str(notes.folder.parent) not in card


def test_text_from_data_is_made_visible():
    assert visible("a\nb\x7f\u202e") == "a␊b␡\\u202e"
    assert visible("\ud800") == "\\ud800"
    assert escape("<\x00'\">") == "&lt;␀&#x27;&quot;&gt;"
    assert visible("नमस्ते \u200c日本") == "नमस्ते \u200c日本"
