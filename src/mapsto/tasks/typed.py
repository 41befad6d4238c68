"""What was typed, as settings: the data, the options and every ``section.key=value``."""

import json
from pathlib import Path
from typing import Any

from mapsto.errors import ConfigError
from mapsto.tasks import demo as demos
from mapsto.tasks.config import Config, override, read_config
from mapsto.tasks.runfolder import default_name

__all__ = ["configured", "data"]


def data(words: list[str] | None) -> tuple[str, list[str]]:
    """The one word that is data, and the settings."""
    settings = [w for w in words or [] if _is_setting(w)]
    data = [w for w in words or [] if not _is_setting(w)]
    if len(data) > 1:
        raise ConfigError(f"one source of data at a time, got {' and '.join(data)}.   Settings are section.key=value")
    return (data[0] if data else ""), settings


def _is_setting(word: str) -> bool:
    return "=" in word and not Path(word).exists()


def configured(
    words: list[str] | None,
    from_: list[str] | None,
    to: list[str] | None,
    demo: str,
    split: str,
    group: str,
    settings: dict[str, Any],
) -> tuple[Config, str]:
    """The config of what was typed: a demo's or a file's, then options, then settings; and the run's usual name."""
    source, typed = data(words)
    if demo:
        if source:
            raise ConfigError(f"--demo {demo} brings its own data; leave out {source}")
        chosen = demos.demo(demo)
        config = override(Config(), [f"{k}={json.dumps(v)}" for k, v in chosen.settings.items()])
        config.data.source, config.data.inputs, config.data.targets = f"demo:{demo}", chosen.inputs, chosen.targets
    elif source.endswith((".yaml", ".yml")):
        config = read_config(Path(source))
    elif source:
        config = Config()
        config.data.source = source
    else:
        raise ConfigError("which data?   mapsto train FILE --from COLUMN --to COLUMN, or mapsto train --demo peptides")
    config.data.inputs = from_ or config.data.inputs
    config.data.targets = to or config.data.targets
    config.data.split = split or config.data.split
    config.data.group = group or config.data.group
    pairs = [f"{k}={json.dumps(v)}" for k, v in settings.items() if k == "seed" or v not in ("", 0)]
    config = override(config, [*pairs, *typed])
    return config, default_name(config.data.source)
