"""Pictures, report, card and check of models that write sequences, and of language models."""

import json
import re
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser
from io import BytesIO, StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from mapsto.inputs.sequence import SequenceInput
from mapsto.models.mapper import Mapper
from mapsto.nn.transformer import Decoder, Encoder
from mapsto.outputs.sequence import SequenceOutput
from mapsto.tasks.announce import describe_map, result_lines
from mapsto.tasks.card import model_card
from mapsto.tasks.check import check_data
from mapsto.tasks.config import Config, override
from mapsto.tasks.evaluate import evaluate
from mapsto.tasks.pictures.alignment import LIMIT, Alignment, aligned, alignments
from mapsto.tasks.pictures.example import Example, Line, examples
from mapsto.tasks.pictures.gallery import gallery
from mapsto.tasks.pictures.passage import END_MARK, Passage, page, passages, placed
from mapsto.tasks.pictures.place import by_length, by_place, places
from mapsto.tasks.pictures.sheet import sheet
from mapsto.tasks.pictures.style import png
from mapsto.tasks.pictures.view import ImageView, TokensView, told
from mapsto.tasks.predict import predict
from mapsto.tasks.run import load
from mapsto.tasks.sample import sample
from mapsto.tasks.score import answer
from mapsto.tasks.show import show
from mapsto.tasks.train import train
from mapsto.tasks.verdict import verdicts
from mapsto.tasks.written import texts
from mapsto.training.backoff import tuned_order
from mapsto.training.edit import edit_distance, unmatched
from mapsto.vocabulary import BEGIN, END, Characters, Symbols

EVIL = "<script>alert(1)</script> $x_1$ \u202e\x07 & \"quoted\" 'single'"


def fitted(root, source, *settings, targets, inputs=(), name="run"):
    config = Config()
    config.data.inputs, config.data.targets = list(inputs), list(targets)
    if isinstance(source, Path):
        config.data.source, source = str(source), None
    config = override(config, ["train.steps=3", "size=xs", "model.depth=1", *settings])
    return train(config, source, name=name, console=Console(quiet=True), root=root)[0]


class Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.text = []

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


@pytest.fixture(scope="module")
def spoken(tmp_path_factory):
    """Short texts to lists of symbols; the longest targets are cut."""
    root = tmp_path_factory.mktemp("spoken")
    draw = np.random.default_rng(0)
    rows = []
    for _ in range(120):
        word = "".join(draw.choice(list("abcd"), draw.integers(2, 7)))
        rows.append({"word": word, "sounds": [c.upper() + "<b>" for c in reversed(word)]})
    path = root / "spoken.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    return fitted(root, path, "output.limit=5", inputs=["word:sequence"], targets=["sounds:sequence"])


@pytest.fixture(scope="module")
def reversed_texts(tmp_path_factory):
    """Texts to the same texts reversed, hostile ones among them."""
    root = tmp_path_factory.mktemp("reversed")
    rows = [{"text": f"{'ab'[i % 2] * (1 + i % 5)} {i} {EVIL if i % 20 == 0 else ''}"} for i in range(80)]
    rows = [{**r, "back": r["text"][::-1]} for r in rows]
    settings = ["output.vocabulary=characters", "input.vocabulary=characters"]
    return fitted(root, rows, *settings, inputs=["text:sequence"], targets=["back:sequence"])


@pytest.fixture(scope="module")
def tale(tmp_path_factory):
    """A text that is read whole."""
    root = tmp_path_factory.mktemp("tale")
    draw = np.random.default_rng(0)
    lines = [" ".join(draw.choice(["the", "cat", "sat", "on <b>", "a mat"], 6)) for _ in range(120)]
    path = root / "tale.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return fitted(root, path, "output.limit=32", "output.vocabulary=characters", targets=[])


# --- what is shown of them


def test_the_alignment_is_the_softmax_of_the_last_cross_attention_and_does_not_depend_on_company():
    torch.manual_seed(0)
    source = SequenceInput(8, vocabulary=Characters("xyz"))
    output = SequenceOutput(8, name="said", vocabulary=Symbols(["P", "Q"]))
    model = Mapper({"text": source}, Encoder(8, 1, 2), Decoder(8, 2, 2), output).eval()
    ids = torch.tensor([[3, 4, 5, 3], [5, 4, 0, 0]])
    valid = torch.tensor([[True] * 4, [True, True, False, False]])
    said = [[3, 4, END], [4, 3]]
    first, second = aligned(model, {"text": {"ids": ids, "valid": valid}}, said)
    assert first.shape == (3, 4)
    assert second.shape == (2, 2)
    assert np.allclose(first.sum(1), 1, atol=1e-6)
    (alone,) = aligned(model, {"text": {"ids": ids[1:, :2], "valid": valid[1:, :2]}}, said[1:])
    assert np.allclose(alone, second, atol=1e-6)
    with torch.no_grad():
        memory = model.encoder(model.collect({"text": {"ids": ids[:1], "valid": valid[:1]}}))
        x = output.ask(torch.tensor([[BEGIN, 3, 4]]))
        x = x.replace(items=model.reader.position.add(x.items, x.places))
        early, last = model.reader.blocks
        x = early(x, memory, model.reader.position, True)
        x = x.replace(items=x.items + last.attention(x.replace(items=last.attention_norm(x.items)), causal=True))
        q, k, _ = last.cross.project(last.cross_norm(x.items), memory.items)
        q, k = (t.reshape(1, -1, 2, 4).transpose(1, 2) for t in (q, k))
        expected = torch.softmax(q @ k.transpose(-1, -2) / 2, -1).mean(1)[0]
    assert np.allclose(first, expected, atol=1e-5)


def test_what_is_unmatched_is_as_much_as_the_edit_distance_needs():
    draw = np.random.default_rng(0)
    for _ in range(50):
        said, true = (draw.integers(0, 3, draw.integers(0, 8)) for _ in range(2))
        wrong, lacking = unmatched(said, true)
        assert max(wrong.sum(), lacking.sum()) <= edit_distance(said, true) <= wrong.sum() + lacking.sum()
        assert said[~wrong].tolist() == true[~lacking].tolist()


def test_places_and_lengths_are_the_means_of_a_plain_loop():
    draw = np.random.default_rng(0)
    row = np.repeat(np.arange(60), draw.integers(1, 9, 60))
    value = draw.random(len(row))
    place = np.array([sum(row[:i] == row[i]) for i in range(len(row))])
    at, mean, count = by_place(value, row)
    for p, m, n in zip(at, mean, count, strict=True):
        assert n == (place == p - 1).sum() >= 8
        assert m == pytest.approx(value[place == p - 1].mean())
    middle, cost, rows = by_length(value, row, 60)
    sizes = np.bincount(row)
    assert rows.sum() == 60
    for length, c in zip(middle, cost, strict=True):
        inside = np.isin(row, np.flatnonzero(sizes == length))
        assert c == pytest.approx(value[inside].mean())


def test_a_written_sequence_is_shown_without_its_marks():
    view = told(Symbols(["A", "B"]), [BEGIN, 3, 0, 4, END], full=True)
    assert view.tokens == ["A", "<unknown>", "B"]
    assert view.unknown.tolist() == [False, True, False]
    assert view.full


def test_a_passage_is_broken_where_its_lines_end_and_between_words():
    text = "one two three\nfour fivesixseven"
    lines: dict[int, str] = {}
    for i, line, at, width in placed(Passage("", list(text)), 9):
        assert at == len(lines.setdefault(line, ""))
        assert width == 1
        lines[line] += text[i]
    assert [lines[i] for i in sorted(lines)] == ["one two ", "three\n", "four ", "fivesixse", "ven"]


def drawings():
    draw = np.random.default_rng(0)
    tokens = TokensView(["$a$", EVIL, "日本", "\n"] * 12, np.array([False, True, False, False] * 12))
    none = TokensView([], np.zeros(0, np.bool_))
    line = Line("true $", tokens, np.arange(48) % 3 == 0)
    image = ImageView(draw.normal(size=(7, 9, 3)), 4, draw.random((7, 9)))
    yield (
        "lines",
        partial(sheet, [Example("f row 1", {"a": tokens}, "1 nat", lines=(line, Line("said", none)))] * 3, "x"),
    )
    yield "short lines", partial(sheet, [Example("f", {"a": none}, lines=(Line("b", none),))] * 8, "x")
    yield "lines beside a picture", partial(sheet, [Example("f row 1", {"a": image}, "yes", lines=(line,))] * 2, "x")
    yield "lines of nothing", partial(sheet, [Example("f row 1", {}, lines=(line,))], "x")
    names = ["$a$", " ", "\n", EVIL]
    small = Alignment(np.full((2, 4), 0.25), ["A", "<end>"], names, "row 1 $", np.array([True, False]))
    large = Alignment(draw.dirichlet(np.ones(70), 60), ["long token"] * 60, ["a"] * 70, "row 2")
    empty = Alignment(np.zeros((0, 3)), [], ["a"] * 3, "row 3")
    yield "alignments", partial(alignments, [small, large, small, empty], "x")
    passage = Passage("$ row", [*list("some text\nmore "), EVIL, "日本", END_MARK] * 9, draw.random(162) * 9)
    yield "passages", partial(passages, [passage, replace(passage, bits=None), replace(passage, gap=1)], "x")
    row = np.repeat(np.arange(9), 50)
    right = draw.random(450) > 0.5
    yield "places", partial(places, draw.random(450), right, row, 9, beside={})
    yield "places in windows", partial(places, draw.random(450), right, row, 9, window=True, beside={"2-gram $": 1.5})
    yield "one place", partial(places, [1.0], [True], [0], 1, beside={})


@pytest.mark.parametrize("draw", [pytest.param(d, id=n) for n, d in drawings()])
def test_every_picture_of_sequences_draws_without_a_warning(draw):
    width, height = size(png(draw()))
    assert width == 1152
    assert 100 < height < 4000


def test_a_map_that_is_too_large_says_that_it_is_cut():
    large = Alignment(np.full((60, 70), 1 / 70), ["b"] * 60, ["a"] * 70, "row 2")
    drawn = alignments([large], "x")
    (axes,) = drawn.axes
    assert axes.images[0].get_array().shape == (LIMIT, LIMIT)
    assert any(f"the first {LIMIT} tokens" in text.get_text() for text in drawn.texts)


def test_passages_on_the_page_escape_what_comes_from_data():
    text = page([Passage("<i>", ["<b>", "\n", END_MARK], np.array([1.0, 2.0, 9.0]))])
    assert "<b>" not in text
    assert "<i>" not in text
    assert "&lt;b&gt;" in text
    assert 'title="9.0 bits"' in text


# --- runs


def test_show_draws_what_a_model_writes(spoken, tmp_path):
    written = show(spoken.folder, out=tmp_path)
    names = [Path(p).stem for p in written["plots"]]
    assert names == ["curves", "places", "received", "mistakes", "alignment"]
    assert not written["left_out"]
    html = Path(written["report"]).read_text(encoding="utf-8")
    text = " ".join(parsed(Path(written["report"])).text)
    assert "A<b>" not in html
    assert "A&lt;b&gt;" in html
    for wanted in ("nats a token", "said: ", "decoder of 1 layer", "unigram", "beam search with", "symbol error rate"):
        assert wanted in text
    assert re.search(r"as \d+ of these 16 are \(output\.limit=5\)", text)


def test_mistakes_show_the_true_target_and_what_the_model_writes(spoken):
    made = {p.name: p for p in gallery(spoken).pictures}
    test = spoken.feed("test")
    (one,) = examples(test, np.array([0]), spoken.dataset().places)
    assert one.views["word"].tokens
    page = made["mistakes"].page
    assert "true: " in page
    assert "said: " in page
    assert 'class="missed"' in page


def test_rows_in_memory_and_hostile_texts_are_shown_all_the_same(reversed_texts, tmp_path):
    made = gallery(reversed_texts)
    assert [p.name for p in made.pictures] == ["curves", "places", "received", "mistakes", "alignment"]
    assert all(size(p.file)[0] == 1152 for p in made.pictures)
    assert "<script>" not in "".join(p.page for p in made.pictures)


@pytest.mark.parametrize("kind", ["image", "series", "numbers", "two"])
def test_every_source_of_a_sequence_is_shown(kind, tmp_path):
    draw = np.random.default_rng(0)
    names = [f"{'ab'[i % 2]}{'xyz'[i % 3]}" for i in range(60)]
    rows = {"name": [list(n) for n in names]}
    inputs = {"image": ["thing:image"], "series": ["thing:series"], "numbers": ["p:number", "q:number"]}
    if kind == "image":
        rows["thing"] = draw.integers(0, 255, (60, 8, 8)).astype(np.uint8)
    elif kind == "series":
        rows["thing"] = [draw.normal(size=(12, 2)).tolist() for _ in names]
    else:
        rows |= {"p": draw.normal(size=60).tolist(), "q": draw.normal(size=60).tolist()}
    if kind == "two":
        rows["thing"] = [n * 2 for n in names]
    given = inputs.get(kind, ["thing:sequence", "p:number"])
    run = fitted(tmp_path, rows, inputs=given, targets=["name:sequence"])
    made = gallery(run)
    assert [p.name for p in made.pictures] == ["curves", "places", "received", "mistakes", "alignment"]
    assert all(size(p.file)[0] == 1152 for p in made.pictures)
    assert "mapsto predict" in model_card(run, run.result)


def test_show_draws_what_surprises_a_language_model_and_what_it_writes(tale, tmp_path):
    written = show(tale.folder, out=tmp_path)
    names = [Path(p).stem for p in written["plots"]]
    assert names == ["curves", "surprise", "samples", "places", "received", "mistakes"]
    assert not written["left_out"]
    text = " ".join(parsed(Path(written["report"])).text)
    for wanted in ("characters to train", "what came before", "decoder of 1 layer", "bits a character", "-gram model:"):
        assert wanted in text
    assert "encoder of" not in text


def test_the_surprise_is_that_of_the_models_beside_each_other(tale):
    (shown,) = [p for p in gallery(tale).pictures if p.name == "surprise"]
    test, (name,) = tale.feed("test"), tale.model.output.targets
    found = answer(tale.model, test)
    parts = [texts(tale.feed(part)) for part in ("train", "val", "test")]
    simple = -tuned_order(parts[0], parts[1], tale.model.output.vocabulary.size).log_prob(*parts[2])
    assert len(simple) == len(found.nll[name])
    ids = test.columns["target"]["ids"].take(test.texts).flat()[0]
    assert found.target[name].tolist() == ids.tolist()
    for nll in (found.nll[name], simple):
        assert f"{nll[:900].mean() / np.log(2):.2f} bits a token here" in shown.page
        assert f'title="{nll[0] / np.log(2):.1f} bits"' in shown.page


def test_a_text_that_was_read_whole_is_read_whole_again(tale, tmp_path):
    again = load(tale.folder)
    assert again.evaluate()["metrics"] == tale.result["metrics"]
    other = tmp_path / "other.txt"
    other.write_text("the cat sat\n\non a mat\n" * 5, encoding="utf-8")
    result = evaluate(tale.folder, other, out=tmp_path / "report.html")
    assert result["metrics"]["perplexity"] > 1
    assert "Measured on the data that evaluate was given" in " ".join(parsed(tmp_path / "report.html").text)


def test_the_card_says_how_to_use_a_model_that_writes(spoken, tale, monkeypatch, tmp_path):
    card = model_card(spoken, spoken.result)
    assert f'mapsto predict runs/{spoken.folder.name} "a text" --beam 4 --best 3' in card
    assert "encoder of 1 layer, decoder of 1 layer" in card
    assert "perplexity" in card
    assert "Its probabilities are as good" not in card
    assert predict(spoken.folder, ["abca"])[0]["sounds.log_probability"] < 0
    card = model_card(tale, tale.result)
    assert f'mapsto sample runs/{tale.folder.name} --from "A beginning" --temperature 0.8' in card
    assert "Continues text" in card
    assert "Maps  to" not in card
    assert "remembers at most 32 tokens" in card
    python = card.partition("```python\n")[2].partition("```")[0]
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / tale.folder.name).symlink_to(tale.folder)
    monkeypatch.chdir(tmp_path)
    exec(python.replace("print", "told ="), {}, shared := {})
    assert shared["told"].startswith("A beginning") or "\ufffd" in shared["told"]
    assert sample(tale.folder, given="the", tokens=3)[0]["text"].startswith("the")


def test_a_copy_is_held_against_what_is_written_and_tokens_against_tokens():
    own = {"perplexity": 3.0, "per": 0.5, "nll": 1.1, "token_accuracy": 0.5, "exact_match": 0.0, "wer": 0.9}
    result = {
        "metrics": own,
        "intervals": {"per": [0.4, 0.6]},
        "baselines": {"unigram": {"perplexity": 9.0}, "4-gram": {"perplexity": 4.0}, "copy": {"per": 0.2}},
    }
    (verdict,) = verdicts(result, ["y"])
    assert verdict.beaten
    first, second = verdict.sentence.split(". By ")
    assert first.startswith("By symbol error rate, a simple model does better: copy has symbol error rate 0.200")
    assert second.startswith("perplexity, it does better than the simple models: perplexity 3.000; 4-gram has")
    head, body, models = verdict.table()
    assert not models
    assert head == ["", "this model", "unigram", "4-gram", "copy"]
    assert ["perplexity", "3.000", "9.000", "4.000", "-"] in body
    assert ["symbol error rate", "0.500 (0.400 to 0.600)", "-", "-", "0.200"] in body


def checked(*settings, source, inputs=(), targets=()):
    config = Config()
    config.data.source, config.data.inputs, config.data.targets = str(source), list(inputs), list(targets)
    lines = StringIO()
    return check_data(override(config, ["size=xs", *settings]), Console(width=200, file=lines)), lines.getvalue()


def test_check_tells_what_is_seen_of_source_and_target_and_what_is_cut(spoken, tmp_path):
    source = spoken.config.data.source
    report, text = checked("output.limit=5", source=source, inputs=["word:sequence"], targets=["sounds:sequence"])
    rows = [json.loads(line) for line in Path(source).read_text(encoding="utf-8").splitlines()]
    cut = sum(len(r["sounds"]) > 5 for r in rows)
    seen = report["sees"]["sequences"]
    assert seen["sounds"]["cut"] == cut > 0
    assert seen["sounds"]["tokens"]["most"] == 5
    assert seen["word"]["tokens"] == {"least": 2, "median": 4, "most": 6}
    assert seen["word"]["unknown"] == 0
    assert f'warning: "sounds": {cut} rows longer than output.limit=5 symbols' in text
    assert len(report["sees"]["examples"]["sounds"]) == len(report["sees"]["examples"]["word"]) == 3
    assert "word: 2 to 6 characters, median 4" in text


def test_check_counts_what_the_vocabulary_lacks(tmp_path):
    rows = ["text,back,part"]
    rows += [f"{'ab' * (1 + i % 4)},{'ba' * (1 + i % 4)},train" for i in range(30)]
    rows += ["aabz,qbaa,val"] * 2 + ["ab,ba,test"] * 2
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    report, text = checked(
        "data.split=part", "output.vocabulary=characters", "input.vocabulary=characters",
        source=path, inputs=["text:sequence"], targets=["back:sequence"],
    )  # fmt: skip
    assert report["sees"]["sequences"]["back"]["unknown"] == pytest.approx(2 / 12)
    assert (
        "16.7% of the characters of val and test do not occur in the training rows, and the model can never write"
        in text
    )


def test_check_and_training_tell_of_a_text_how_many_tokens_there_are(tale):
    report, text = checked("output.vocabulary=characters", "output.limit=32", source=tale.config.data.source)
    whole = Path(tale.config.data.source).read_text(encoding="utf-8")
    assert sum(report["split"].values()) == len(whole)
    assert "one text, in 3 passages" in text
    assert "tokens a window" in text
    train = tale.feed("train")
    lines = describe_map(tale.dataset(), tale.config, tale.model, 3, train, torch.device("cpu"), False, tale.folder)
    assert lines[0].startswith("tale.txt      text of ")
    assert lines[0].endswith(" characters")
    assert "characters by place in the text" in lines[2]


def test_many_metrics_take_several_lines(spoken):
    lines = result_lines(spoken.result, spoken.model)
    assert max(map(len, lines)) < 130
    assert lines[0].startswith("test ")
    assert lines[1].startswith("              exact_match")
