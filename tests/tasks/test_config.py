import os

import pytest

from mapsto.errors import ConfigError
from mapsto.tasks.config import Config, build, keys, override, parse_yaml, read_config, write_config


def test_every_value_of_a_config_survives_its_file(tmp_path):
    config = override(Config(), ["train.lr=3e-4", 'data.inputs=["a:label", "b"]', "time=10m", 'data.missing=["NA"]'])
    path = tmp_path / "config.yaml"
    path.write_text(write_config(config), encoding="utf-8")
    assert read_config(path) == config


def test_every_key_has_a_description():
    assert all(keys().values())
    assert write_config(Config()).count("  # ") == len(keys()) + 5  # and the sections


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("train.ler=1", r'no setting "train.ler".*Did you mean "train.lr"'),
        ("lr=1", r"Did you mean train.lr\?"),
        ("train.lr", "expected section.key=value"),
        ("train.lr=fast", "train.lr"),
        ("model.dropout=1.5", "model.dropout=1.5"),
        ("model.pool=avg", "should be 'mean'"),
        ("model.pool=meen", 'Did you mean "mean"'),
        ("model.attention=softmx", r'"softmx" is not one of .*softmax.*Did you mean "softmax"'),
        ("data.shares=[1, 1, 1]", "add up to 1"),
    ],
)
def test_a_wrong_setting_is_told_what_is_right(setting, message):
    with pytest.raises(ConfigError, match=message):
        override(Config(), [setting])


def test_yaml_reads_numbers_and_words_as_version_1_2():
    found = parse_yaml("a: 3e-4\nb: no\nc: 0o17\nd: 1_000\ne: 12:30\nf: .5\ng: ~\nh: true\ni: 007", "x.yaml")
    assert found == {
        "a": 3e-4,
        "b": "no",
        "c": "0o17",
        "d": "1_000",
        "e": "12:30",
        "f": 0.5,
        "g": None,
        "h": True,
        "i": 7,
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3", 'x.yaml:3: "a" stands twice'),
        ("a: &x 1\nb: *x", "x.yaml:1: a YAML anchor is not allowed"),
        ("a: 1\nb: !!python/object/apply:os.system [ls]", "x.yaml:2: a YAML tag is not allowed"),
        ("a: [1, 2", "x.yaml:1"),
        ("a: 1\n\tb: 2", "x.yaml:2"),
    ],
)
def test_yaml_that_could_surprise_is_refused_with_its_line(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_yaml(text, "x.yaml")


def test_an_unknown_section_in_a_file_is_named():
    with pytest.raises(ConfigError, match=r'no setting "trian"'):
        build({"trian": {}}, "x.yaml")


def refused(tmp_path, content, message):
    path = tmp_path / "x.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match=message) as caught:
        read_config(path)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("!!python/object/apply:os.system ['exit 3']", "x.yaml:1: a YAML tag is not allowed"),
        ("seed: !!python/name:os.system", "x.yaml:1: a YAML tag is not allowed"),
        ("seed: !!int 3", "a YAML tag is not allowed"),
        ("seed: ! 3", "a YAML tag is not allowed"),
        ("%TAG ! tag:x,2000:\n---\nseed: !a 1", "x.yaml:3: a YAML tag is not allowed"),
        ("a: &a [x]\nb: &b [*a, *a]", "x.yaml:1: a YAML anchor is not allowed"),
        ("a: *a", "x.yaml:1: a YAML alias is not allowed"),
        ("<<: {seed: 1}", 'there is no setting "<<"'),
        ("seed: 1\nseed: 1", 'x.yaml:2: "seed" stands twice'),
        ("model: {dim: 8, 'dim': 9}", 'x.yaml:1: "dim" stands twice'),
        ("? [a]\n: 1", "x.yaml:1: a key is a list or section, expected a name"),
        ("? {a: 1}\n: 1", "a key is a list or section"),
        ("1: 2", 'there is no setting "1"'),
        ("~: 2", 'there is no setting "None"'),
        ('"a\\e[31m\\u202e\\n": 1', r'no setting "a\\x1b\[31m\\u202e\\n"'),
        ("{" * 100_000, "x.yaml:1: lists or sections nested deeper than 16"),
        ("a: " + "[" * 100_000, "nested deeper than 16"),
        ("- " * 100_000, "nested deeper than 16"),
        ("? " * 100_000, "nested deeper than 16"),
        ("data: {inputs: [" + "a, " * 30_000 + "]}", "x.yaml:1: more than 20,000 values"),
        ("\n".join(f"k{i}: 1" for i in range(12_000)), "more than 20,000 values"),
        ("seed: 1\n---\nseed: 2", "x.yaml:2: but found another document"),
        ("seed: " + "9" * 5000, "a whole number of more than 4300 digits"),
        ("seed: \0", "unacceptable character #x0000"),
        ("a: \x1b[31m", "unacceptable character #x001b"),
        (b"\xff\xfes\x00", "byte 0 is not UTF-8"),
        ("seed: \ud800".encode("utf-8", "surrogatepass"), "byte 6 is not UTF-8"),
        ('init: "\\ud800"', "surrogates not allowed"),
        ("", "expected sections such as data, model, train"),
        ("- a", "expected sections"),
        (b" " * 400_001, "has 400,001 bytes, expected at most 400,000"),
    ],
)
def test_a_config_file_that_could_surprise_is_refused(tmp_path, text, message):
    refused(tmp_path, text, message)


@pytest.mark.parametrize("size", ["model.dim", "model.depth", "model.heads", "input.vocabulary_size", "input.limit"])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("1000000000", "should be less than or equal to"),
        ("1000000000000", "should be less than or equal to"),
        ("9" * 400, "should be less than or equal to"),
        ("-1", "should be greater than"),
        ("1.5", "should be a valid integer"),
        ("1e999", "should be a valid integer|should be a finite number"),
        ("true", "should be a valid integer"),
        ('"8"', "should be a valid integer"),
        ("~", "should be a valid integer"),
        ("[8]", "should be a valid integer"),
        ("{}", "should be a valid integer"),
    ],
)
def test_a_size_is_a_whole_number_within_bounds(tmp_path, size, value, message):
    section, _, key = size.partition(".")
    refused(tmp_path, f"{section}:\n  {key}: {value}", f"{size}=.*({message})")


@pytest.mark.parametrize("value", ["1e400", ".nan", ".inf", "true", '"1"', "[1]"])
def test_a_rate_is_a_finite_number(tmp_path, value):
    refused(tmp_path, f"train: {{lr: {value}}}", "train.lr=.*should be a (valid|finite) number")


@pytest.mark.parametrize("value", ["1", "yes", "on", '"true"', "1.0"])
def test_only_true_and_false_are_yes_and_no(tmp_path, value):
    refused(tmp_path, f"model: {{normalise: {value}}}", "should be a valid boolean")


@pytest.mark.parametrize(
    "kind", ["os", "mapsto.cli", "../softmax", "__init__", "softmax.py", "", "/etc/passwd", "\\e[31msoftmax"]
)
def test_a_kind_is_looked_up_among_the_built_in_files_only(tmp_path, kind):
    refused(tmp_path, f'model: {{attention: "{kind}"}}', "is not one of")


def test_numbers_are_of_base_ten_and_whole_floats_are_whole_numbers(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("seed: 010\nmodel: {dim: 64.0, depth: +2}\ntrain: {steps: 1e3, epochs: 3}")
    config = read_config(path)
    assert (config.seed, config.model.dim, config.model.depth, config.train.steps) == (10, 64, 2, 1000)
    assert config.train.epochs == 3.0
    assert override(Config(), ["train.steps=2e4"]).train.steps == 20_000
    for wrong in ("train.lr=NaN", "train.lr=Infinity", "train.lr=1e999", "model.dim=true", "model.dim=[8]"):
        with pytest.raises(ConfigError, match="should be a"):
            override(Config(), [wrong])


def test_only_plain_files_are_configs_and_links_stay_in_their_folder(tmp_path):
    inside, outside = tmp_path / "inside", tmp_path / "outside.yaml"
    inside.mkdir()
    for path in (outside, inside / "real.yaml"):
        path.write_text("seed: 7")
    (inside / "in.yaml").symlink_to("real.yaml")
    assert read_config(inside / "in.yaml").seed == 7
    (inside / "out.yaml").symlink_to(outside)
    with pytest.raises(ConfigError, match=r"out\.yaml is a link out of its folder\.   Give .*outside\.yaml itself"):
        read_config(inside / "out.yaml")
    (inside / "loop.yaml").symlink_to("loop.yaml")
    (inside / "device.yaml").symlink_to("/dev/zero")
    os.mkfifo(inside / "pipe.yaml")
    (inside / "folder.yaml").mkdir()
    for name in ("loop", "device", "pipe", "folder"):
        with pytest.raises(ConfigError, match="link"):
            read_config(inside / f"{name}.yaml")
    for name in ("nothing.yaml", "a\0b.yaml"):
        with pytest.raises(ConfigError, match=r"there is no file|cannot be read|null"):
            read_config(inside / name)


def test_what_cannot_be_read_again_is_not_written():
    config = Config()
    config.data.inputs = [f"column {i}" for i in range(20_000)]
    with pytest.raises(ConfigError, match=r"name 20,000 columns.*data\.inputs=\[\]"):
        write_config(config)
    config.data.inputs = config.data.inputs[:15_000]
    assert parse_yaml(write_config(config), "x.yaml")["data"]["inputs"] == config.data.inputs
