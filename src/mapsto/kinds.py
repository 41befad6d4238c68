"""An open folder is its own registry: ``attention/favor.py`` holds ``FavorAttention``, and that is kind "favor".

Names are listed without importing anything, and only files of the folder itself can be named: no name found in a
user's file is ever imported from elsewhere.
"""

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

from mapsto.errors import ConfigError, did_you_mean

__all__ = ["find", "lazy", "make", "names"]

SUFFIX = {"attention": "Attention", "likelihoods": "Likelihood", "inputs": "Input", "outputs": "Output"}


def names(folder: str) -> list[str]:
    """The kinds of an open folder, such as ``names("attention")``, without importing them."""
    package = importlib.import_module(f"mapsto.{folder}")
    return sorted(m.name for m in pkgutil.iter_modules(package.__path__) if not m.name.startswith("_"))


def find(folder: str, kind: str) -> type[Any]:
    """The class that ``kind`` means in an open folder.

    Raises:
        ConfigError: no such kind; lists those there are.
    """
    known = names(folder)
    if kind not in known:
        raise ConfigError(f'{folder}: "{kind}" is not one of {", ".join(known)}.{did_you_mean(kind, known)}')
    module = importlib.import_module(f"mapsto.{folder}.{kind}")
    return getattr(module, class_name(folder, kind))


def class_name(folder: str, kind: str) -> str:
    """``favor`` in ``attention`` is ``FavorAttention``."""
    return "".join(part.title() for part in kind.split("_")) + SUFFIX[folder]


def make(folder: str, text: str) -> Any:
    """Make a kind from ``kind`` or ``kind:number``, as typed on a command line: ``window:256``.

    The number becomes the first argument of the constructor.
    """
    kind, _, setting = text.partition(":")
    cls = find(folder, kind)
    if not setting:
        return cls()
    try:
        value: int | float = int(setting) if setting.lstrip("-").isdigit() else float(setting)
    except ValueError:
        raise ConfigError(f'{folder}: "{text}": "{setting}" is not a number. Write {kind}:NUMBER') from None
    try:
        return cls(value)
    except TypeError:
        raise ConfigError(f'{folder}: "{kind}" takes no setting, got "{text}". Write {kind}') from None


def lazy(folder: str) -> Callable[[str], Any]:
    """A module ``__getattr__`` that imports a kind when its class is first asked for."""

    def attribute(name: str) -> Any:
        suffix = SUFFIX[folder]
        if name.endswith(suffix):
            for kind in names(folder):
                if class_name(folder, kind) == name:
                    return find(folder, kind)
        raise AttributeError(f"module 'mapsto.{folder}' has no attribute {name!r}")

    return attribute
