"""Every value a run can be told, with its meaning and default: one source for files, the command line and help."""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from mapsto import document, kinds
from mapsto.errors import ConfigError, ModelFileError, did_you_mean
from mapsto.tasks.notation import MOST, parse_yaml, refusal
from mapsto.tasks.section import DataConfig, InputConfig, ModelConfig, OutputConfig, Section, TrainConfig

__all__ = ["SIZES", "Config", "override", "parse_yaml", "read_config", "write_config"]

SIZES = {
    "xs": {"dim": 32, "depth": 2, "heads": 2, "lr": 3e-3},
    "s": {"dim": 64, "depth": 2, "heads": 4, "lr": 2e-3},
    "m": {"dim": 128, "depth": 4, "heads": 4, "lr": 1e-3},
    "l": {"dim": 256, "depth": 6, "heads": 8, "lr": 5e-4},
}


LIMIT = 400_000  # bytes of a config file


class Config(Section):
    """A whole run."""

    data: DataConfig = Field(default_factory=DataConfig, description="rows")
    input: InputConfig = Field(default_factory=InputConfig, description="how they are read")
    output: OutputConfig = Field(
        default_factory=OutputConfig, description="how sequences are written, and series forecast"
    )
    model: ModelConfig = Field(default_factory=ModelConfig, description="what learns")
    train: TrainConfig = Field(default_factory=TrainConfig, description="how")
    size: Literal["auto", "xs", "s", "m", "l"] = Field("auto", description="one dial for dim, depth, heads and lr")
    time: str = Field("", description="train for about so long, such as 90s, 10m, 2h; fixes train.steps")
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, mps")
    threads: int = Field(0, description="threads of the CPU; 0: all", ge=0, le=1024)
    seed: int = Field(0, description="of everything random", ge=0, lt=1 << 63)
    init: str = Field("", description="a run whose weights to start from")


def parse_value(text: str) -> Any:
    """A value as typed after ``key=``: a JSON scalar or list, else text. Never evaluated.

    Example:
        >>> parse_value("3e-4"), parse_value("true"), parse_value("words"), parse_value("[1, 2]")
        (0.0003, True, 'words', [1, 2])
    """
    try:
        return document.parse(text)
    except (ValueError, RecursionError):
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


def build(content: dict[Any, Any], where: str) -> Config:
    """A checked config from plain values."""
    try:
        config = Config.model_validate(content)
    except ValidationError as error:
        raise refusal(f"{where}: {_first(error)}") from None
    if len(config.data.shares) != 3 or min(config.data.shares) < 0 or abs(sum(config.data.shares) - 1) > 1e-6:
        raise refusal(f"{where}: data.shares={config.data.shares}: three shares that add up to 1")
    try:
        if config.model.attention != "auto":
            kinds.find("attention", config.model.attention.partition(":")[0])
        kinds.find("attention", config.model.cross.partition(":")[0])
    except ConfigError as error:
        raise refusal(str(error)) from None
    return config


def _first(error: ValidationError) -> str:
    """The first thing that is wrong, and what may be meant."""
    first = error.errors(include_url=False, include_context=False)[0]
    key = ".".join(str(p)[:80] for p in first["loc"] if not isinstance(p, int) or len(first["loc"]) < 3)
    if first["type"] in ("extra_forbidden", "invalid_key"):
        return f'there is no setting "{key}".{did_you_mean(key, keys())}'
    message = first["msg"].replace("Input should be", "should be").removesuffix("[key]")
    hint = ""
    if first["type"] == "literal_error":
        hint = did_you_mean(str(first["input"])[:80], re.findall(r"'([^']*)'", message))
    return f"{key}={json.dumps(first['input'], default=str)[:80]}: {message}.{hint}"


def read_config(path: Path) -> Config:
    """Read a config file; a link is followed inside its folder only.

    Raises:
        ConfigError: no such file, or one that cannot be read as a config.
    """
    from mapsto import disk  # imports torch, which `mapsto config` does without

    try:
        real = Path(os.path.realpath(path))
        if not real.is_relative_to(os.path.realpath(path.parent)):
            raise ConfigError(f"{path} is a link out of its folder.   Give {real} itself")
        text = disk.read(real, LIMIT).decode()
    except FileNotFoundError:
        raise ConfigError(f"there is no file {path}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start} is not UTF-8") from None
    except (ModelFileError, ValueError) as error:  # a ValueError: a NUL in the name
        raise refusal(str(error)) from None
    content = parse_yaml(text, path.name)
    if not isinstance(content, dict):
        raise refusal(f"{path.name}: expected sections such as data, model, train")
    return build(content, path.name)


def write_config(config: Config) -> str:
    """YAML with every value and what it means; :func:`read_config` gives the same config back.

    Raises:
        ConfigError: it would be longer than is read.
    """
    lines = []
    for name, field in Config.model_fields.items():
        value = getattr(config, name)
        if isinstance(value, Section):
            lines.append(f"\n{name}:  # {field.description}")
            for inner, description in type(value).model_fields.items():
                lines.append(_line(f"  {inner}", getattr(value, inner), description.description))
        else:
            lines.append(_line(name, value, field.description))
    text = "\n".join(lines).lstrip("\n") + "\n"
    columns = len(config.data.inputs) + len(config.data.targets) + len(config.data.missing)
    if len(text.encode()) > LIMIT or columns > MOST - len(lines):
        raise ConfigError(
            f"the settings name {columns:,} columns in {len(text):,} characters, expected at most {MOST:,} in {LIMIT:,}.   "
            "Name fewer: data.inputs=[] takes all columns but the target"
        )
    return text


def _line(key: str, value: Any, description: str | None) -> str:
    return f"{key}: {json.dumps(value, ensure_ascii=False)}".ljust(44) + f"  # {description}"
