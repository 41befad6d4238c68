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
    assert write_config(Config()).count("  # ") == len(keys()) + 4


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
