"""An open folder is its own registry: ``attention/favor.py`` holds ``FavorAttention``, and that is kind "favor".

Names are listed without importing anything, and only files of the folder itself can be named: no name found in a
user's file is ever imported from elsewhere.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from typing import Any

from mapsto.errors import ConfigError, did_you_mean

__all__ = ["find", "lazy", "make", "names"]

SUFFIX = {
    "attention": "Attention",
    "likelihoods": "Likelihood",
    "posteriors": "Posterior",
    "priors": "Prior",
    "inputs": "Input",
    "outputs": "Output",
}


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


def make(folder: str, text: str, **fixed: Any) -> Any:
    """Make a kind as it is typed on a command line: ``kind``, ``window:256``, ``favor:256,feature=relu``.

    What stands after the colon goes to the constructor: a first value without a name, then any by name. Values are
    whole numbers, numbers, ``true``, ``false`` or words. What is ``fixed`` cannot be typed.

    Raises:
        ConfigError: no such kind, or settings it does not take; says which it takes.
    """
    kind, _, rest = text.partition(":")
    cls = find(folder, kind)
    taken = [name for name in inspect.signature(cls).parameters if name not in fixed]
    given: dict[str, Any] = {}
    for place, part in enumerate(rest.split(",") if rest else []):
        name, equals, value = part.partition("=")
        if not equals:
            name, value = taken[0] if taken else "", part
        if name not in taken or name in given or (place and not equals):
            known = ", ".join(f"{n}=" for n in taken) or "none"
            raise ConfigError(f'{folder}: "{text}": "{part}" is no setting of {kind}, which takes {known}')
        given[name] = _value(value)
    try:
        return cls(**given, **fixed)
    except TypeError:
        known = ", ".join(f"{n}=" for n in taken)
        raise ConfigError(f'{folder}: "{text}": expected values of {known} such as {kind}:{_example(cls)}') from None


def _example(cls: type[Any]) -> str:
    first = next(iter(inspect.signature(cls).parameters.values()))
    return f"{first.name}={'1.0' if first.default is None else first.default}"


def _value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text


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
