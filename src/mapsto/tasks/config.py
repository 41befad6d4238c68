"""Every value a run can be told, with its meaning and default: one source for files, the command line and help."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mapsto import kinds
from mapsto.errors import ConfigError, did_you_mean

__all__ = ["SIZES", "Config", "override", "parse_yaml", "read_config", "write_config"]

SIZES = {
    "xs": {"dim": 32, "depth": 2, "heads": 2, "lr": 3e-3},
    "s": {"dim": 64, "depth": 2, "heads": 4, "lr": 2e-3},
    "m": {"dim": 128, "depth": 4, "heads": 4, "lr": 1e-3},
    "l": {"dim": 256, "depth": 6, "heads": 8, "lr": 5e-4},
}


class Section(BaseModel):
    """A group of settings; unknown names are errors."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True, protected_namespaces=())


class DataConfig(Section):
    """Where rows come from and which part is for what."""

    source: str = Field("", description="the file or folder (CSV, TSV, JSONL, Parquet, TXT, NPZ, a folder of pictures)")
    inputs: list[str] = Field([], description="columns to map from, each name or name:kind")
    targets: list[str] = Field([], description="columns to map to, each name or name:kind")
    split: str = Field("", description="a column that says train, val or test; empty: by hash of the content")
    group: str = Field("", description="a column whose equal values stay on one side of every split")
    val: str = Field("", description="a file of its own to validate on")
    test: str = Field("", description="a file of its own to test on")
    shares: list[float] = Field([0.8, 0.1, 0.1], description="shares of train, val, test, where the hash decides")
    folds: int = Field(0, description="cross-validation in so many parts; 0: one split", ge=0)
    fold: int = Field(0, description="which fold is the test part", ge=0)
    times: str = Field("", description="a column with the times of a series' samples (seconds or dates)")
    missing: list[str] = Field([], description='further texts that mean "no value", such as NA')
    root: str = Field("", description="folder that paths in the data are relative to; empty: the data file's own")
    quote: Literal['"', ""] = Field('"', description="what quotes a cell of CSV and TSV; empty: nothing does")
    skip_bad: float = Field(
        0.0, description="share of rows that may be dropped because they cannot be read", ge=0, le=1
    )


class InputConfig(Section):
    """How inputs are read."""

    vocabulary: Literal["auto", "bytes", "characters", "words", "subwords", "symbols"] = Field(
        "auto", description="how text is cut into tokens: auto, bytes, characters, words, subwords, symbols"
    )
    vocabulary_size: int = Field(8000, description="at most so many tokens in the vocabulary", gt=0)
    vocabulary_least: int = Field(1, description="leave out tokens seen less often (words, characters)", gt=0)
    limit: int = Field(512, description="at most so many items of a sequence or series; 0: no limit", ge=0)
    keep: Literal["first", "last", "ends"] = Field(
        "first", description="which part of a longer sequence: first, last, ends"
    )
    window: int = Field(0, description="width of a convolution over neighbouring tokens, odd; 0: none", ge=0)
    ngrams: int = Field(0, description="embed the hashed n-grams of tokens up to this n, too; 0: none", ge=0, le=6)
    patch: int = Field(0, description="pixels a side of a patch, or samples of a series in an item; 0: by size", ge=0)
    stem: Literal["", "patches", "convolution"] = Field(
        "", description="how a picture becomes items: patches, convolution; empty: convolution, if the patch allows"
    )
    side: int = Field(64, description="shrink pictures so that no side has more pixels; 0: never", ge=0)
    shift: int = Field(0, description="in training, move pictures by up to so many pixels", ge=0)
    flip: bool = Field(False, description="in training, mirror half of the pictures left to right")


class ModelConfig(Section):
    """What the model is made of."""

    dim: int = Field(0, description="width of an item; 0: by --size", ge=0)
    depth: int = Field(0, description="encoder blocks; 0: by --size", ge=0)
    heads: int = Field(0, description="heads of each attention; 0: by --size", ge=0)
    attention: str = Field("softmax", description="how heads mix values: softmax")
    position: Literal["auto", "sinusoidal", "learned", "rotary", "none"] = Field(
        "auto", description="how places are told: auto (sinusoidal, none for sets), sinusoidal, learned, rotary, none"
    )
    pool: Literal["mean", "max", "sum", "attention", "class", "sigmoid", "softmax"] = Field(
        "mean", description="one answer from all items: mean, max, sum, attention, class, sigmoid, softmax"
    )
    norm: Literal["pre", "post"] = Field("pre", description="place of the norms: pre, post")
    hidden: int = Field(0, description="width inside the feed-forward; 0: four times dim", ge=0)
    activation: Literal["gelu", "relu", "silu", "tanh"] = Field("gelu", description="gelu, relu, silu, tanh")
    normalise: bool = Field(False, description="normalise queries and keys, with a learned temperature")
    dropout: float = Field(0.1, description="share of numbers dropped in training", ge=0, lt=1)
    masking: float = Field(0.0, description="share of items hidden in training", ge=0, lt=1)
    sigma: Literal["shared", "datum"] = Field(
        "shared", description="spread of predicted numbers: shared by all rows, or one a datum"
    )


class TrainConfig(Section):
    """How the model is trained."""

    steps: int = Field(0, description="optimiser steps; 0: by epochs", ge=0)
    epochs: float = Field(0, description="passes over the training rows; 0: by their number", ge=0)
    lr: float = Field(0, description="peak of the learning rate; 0: by --size", ge=0)
    warmup: float = Field(0.05, description="share of the steps that the learning rate rises", ge=0, le=1)
    batch_tokens: int = Field(0, description="items in a batch, padding included; 0: by the data's size", ge=0)
    batch_rows: int = Field(256, description="at most so many rows in a batch", gt=0)
    accumulate: int = Field(0, description="batches a step, over all processes; 0: one a process", ge=0)
    weight_decay: float = Field(0.05, description="of AdamW, on matrices", ge=0)
    clip: float = Field(1.0, description="largest norm of the gradient; 0: no limit", ge=0)
    average: float = Field(0.99, description="decay of the averaged weights; 0: none", ge=0, lt=1)
    smoothing: float = Field(0.0, description="label smoothing", ge=0, lt=1)
    evaluate_every: int = Field(0, description="steps between evaluations; 0: an epoch, at most 40 in all", ge=0)
    save_every: int = Field(
        0, description="steps between checkpoints; 0: at evaluations and each minute, in at most 5 % of the time", ge=0
    )
    patience: int = Field(0, description="end after so many evaluations without a better one; 0: never", ge=0)
    workers: int = Field(0, description="threads that gather batches ahead; 0: none", ge=0, le=256)
    timeout: float = Field(300.0, description="seconds until a process that does not answer counts as lost", gt=0)
    shard: bool = Field(False, description="let each process hold a share of the model only (fully_shard)")
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="auto (bfloat16 where the device computes in it), float32, bfloat16"
    )


class Config(Section):
    """A whole run."""

    data: DataConfig = Field(default_factory=DataConfig, description="rows")
    input: InputConfig = Field(default_factory=InputConfig, description="how they are read")
    model: ModelConfig = Field(default_factory=ModelConfig, description="what learns")
    train: TrainConfig = Field(default_factory=TrainConfig, description="how")
    size: Literal["auto", "xs", "s", "m", "l"] = Field("auto", description="one dial for dim, depth, heads and lr")
    time: str = Field("", description="train for about so long, such as 90s, 10m, 2h; fixes train.steps")
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, mps")
    threads: int = Field(0, description="threads of the CPU; 0: all", ge=0)
    seed: int = Field(0, description="of everything random", ge=0)
    init: str = Field("", description="a run whose weights to start from")


def parse_value(text: str) -> Any:
    """A value as typed after ``key=``: a JSON scalar or list, else text. Never evaluated.

    Example:
        >>> parse_value("3e-4"), parse_value("true"), parse_value("words"), parse_value("[1, 2]")
        (0.0003, True, 'words', [1, 2])
    """
    try:
        return json.loads(text)
    except ValueError:
        return text


def override(config: Config, settings: Sequence[str]) -> Config:
    """Apply ``section.key=value`` settings, in order.

    Raises:
        ConfigError: no such key, or a value of the wrong kind; says what there is.
    """
    content = config.model_dump()
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ConfigError(f'"{setting}": expected section.key=value, such as train.lr=3e-4')
        _place(content, key, parse_value(value))
    return build(content, "command line")


def _place(content: dict[str, Any], key: str, value: Any) -> None:
    section, _, name = key.partition(".")
    known = keys()
    if key not in known:
        matches = [k for k in known if k.endswith(f".{key}")]
        hint = f"   Did you mean {matches[0]}?" if matches else did_you_mean(key, known)
        raise ConfigError(f'there is no setting "{key}".{hint}   mapsto config lists them all')
    if name:
        content[section][name] = value
    else:
        content[section] = value


def keys() -> dict[str, str]:
    """Every key, with its description.

    Example:
        >>> keys()["train.clip"]
        'largest norm of the gradient; 0: no limit'
    """
    found: dict[str, str] = {}
    for name, field in Config.model_fields.items():
        part = field.annotation
        if isinstance(part, type) and issubclass(part, Section):
            found |= {f"{name}.{n}": f.description or "" for n, f in part.model_fields.items()}
        else:
            found[name] = field.description or ""
    return found


def build(content: dict[str, Any], where: str) -> Config:
    """A checked config from plain values."""
    try:
        config = Config.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(p) for p in first["loc"] if not isinstance(p, int))
        if first["type"] == "extra_forbidden":
            raise ConfigError(f'{where}: there is no setting "{key}".{did_you_mean(key, keys())}') from None
        message = first["msg"].replace("Input should be", "should be")
        hint = ""
        if first["type"] == "literal_error":
            hint = did_you_mean(str(first["input"]), re.findall(r"'([^']*)'", message))
        raise ConfigError(f"{where}: {key}={json.dumps(first['input'], default=str)}: {message}.{hint}") from None
    if len(config.data.shares) != 3 or min(config.data.shares) < 0 or abs(sum(config.data.shares) - 1) > 1e-6:
        raise ConfigError(f"{where}: data.shares={config.data.shares}: three shares that add up to 1")
    kinds.find("attention", config.model.attention.partition(":")[0])
    return config


class _Loader(yaml.SafeLoader):
    """YAML 1.2 scalars; duplicate keys, anchors and tags are refused."""


_Loader.yaml_implicit_resolvers = {}
for tag, pattern, first in (
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("null", r"^(?:~|null|Null|NULL|)$", "~nN\0"),
    ("int", r"^[-+]?[0-9]+$", "-+0123456789"),
    ("float", r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$", "-+.0123456789"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(pattern), list(first))


def _number(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> float:
    return float(str(loader.construct_scalar(node)))


_Loader.add_constructor("tag:yaml.org,2002:float", _number)


def parse_yaml(text: str, where: str) -> Any:
    """Plain YAML 1.2: mappings, lists, scalars.

    Raises:
        ConfigError: with the line, for duplicate keys, anchors, tags and broken syntax.
    """
    try:
        for token in yaml.scan(text, _Loader):
            if isinstance(token, yaml.AnchorToken | yaml.AliasToken | yaml.TagToken):
                what = type(token).__name__.removesuffix("Token").lower()
                raise ConfigError(f"{where}:{token.start_mark.line + 1}: a YAML {what} is not allowed here")
        node = yaml.compose(text, _Loader)
        _refuse_duplicates(node, where)
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{where}:{line}: {error.problem}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{where}: {str(error).splitlines()[0]}") from None


def _refuse_duplicates(node: yaml.Node | None, where: str) -> None:
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            if key.value in seen:
                raise ConfigError(f'{where}:{key.start_mark.line + 1}: "{key.value}" stands twice')
            seen.add(key.value)
            _refuse_duplicates(value, where)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            _refuse_duplicates(value, where)


def read_config(path: Path) -> Config:
    """Read a config file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"there is no file {path}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start} is not UTF-8") from None
    content = parse_yaml(text, path.name)
    if not isinstance(content, dict):
        raise ConfigError(f"{path.name}: expected sections such as data, model, train")
    return build(content, path.name)


def write_config(config: Config) -> str:
    """YAML with every value and what it means; :func:`read_config` gives the same config back."""
    lines = []
    for name, field in Config.model_fields.items():
        value = getattr(config, name)
        if isinstance(value, Section):
            lines.append(f"\n{name}:  # {field.description}")
            for inner, description in type(value).model_fields.items():
                lines.append(_line(f"  {inner}", getattr(value, inner), description.description))
        else:
            lines.append(_line(name, value, field.description))
    return "\n".join(lines).lstrip("\n") + "\n"


def _line(key: str, value: Any, description: str | None) -> str:
    return f"{key}: {json.dumps(value, ensure_ascii=False)}".ljust(44) + f"  # {description}"
