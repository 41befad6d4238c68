"""Law O: nothing in a file runs, reaches outside or takes memory; a sample of ``benchmarks/hostile.py``, and its twins."""

import contextlib
import importlib
import json
import os
import pickle
import random
import re
import shutil
from functools import partial

import pytest
import torch
import yaml

import hostile
import markup
from attacks import owner, places, put, seal
from mapsto import disk, kinds, manifest
from mapsto.errors import ModelFileError, ResourceError
from mapsto.tasks import build, card, config, page, report
from mapsto.tasks.build import load_model
from mapsto.tasks.run import load
from mapsto.vocabulary import Subwords, learn


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("hostile")


@pytest.fixture(scope="module")
def known(root):
    return hostile.bases(root, ["words", "subwords", "table", "tags"])


@pytest.fixture
def copy(known, tmp_path):
    """A copy of a run that may be changed."""

    def made(name="words"):
        return shutil.copytree(known[name].folder, tmp_path / name)

    return made


def test_a_sample_of_attacks_is_refused_or_changes_nothing(root, known, monkeypatch):
    monkeypatch.setattr(hostile, "SECONDS", 60)  # other work on the machine must not fail it
    tallies = hostile.run(120, 11, known, root)
    assert sum(t.tried for t in tallies.values()) == 120
    assert not [line for t in tallies.values() for line in t.broken]
    assert sum(t.outcomes["refused"] for t in tallies.values()) > 80


# Twins, in the process of the attacks only


def yaml_of_objects():
    """A loader that makes any object."""
    config.parse_yaml = lambda text, where: yaml.load(text, yaml.UnsafeLoader) if len(text) < 9000 else {}


def pickles():
    """Weights that may be pickles."""
    inner = disk.read_header

    def read_header(path):
        with contextlib.suppress(pickle.UnpicklingError, EOFError, KeyError, IndexError):
            pickle.loads(path.read_bytes())
        return inner(path)

    disk.read_header = read_header


def kinds_are_modules():
    """A kind's name is a module's."""

    class Everything(list):
        def __contains__(self, name):
            return True

    names = kinds.names

    def find(folder, kind):
        module = importlib.import_module(f"mapsto.{folder}.{kind}" if kind in names(folder) else kind)
        return getattr(module, kinds.class_name(folder, kind))

    kinds.names, kinds.find = lambda folder: Everything(names(folder)), find


def links_followed():
    """Whatever a name leads to is read."""

    @contextlib.contextmanager
    def opened(path):
        if not os.path.isfile(path):
            raise ModelFileError("no file")
        with open(path, "rb") as file:
            yield file

    disk.opened = opened


def memory_taken_first():
    """What the settings ask for is made, and then compared with what is there."""
    build._fits = build._affordable = lambda *arguments: None


def escapes_forgotten_in_pages():
    """Text from data goes into the page as it is."""
    report.escape = page.escape = str


def escapes_forgotten_in_cards():
    """Text from data goes into the card as it is."""
    card._safe = card._code = str


@pytest.mark.parametrize(
    ("twin", "kind", "count", "sign"),
    [
        (yaml_of_objects, "snippets of YAML", 30, "EVENT os.system"),
        (pickles, "another file", 20, "EVENT pickle.find_class"),
        (kinds_are_modules, "kinds", 80, "EVENT (marshal.loads|compile|import)"),
        (links_followed, "links", 40, "EVENT open"),
        (memory_taken_first, "numbers", 160, "MB more"),
        (escapes_forgotten_in_pages, "markup", 15, "AssertionError"),
        (escapes_forgotten_in_cards, "markup", 15, "AssertionError"),
    ],
)
def test_the_attacks_get_through_a_twin(root, known, twin, kind, count, sign):
    tallies = hostile.run(count, 7, known, root, kinds=[kind], twin=twin)
    broken = "\n".join(line for t in tallies.values() for line in t.broken)
    assert re.search(sign, broken), broken[:2000]


def test_every_predicted_text_of_the_bases_is_as_it_was(known):
    for base in known.values():
        assert hostile.answer(load(base.folder), base.row) == base.answer


# Each class by name, with its message


def change(folder, name, value):
    """Set one value of config.json, by its dotted path, and seal the folder."""
    path = folder / "model/config.json"
    content = json.loads(path.read_text())
    keys = tuple(int(k) if k.isdigit() else k for k in name.split("."))
    assert keys[:-1] == () or keys[:-1] in set(places(content))
    if value is GONE:
        del owner(content, keys)[keys[-1]]
    else:
        owner(content, keys)[keys[-1]] = value
    put(path, json.dumps(content).encode())
    seal(folder / "model")


GONE = object()


def refused(folder, message, error=ModelFileError):
    with pytest.raises(error, match=message) as caught:
        load_model(folder / "model")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("format", 2, "format 2, this version reads 1"),
        ("format", True, "format: Input should be a valid integer"),
        ("inputs.0.channels", True, "inputs.0.channels: Input should be a valid integer"),
        ("format", "\x1b[31m" * 100, r"format '\\x1b\[31m"),
        ("model.dim", 10**9, "model.dim: Input should be less than or equal to 65536"),
        ("model.depth", 10**9, "model.depth: Input should be less than or equal to"),
        ("model.heads", 10**9, "model.heads: Input should be less than or equal to"),
        ("model.dim", -8, "model.dim: Input should be greater than or equal to 0"),
        ("model.dim", True, "model.dim: Input should be a valid integer"),
        ("model.dim", 8.5, "model.dim: Input should be a valid integer"),
        ("model.dim", "8", "model.dim: Input should be a valid integer"),
        ("model.dim", 0, "model.dim and model.heads are not settled"),
        ("model.dim", 16, r"embedding.weight is \(\d+, 8\) of torch.float32, expected \(\d+, 16\)"),
        ("model.dim", 4096, r"embedding.weight is \(\d+, 8\) of torch.float32, expected \(\d+, 4096\)"),
        ("model.heads", 3, "model.dim=8 is no multiple of model.heads=3"),
        ("model.depth", 2, "does not fit: 13 missing, 0 unexpected"),
        ("model.depth", 999, "tensors for a depth of 999"),
        ("model.depth", 0, "does not fit: 0 missing, 13 unexpected"),
        ("model.more", 1, "model.more: Extra inputs are not permitted"),
        ("model.attention", "os", "attention: .*os.* is not one of favor"),
        ("model.attention", "__init__", "attention: .*__init__.* is not one of favor"),
        ("model.attention", "softmax:x", "expected values of beta="),
        ("model.attention", "softmax:nan", "expected a finite number"),
        ("model.pool", "mapsto.cli", "model.pool: Input should be 'mean'"),
        ("model.position", "../x", "model.position: Input should be 'auto'"),
        ("inputs.0.limit", 10**12, "inputs.0.limit: Input should be less than or equal to"),
        ("inputs.0.limit", 2**24, r"position.table is \(12, 8\) of torch.float32, expected \(16777216, 8\)"),
        ("inputs.0.limit", None, "inputs.0.limit: Input should be a valid integer"),
        ("inputs.0.ngrams", 10**9, "inputs.0.ngrams: Input should be less than or equal to 6"),
        ("inputs.0.stem", 4, "the width of a convolution over tokens is odd"),
        ("inputs.0.keep", "os", 'input.keep: "os" is not one of'),
        ("inputs.0.extra", 1, "unexpected keyword argument 'extra'"),
        ("inputs.0.vocabulary", "words", "inputs.0.vocabulary: Input should be a valid dictionary"),
        ("inputs.0.vocabulary.vocabulary", "os", "vocabulary: kind 'os' is not one of bytes, characters"),
        ("inputs.0.vocabulary.vocabulary", "characters", "the file holds no characters vocabulary"),
        ("inputs.0.vocabulary.vocabulary", "subwords", "this is no sentencepiece model"),
        ("inputs.0.vocabulary.vocabulary", "bytes", "the file holds no bytes vocabulary"),
        ("inputs.0.vocabulary.file", "../../config.yaml", "inputs.0.vocabulary.file: String should match pattern"),
        ("inputs.0.vocabulary.file", "/etc/passwd", "inputs.0.vocabulary.file: String should match pattern"),
        ("inputs.0.vocabulary.file", "vocabulary.0.json\0", "inputs.0.vocabulary.file: String should match pattern"),
        ("inputs.0.vocabulary.file", "vocabulary.0.json\n", "inputs.0.vocabulary.file: String should match pattern"),
        ("inputs.0.vocabulary.file", "vocabulary.1.json", "manifest.json is of other files than config.json"),
        ("inputs.0", GONE, "0 inputs for 1 of the schema"),
        ("inputs.0", [], "inputs.0: Input should be"),
        ("inputs", {}, "inputs: Input should be a valid list"),
        ("output", [], "output: Input should be"),
        ("output.targets.y.kind", "os", "output.targets.y: Input tag 'os' found"),
        ("output.targets.y.classes", [], "output.targets.y.label.classes: List should have at least 1 item"),
        ("output.targets.y.classes", ["a", "a"], "a class is named twice"),
        ("output.targets.y.classes", ["a", 1], "output.targets.y.label.classes.1: Input should be a valid string"),
        ("output.targets.y.classes", ["a", "b", "c"], r"head.weight is \(2, 8\) of torch.float32, expected \(3, 8\)"),
        ("output.targets.z", {"kind": "label", "classes": ["a", "b"]}, "settings of the output are of other columns"),
        ("output.targets", {}, "output.targets: Dictionary should have at least 1 item"),
        ("output.smoothing", 2, "output.smoothing: Input should be less than 1"),
        ("output.smoothing", GONE, "is of no model|^$"),
        ("schema.inputs.0.kind", "os", "inputs: 'os' is not one of image, latent, sequence, series, vector"),
        ("schema.inputs.0.kind", "__init__", "inputs: '__init__' is not one of"),
        ("schema.inputs.0.kind", "series", "the settings of input 'x' are of other columns"),
        (
            "schema.output.kind",
            "turtle",
            "outputs: 'turtle' is not one of image, items, parallel, sequence, series, vector",
        ),
        ("schema.output.kind", "items", "settings|unexpected|is of no model"),
        ("schema.inputs.0.columns", [["x"]], "schema.inputs.0.columns.0: List should have at least 2 items"),
        ("schema.inputs.0.columns", [], "schema.inputs.0.columns: List should have at least 1 item"),
        ("schema.inputs", [], "1 inputs for 0 of the schema"),
        ("schema", None, "schema: Input should be"),
    ],
)
def test_settings_are_checked_before_anything_is_made_of_them(copy, name, value, message):
    folder = copy()
    change(folder, name, value)
    if name == "output.smoothing" and value is GONE:  # it has a default
        assert load_model(folder / "model")
        return
    refused(folder, message)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("inputs.0.columns.0.scale", [0.0], "scale.0: Input should be greater than 0"),
        ("inputs.0.columns.0.scale", [1.0, 1.0], "1 means and 2 scales"),
        ("inputs.0.columns.0.mean", [10**400], "whole number|finite|valid number"),
        ("inputs.0.columns.0.kind", "os", "Input tag 'os' found"),
        ("inputs.0.columns.0.name", "b", "settings of input 'table' are of other columns"),
        ("inputs.0.columns", [], "List should have at least 1 item"),
        ("schema.inputs.0.columns.0", ["a", "label"], "settings of input 'table' are of other columns"),
        ("output.targets.z.scale", [-1.0], "scale.0: Input should be greater than 0"),
        ("output.targets.z.sigma", "os", "sigma: Input should be 'dims', 'shared' or 'datum'"),
    ],
)
def test_settings_of_tables_are_checked(copy, name, value, message):
    folder = copy("table")
    change(folder, name, value)
    refused(folder, message)


def test_a_model_that_is_too_large_for_the_memory_says_how_much_it_needs(copy, known, monkeypatch):
    monkeypatch.setattr(build, "free_memory", lambda: 10_000)
    refused(copy(), r"words/model needs 0\.0 GB of memory, 0\.0 GB are free", ResourceError)
    monkeypatch.undo()
    run = known["words"].run
    asked = run.config.model.model_copy(update={"dim": 65536, "depth": 100, "heads": 1})
    measured = build.Measured([p.settings() for p in run.model.sources.values()], run.model.output.settings())
    with pytest.raises(
        ResourceError, match=r"dim 65536, depth 100 needs 20,\d+\.\d GB of memory, .* free\.   Lower --size"
    ):
        build.build(run.schema, measured, asked, seed=0)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite_are_refused(copy, value):
    folder = copy()
    path = folder / "model/model.safetensors"
    tensors = disk.read_tensors(path)
    tensors["output.heads.0.head.bias"][1] = value
    disk.write_tensors(path, tensors)
    seal(folder / "model")
    refused(folder, "output.heads.0.head.bias holds numbers that are not finite")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("output.query"), "1 missing, 0 unexpected, such as 'output.query'"),
        (lambda t: t.update({"\x1b[31m": torch.ones(1)}), r"0 missing, 1 unexpected, such as '\\x1b\[31m'"),
        (
            lambda t: t.update({"output.query": torch.ones(9)}),
            r"output.query is \(9,\) of torch.float32, expected \(8,\)",
        ),
        (lambda t: t.update({"output.query": torch.ones(8).half()}), "of torch.float16, expected .* of torch.float32"),
        (lambda t: t.update({"output.query": torch.ones(8).int()}), "of torch.int32, expected .* of torch.float32"),
    ],
)
def test_weights_that_are_of_another_model_are_refused(copy, change, message):
    folder = copy()
    path = folder / "model/model.safetensors"
    tensors = disk.read_tensors(path)
    change(tensors)
    disk.write_tensors(path, tensors)
    seal(folder / "model")
    refused(folder, message)


def test_a_manifest_seals_all_files_of_a_model_and_no_others(copy):
    folder = copy()
    model = folder / "model"
    seal(model, ["config.json", "vocabulary.0.json"])
    refused(folder, "manifest.json is of other files than config.json, model.safetensors, vocabulary.0.json")
    (model / "more.bin").write_bytes(b"")
    seal(model)
    refused(folder, "manifest.json is of other files than")
    (model / "README.md").write_text("anything")
    seal(model, ["config.json", "model.safetensors", "vocabulary.0.json"])
    load_model(model)


def test_a_model_folder_that_is_a_link_is_not_read(copy, tmp_path):
    folder = copy()
    (folder / "model").rename(tmp_path / "elsewhere")
    (folder / "model").symlink_to(tmp_path / "elsewhere")
    refused(folder, "model is a link, and is not read")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("words", b'{"kind": "words", "symbols": ["a", "a"]}', "a symbol occurs twice"),
        ("words", b'{"kind": "words", "symbols": ["a", 1]}', "the file holds no words vocabulary"),
        ("words", b'{"kind": "words", "symbols": "ab"}', "the file holds no words vocabulary"),
        (
            "words",
            b'{"kind": "words", "symbols": []}',
            r"embedding.weight is \(\d+, 8\) of torch.float32, expected \(3, 8\)",
        ),
        ("words", b'{"kind":"words","symbols":[]}', "the file holds no words vocabulary"),
        ("words", b'{"kind": "os", "kind": "words", "symbols": []}', "the file holds no words vocabulary"),
        ("words", b"[" * 100_000, "the file holds no words vocabulary"),
        ("words", b"\xff\xfe", "the file holds no words vocabulary"),
        ("words", b"," * 3_000_000, "the file holds no words vocabulary"),
        ("subwords", b"", "this is no sentencepiece model"),
        ("subwords", b"\xff" * 100, "this is no sentencepiece model"),
    ],
)
def test_a_vocabulary_that_is_none_or_of_another_size_is_refused(copy, name, content, message):
    folder = copy(name)
    put(next((folder / "model").glob("vocabulary.*")), content)
    seal(folder / "model")
    refused(folder, message)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (b"\x1a\x06\x12\x04\xff\xff\xff\x7f", "codec|table of replacements"),
        (b"\x1a\x06\x12\x04abcd", "a table of replacements"),
        (b"\x2a\x06\x12\x04abcd", "a table of replacements"),
        (b"\x0a\x08\x0a\x01q\x15\x00\x00\xc0\x7f", "a score is not finite"),
        (b"\x0a\x07\x0a\x00\x15\x00\x00\x80\xbf", "a piece is no text with a score and a type"),
        (b"\x0a\x08\x0a\x01\xff\x15\x00\x00\x80\xbf", "codec can't decode"),
        (b"\x0a\xff\xff\xff\xff\x7f", "cut off"),
        (b"\x9a\x06\x03abc", "field 99"),
        (b"\xff" * 12, "more than 64 bits"),
    ],
)
def test_a_sentencepiece_model_asks_nothing_more_of_its_parser_than_ours_do(more, message):
    model = learn("subwords", ["the cat sat on the mat, the dog sat"] * 60, size=300).dump()
    Subwords(model)
    with pytest.raises(ModelFileError, match=message) as caught:
        Subwords(model + more)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", ["environment.json", "result.json", "config.yaml"])
@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b"[" * 10_000, b'{"metrics": {"accuracy": []}}', None])
def test_a_report_says_which_of_the_run_s_files_cannot_be_read(copy, known, name, content):
    folder = copy()
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    base = known["words"].run
    report.write(
        hostile.Run(folder, base.model, base.schema, base.config), folder / "report.html", drawn=hostile.Gallery()
    )
    text = (folder / "report.html").read_text()
    assert not markup.acts_in_page(text)
    assert (
        name == "config.yaml"
        or f"{name} cannot be read" in text
        or f"{name} is of another" in text
        or content == b'{"metrics": {"accuracy": []}}'
    )


def test_a_report_is_written_into_its_folder_and_not_where_a_link_leads(copy, known, tmp_path):
    folder, base = copy(), known["words"].run
    (tmp_path / "other").write_text("mine")
    (folder / "report.html").symlink_to(tmp_path / "other")
    report.write(
        hostile.Run(folder, base.model, base.schema, base.config), folder / "report.html", drawn=hostile.Gallery()
    )
    assert (tmp_path / "other").read_text() == "mine"
    assert "<h1>" in (folder / "report.html").read_text()


@pytest.mark.parametrize("text", markup.TEXTS)
def test_text_from_data_is_only_text_in_cards_and_pages(copy, known, text):
    class Always(random.Random):
        def choice(self, options):
            return text if options is markup.TEXTS else super().choice(options)

    folder = copy("table")
    markup.markup(folder, known["table"], Always(1))
    assert hostile.ask_shown(folder, known["table"]) == "shown"


def test_a_run_s_name_is_only_text_in_its_card(known):
    base = known["words"].run
    for name in ("$(id)", "a b", "```\n# x", '"]); import os', "\x1b[31m", "'; id; '"):
        run = hostile.Run(base.folder.with_name(name), base.model, base.schema, base.config)
        text = card.model_card(run, base.result)
        assert not markup.acts_on_terminal(text)
        assert len(markup.outline(text)) == len(markup.outline(known["words"].card))
        shell = next(line for line in text.split("\n") if line.startswith("mapsto predict "))
        assert shell.startswith("mapsto predict '")
        code = next(line for line in text.split("\n") if line.startswith("mapsto.load"))
        compile(code, "card", "exec")
        assert code.count("mapsto") == 1


def test_the_checks_of_pages_and_cards_see_what_acts():
    for text in ("<script>", "<p onclick=x>", "<img src=x>", "<svg/>", "a\x1b[0m", "\u202e"):
        assert markup.acts_in_page(text)
    assert not markup.acts_in_page('<p class="note">&lt;script&gt;</p>')
    for text in ("a <b>", "[a](b)", "\n# head", "`x`", "```\n```", "\x07"):
        assert markup.acts_in_card(text, "")
    assert not markup.acts_in_card(r"\<b\> \[a\]", "")


def test_the_listener_hears_what_never_may_happen(tmp_path):
    heard = partial(hostile.Listener().place)
    inside = hostile.Listener()
    inside.inside = str(tmp_path)
    assert not inside.place("open", tmp_path / "a")
    (tmp_path / "out").symlink_to("/etc")
    assert inside.place("open", tmp_path / "out" / "passwd") == "open /etc/passwd"
    assert inside.place("open", "/etc/passwd")
    assert inside.place("os.scandir", tmp_path.parent) == ""
    assert inside.place("os.scandir", "/")
    assert heard("open", 3) == ""
    for event in ("exec", "os.system", "pickle.find_class", "import"):
        with pytest.raises(PermissionError):
            inside.hear(event, ("x",))
    assert len(inside.heard) == 4


def test_nothing_is_checked_twice_for_a_model_that_is_whole(known):
    for base in known.values():
        model, schema, settings = load_model(base.folder / "model")
        assert settings.dim == 8
        assert schema == base.run.schema
        known_weights = disk.read_tensors(base.folder / "model/model.safetensors")
        assert all(torch.equal(p, known_weights[n]) for n, p in model.named_parameters())
        manifest.verify(base.folder / "model")
