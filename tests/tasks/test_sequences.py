"""Sequences out, from rows to a run: what is taken for a sequence, what is trained, kept, asked and continued."""

import io
import json
import math
import shutil

import numpy as np
import pytest
import torch
from rich.console import Console

import mapsto
from mapsto import disk, manifest
from mapsto.data.kind import describe
from mapsto.data.table import open_table
from mapsto.errors import ConfigError, DataError, ModelFileError
from mapsto.models.search import Greedy, Sample
from mapsto.tasks.build import load_model
from mapsto.tasks.check import check_run
from mapsto.tasks.run import load
from mapsto.tasks.sample import continued, sample
from mapsto.tasks.schema import resolve
from mapsto.tasks.section import DataConfig
from mapsto.tasks.window import WindowFeed
from mapsto.vocabulary import BEGIN, UNKNOWN

SMALL = {"model.dim": 8, "model.depth": 1, "model.heads": 2, "train.steps": 3, "threads": 1}
WORDS = ["apple", "pear", "fig", "plum", "quince", "cherry", "lemon", "lime", "grape", "melon"]
PAIRS = [{"word": f"{w}{i}", "said": " ".join(f"{w}{i}".upper())} for i in range(12) for w in WORDS]
LINES = [f"{WORDS[i % 10]} and {WORDS[i * 7 % 9]} are {i} fruits.\n" for i in range(200)]


def resolved(rows, inputs=(), targets=(), **more):
    config = DataConfig(inputs=list(inputs), targets=list(targets), **more)
    return resolve(config, open_table(rows), describe)[0]


def fit(data, *, run, source=(), target=(), **settings):
    more = {name.replace("__", "."): value for name, value in settings.items()}
    return mapsto.fit(data, source=source, target=target, run=run, settings={**SMALL, **more}, quiet=True)


# What is taken for a sequence


def test_a_target_of_texts_that_differ_is_a_sequence():
    schema = resolved(PAIRS, ["word"], ["said"])
    assert schema.output.kind == "sequence"
    assert schema.output.columns == [("said", "sequence")]
    assert [f.kind for f in schema.inputs] == ["sequence"]


@pytest.mark.parametrize("labels", [["good", "bad"], ["not bad at all", "quite good"], [str(i) for i in range(15)]])
def test_a_target_of_texts_that_repeat_is_a_label(labels):
    rows = [{"x": f"text {i} {i * i}", "y": labels[i % len(labels)]} for i in range(60)]
    assert resolved(rows, ["x"], ["y"]).output.kind == "vector"
    assert resolved(rows, ["x"], ["y:label"]).output.columns == [("y", "label")]


def test_what_is_named_is_taken():
    rows = [{"x": f"text {i}", "y": "ab"[i % 2]} for i in range(60)]
    assert resolved(rows, ["x"], ["y:sequence"]).output.kind == "sequence"
    with pytest.raises(ConfigError, match="a sequence is written alone, with no other target"):
        resolved([{**row, "z": 1} for row in PAIRS], ["word"], ["said:sequence", "z:number"])


def test_lists_of_symbols_are_labels_an_answer_an_item_or_what_is_named():
    rows = [{"x": f"word {i}", "y": list("abcde"[: 1 + i % 5])} for i in range(30)]
    assert resolved(rows, ["x"], ["y"]).output.columns == [("y", "labels")]
    assert resolved(rows, ["x"], ["y:sequence"]).output.columns == [("y", "sequence")]
    each = [{"x": list("abc"[: 1 + i % 3]), "y": list("vcv"[: 1 + i % 3])} for i in range(30)]
    assert resolved(each, ["x"], ["y"]).output.kind == "items"
    assert resolved(each, ["x"], ["y:sequence"]).output.kind == "sequence"


def test_a_table_of_one_column_and_nothing_as_the_source_are_for_a_language_model():
    rows = [{"text": line} for line in LINES]
    for schema in (resolved(rows), resolved(rows, targets=["text"]), resolved(rows, ["nothing"], ["text"])):
        assert schema.inputs == []
        assert schema.output.columns == [("text", "sequence")]
    schema = resolved([{**row, "by": "me"} for row in rows], ["nothing"], ["text"])
    assert (schema.inputs, schema.sources) == ([], [])
    repeated = [{"text": "ab"[i % 2]} for i in range(60)]  # with a source these would be labels
    assert resolved(repeated, ["nothing"], ["text"]).output.kind == "sequence"


def test_a_column_called_nothing_is_a_column():
    rows = [{"nothing": f"{i} x", "text": line} for i, line in enumerate(LINES)]
    assert [f.name for f in resolved(rows, ["nothing"], ["text"]).inputs] == ["nothing"]


def test_what_cannot_be_decided_is_refused():
    with pytest.raises(ConfigError, match="which column is to be predicted"):
        resolved(PAIRS)
    with pytest.raises(ConfigError, match="no column is left to map from"):
        resolved([{"y": "ab"[i % 2], "by": "me"} for i in range(60)], targets=["y:label", "by:label"])


# Pairs


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in PAIRS))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        data = str(folder / "pairs.jsonl")
        run = fit(data, run="pairs", source="word", target="said", output__limit=9, output__beam=3)
        run.folder = run.folder.resolve()
        return run, run.folder


def test_pairs_are_fitted_judged_and_predicted(pairs):
    run, folder = pairs
    assert {"nll", "perplexity", "token_accuracy", "bits_per_character", "exact_match", "per"} <= run.result[
        "metrics"
    ].keys()
    assert {"unigram", "copy"} <= run.result["baselines"].keys()
    (row,) = load(folder).predict(["apple77"])
    assert set(row) == {"said", "said.log_probability"}
    (row,) = load(folder).predict(["apple77"], beam=4, best=3)
    found = [one["log_probability"] for one in row["said.best"]]
    assert len({one["value"] for one in row["said.best"]}) == len(found) == 3
    assert row["said"] == row["said.best"][0]["value"]


def test_a_batch_is_written_as_its_rows_alone(pairs):
    run, _ = pairs
    words = ["fig1", "cherry10", "a", "quincequince"]
    together = run.predict(words, beam=3)
    for word, row in zip(words, together, strict=True):
        (alone,) = run.predict([word], beam=3)
        assert alone["said"] == row["said"]
        assert alone["said.log_probability"] == pytest.approx(row["said.log_probability"], abs=1e-4)


def test_a_run_with_two_vocabularies_keeps_both(pairs):
    run, folder = pairs
    assert sorted(p.name for p in (folder / "model").glob("vocabulary.*")) == ["vocabulary.0.json", "vocabulary.1.json"]
    model, schema, _ = load_model(folder / "model")
    own, saved = run.model, model
    assert saved.sources["word"].vocabulary.dump() == own.sources["word"].vocabulary.dump()
    assert saved.output.vocabulary.dump() == own.output.vocabulary.dump()
    assert saved.sources["word"].vocabulary.symbols != saved.output.vocabulary.symbols
    assert saved.output.settings().keys() == own.output.settings().keys()
    assert schema == run.schema
    assert load(folder).predict(["lime5"]) == run.predict(["lime5"])


def test_another_file_judges_a_run(pairs):
    _, folder = pairs
    found = load(folder).evaluate([{"word": "fig 1", "said": "F I G"}, {"word": "lime", "said": "L I"}])
    assert found["metrics"]["nll"] > 0


def test_what_a_map_is_asked_is_sampled(pairs):
    run, folder = pairs
    rows = sample(folder, given="apple", count=3, how=Sample(seed=5))
    assert len(rows) == 3
    assert len({row["said"] for row in rows}) > 1
    assert rows == sample(folder, given="apple", count=3, how=Sample(seed=5))
    assert rows != sample(folder, given="apple", count=3, how=Sample(seed=6))
    with pytest.raises(ConfigError, match="what is to be mapped"):
        sample(folder)
    assert all(len(one.ids) <= 2 for one in continued(run, "apple", count=3, tokens=2, how=Sample()))


def test_a_target_as_long_as_its_limit_has_a_learned_place_for_its_end(tmp_path):
    rows = [{"x": f"{w}{i}", "y": ("abcdef" * 3)[i : i + 6]} for i in range(9) for w in WORDS]
    run = fit(rows, run="learned", source="x", target="y:sequence", model__position="learned", output__limit=6)
    assert run.model.reader.position.length == 7
    assert run.model.output.longest == 7
    assert run.predict(["fig"])[0]["y"] is not None


@pytest.mark.parametrize("position", ["rotary", "learned", "relative"])
def test_a_row_of_numbers_is_written_about_with_positions(position):
    rows = [{"a": i % 7, "b": i / 9, "y": f"number {i} is {'odd' if i % 2 else 'even'}"} for i in range(60)]
    run = fit(rows, run="row", source=["a", "b"], target="y", model__position=position)
    assert isinstance(run.predict([{"a": 3, "b": 0.1}])[0]["y"], str)


# Texts


@pytest.fixture(scope="module")
def novel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("novel")
    (folder / "novel.txt").write_text("".join(LINES))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run = fit(str(folder / "novel.txt"), run="novel", output__limit=12)
        run.folder = run.folder.resolve()
        return run


def test_a_text_file_is_fitted_as_one_text(novel):
    assert novel.model.names == []
    assert isinstance(novel.feed("train"), WindowFeed)
    told = novel.result
    assert {"nll", "perplexity", "token_accuracy", "bits_per_character"} <= told["metrics"].keys()
    assert "exact_match" not in told["metrics"]
    assert "unigram" in told["baselines"]
    parts = [novel.feed(part) for part in ("train", "val", "test")]
    tokens = sum(int(feed.lengths.sum()) for feed in parts)
    assert tokens == len("".join(LINES)) + 3  # every passage has its end
    with pytest.raises(ConfigError, match="maps from nothing"):
        novel.predict(["a"])


def test_the_nll_of_a_text_is_that_of_its_windows(novel):
    """By a loop: each window alone, each token by the logits of the one before."""
    feed, total, count = novel.feed("test"), 0.0, 0
    for window in feed.rows:
        target = feed.batch(np.array([window]))["target"]
        ids = target["ids"][0].long()
        tokens = torch.cat([target["before"].long(), ids[:-1]])[None]
        draft = novel.model.begin({}, 1, len(ids))
        for asked, token in zip(tokens[0], ids, strict=True):
            logits, _, draft = novel.model.write(asked[None, None], draft)
            total -= float(torch.log_softmax(logits[0, -1].double(), -1)[token])
        count += len(ids)
    assert novel.result["metrics"]["nll"] == pytest.approx(total / count, abs=1e-5)


def test_texts_go_on_beyond_the_window(novel):
    for tokens in (1, 11, 12, 13, 50):
        lines = continued(novel, "apple", count=2, tokens=tokens, how=Sample(seed=1))
        assert all(len(one.ids) == tokens or one.reason == "end" for one in lines)
    alone = continued(novel, "apple", count=1, tokens=50, how=Sample(seed=1))
    both = continued(novel, "apple", count=2, tokens=50, how=Sample(seed=1))
    assert both[0].ids == alone[0].ids
    assert both[1].ids != both[0].ids


@pytest.mark.parametrize("given", ["", "a", "apple and p", "apple and pe", "apple and pear are many, many fruits."])
def test_a_prompt_of_any_length_is_gone_on_from_as_the_windows_say(novel, given):
    """By a loop: at most a window is read, and where it is full, its last half is where the next begins."""
    output, window = novel.model.output, 12
    known, said, total = [BEGIN, *output.vocabulary.encode(given).tolist()], [], 0.0
    seen = known if len(known) < window else known[-window // 2 :]
    with torch.no_grad():
        while len(said) < 30:
            if len(seen) > window:
                seen = seen[-window // 2 :]
            logits, _, _ = novel.model.write(torch.tensor([seen]), novel.model.begin({}, 1, len(seen)))
            log_p = torch.log_softmax(logits[0, -1].double(), -1)
            token = int(log_p.index_fill(0, torch.tensor([UNKNOWN, BEGIN]), -math.inf).argmax())
            total += float(log_p[token])
            if token == 2:
                break
            said, seen = [*said, token], [*seen, token]
    (line,) = continued(novel, given, tokens=30, how=Greedy())
    assert line.ids == said
    assert line.log_probability == pytest.approx(total, abs=1e-4)


def test_a_stop_sequence_ends_a_text_wherever_windows_part(novel):
    (whole,) = continued(novel, "fig", tokens=60, how=Sample(seed=2))
    ids = whole.ids
    for place in range(2, 40):  # windows end at nine tokens, and at every sixth after that
        stop = ids[place - 2 : place + 1]
        first = next(i for i in range(2, len(ids)) if ids[i - 2 : i + 1] == stop)
        (line,) = continued(novel, "fig", tokens=60, how=Sample(seed=2), stops=[stop])
        assert line.reason == "stop"
        assert line.ids == ids[: first + 1]


def test_texts_that_end_a_sequence_are_named_as_texts(novel):
    rows = sample(novel.folder, given="fig", tokens=300, count=9, until=["a", "e"], how=Sample(seed=3))
    stopped = [row for row in rows if row["reason"] == "stop"]
    assert len(stopped) > 4
    assert all(row["text"][-1] in "ae" and not set(row["text"][3:-1]) & set("ae") for row in stopped)
    for text in ("", "你"):
        with pytest.raises(ConfigError, match=r"--until .*expected a text of characters that occur"):
            sample(novel.folder, until=[text])


def test_what_is_shown_as_it_is_written_is_what_is_written(novel, capsys):
    console = Console(width=10_000, color_system=None)
    (row,) = sample(novel.folder, given="apple", tokens=40, how=Sample(seed=1), console=console)
    assert capsys.readouterr().out == row["text"] + "\n"
    rows = sample(novel.folder, given="apple", tokens=5, count=2, how=Sample(seed=1), console=console)
    assert capsys.readouterr().out == "\n---\n".join(row["text"] for row in rows) + "\n"


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv", "a.parquet"])
def test_samples_are_written_to_files(novel, tmp_path, name):
    rows = sample(novel.folder, given="fig", tokens=5, count=2, out=tmp_path / name, how=Sample(seed=1))
    if name == "a.txt":
        assert (tmp_path / name).read_text() == "\n---\n".join(row["text"] for row in rows) + "\n"
    else:
        table = open_table(tmp_path / name)
        assert table.column("text") == [row["text"] for row in rows]
    with pytest.raises(ConfigError, match="are written"):
        sample(novel.folder, out=tmp_path / "a.doc")


def test_a_language_model_of_words_parts_what_it_is_given_from_what_it_writes(tmp_path, capsys):
    (tmp_path / "words.txt").write_text("".join(LINES))
    run = fit(str(tmp_path / "words.txt"), run="words", output__limit=8, output__vocabulary="words")
    console = Console(width=10_000, color_system=None)
    (row,) = sample(run.folder, given="apple and", tokens=20, how=Sample(seed=1), console=console)
    assert row["text"].startswith("apple and ")
    assert capsys.readouterr().out == row["text"] + "\n"


def test_a_language_model_of_whole_texts_has_no_windows_and_goes_on_all_the_same():
    rows = [{"text": line} for line in LINES]
    run = fit(rows, run="whole", output__limit=0)
    assert not isinstance(run.store_feed(run.dataset().store, targets=True), WindowFeed)
    assert continued(run, "apple", tokens=70, how=Sample(seed=1))


def test_groups_of_texts_are_those_of_their_windows():
    rows = [{"text": line, "by": f"author {i % 20}"} for i, line in enumerate(LINES)]
    run = fit(rows, run="grouped", source="nothing", target="text", output__limit=5, data__group="by")
    low, high = run.result["intervals"]["nll"]
    assert low < run.result["metrics"]["nll"] < high
    found = run.evaluate()
    assert found["intervals"]["nll"] == pytest.approx([low, high])


def test_a_text_with_half_characters_is_shown_when_they_are_whole():
    from mapsto.tasks.sample import _Shown
    from mapsto.vocabulary import Bytes

    out = io.StringIO()
    shown = _Shown(Bytes().decode, Console(file=out, width=1000, color_system=None))
    seen = []
    for token in [*Bytes().encode("né好!").tolist(), 3 + 0xE5]:
        shown(0, token)
        seen.append(out.getvalue())
    shown.end()
    assert seen == ["n", "n", "né", "né", "né", "né好", "né好!", "né好!"]
    assert out.getvalue() == "né好!\ufffd\n"


# Laws and hostile files


@pytest.mark.slow
@pytest.mark.sample
@pytest.mark.parametrize("which", ["pairs", "novel"])
def test_trained_models_that_write_keep_the_laws(which, pairs, novel):
    folder = pairs[1] if which == "pairs" else novel.folder
    found = check_run(folder, Console(quiet=True))["laws"]
    assert {"P", "B", "C", "T", "M", "D", "R", "G"} <= {law["law"] for law in found}
    assert not [law for law in found if not law["passed"]]


GONE = object()


@pytest.mark.parametrize(
    ("which", "key", "value", "message"),
    [
        ("pairs", "limit", 2**40, "output.limit: Input should be less than or equal to"),
        ("pairs", "limit", "9", "output.limit: Input should be a valid integer"),
        ("pairs", "longest", 0, "output.longest: Input should be greater than or equal to 1"),
        ("pairs", "longest", 2**40, "output.longest: Input should be less than or equal to"),
        ("pairs", "longest", True, "output.longest: Input should be a valid integer"),
        ("pairs", "window", 5, "windows are of a language model, and this model has inputs"),
        ("pairs", "window", -1, "output.window: Input should be greater than or equal to 0"),
        ("pairs", "tie", 1, "output.tie: Input should be a valid boolean"),
        ("pairs", "tie", False, "1 missing, 0 unexpected, such as 'output.head.head.weight'"),
        ("pairs", "name", "other", "the settings of the output are of other columns"),
        ("pairs", "smoothing", 1.0, "output.smoothing: Input should be less than 1"),
        ("pairs", "vocabulary", "bytes", "output.vocabulary: Input should be a valid dictionary"),
        ("pairs", "vocabulary", {"vocabulary": "characters", "file": "vocabulary.0.json"}, "of other files than"),
        ("pairs", "vocabulary", {"vocabulary": "characters", "file": "../../x"}, "should match pattern"),
        ("pairs", "vocabulary", GONE, "of other files than"),
        ("pairs", "more", 1, "unexpected keyword argument 'more'"),
        ("novel", "tie", False, "such as 'output.head.head.weight'"),
        ("novel", "targets", {"y": {"kind": "label", "classes": ["a"]}}, "unexpected keyword argument 'targets'"),
    ],
)
def test_settings_of_sequences_are_checked(which, key, value, message, pairs, novel, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree((pairs[1] if which == "pairs" else novel.folder) / "model", folder)
    content = json.loads((folder / "config.json").read_text())
    content["output"] = {k: v for k, v in {**content["output"], key: value}.items() if v is not GONE}
    (folder / "config.json").write_text(json.dumps(content))
    sealed = disk.read_json(folder / manifest.MANIFEST)
    (folder / manifest.MANIFEST).unlink()
    manifest.seal(folder, {}, sorted(sealed["files"]))
    with pytest.raises(ModelFileError, match=message) as caught:
        load_model(folder)
    assert str(caught.value).isprintable()


def test_empty_targets_are_named_with_their_row():
    rows = [{"x": f"{i}", "y": f"text {i}" if i != 30 else ""} for i in range(60)]
    with pytest.raises(DataError, match='row 31: "y" is empty'):
        fit(rows, run="empty", source="x", target="y:sequence")
