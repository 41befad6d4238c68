"""The notation of config files: the plain part of YAML 1.2, in which a text has one reading and takes no time to read."""

import re
from typing import Any

import yaml

from mapsto.data.fault import plain
from mapsto.errors import ConfigError

__all__ = ["MOST", "parse_yaml", "refusal"]

MOST = 20_000  # values in a file; PyYAML takes 30 µs for each
DEEPEST = 16


def refusal(text: str) -> ConfigError:
    """An error that may quote a file: on one line, with control characters escaped."""
    return ConfigError(plain(text))


class Loader(yaml.SafeLoader):
    """YAML 1.2 scalars; keys are plain and stand once; anchors, tags and depth are refused where they stand.

    Everything is refused while it is read, before anything is made of what comes after: the scanner's time grows with
    the square of the depth.
    """

    def __init__(self, text: str, where: str):
        super().__init__(text)
        self.where, self.level, self.nodes = where, 0, 0

    def refused(self, what: str, event: Any) -> ConfigError:
        return refusal(f"{self.where}:{event.start_mark.line + 1}: {what}")

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent):
            raise self.refused("a YAML alias is not allowed here", event)
        for what, given in (("anchor", event.anchor), ("tag", event.tag)):
            if given is not None:
                raise self.refused(f"a YAML {what} is not allowed here", event)
        if self.level > DEEPEST:
            raise self.refused(f"lists or sections nested deeper than {DEEPEST}", event)
        self.nodes += 1
        if self.nodes > MOST:
            raise self.refused(f"more than {MOST:,} values", event)
        self.level += 1
        node = super().compose_node(parent, index)
        self.level -= 1
        return node

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise self.refused("a key is a list or section, expected a name", key)
            if key.value in seen:
                raise self.refused(f'"{key.value[:80]}" stands twice', key)
            seen.add(key.value)
        return node


Loader.yaml_implicit_resolvers = {}  # those of YAML 1.1
for tag, pattern, first in (
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("null", r"^(?:~|null|Null|NULL|)$", "~nN\0"),
    ("int", r"^[-+]?[0-9]+$", "-+0123456789"),
    ("float", r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$", "-+.0123456789"),
):
    Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(pattern), list(first))


def _int(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    return int(str(loader.construct_scalar(node)))  # PyYAML takes 010 for 8


def _float(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> float:
    return float(str(loader.construct_scalar(node)))


Loader.add_constructor("tag:yaml.org,2002:int", _int)
Loader.add_constructor("tag:yaml.org,2002:float", _float)


def parse_yaml(text: str, where: str) -> Any:
    """Plain YAML 1.2: mappings, lists, scalars.

    Raises:
        ConfigError: with the line, for duplicate keys, anchors, tags, depth and broken syntax.
    """
    try:
        loader = Loader(text, where)
        return loader.get_single_data()
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise refusal(f"{where}:{line}: {error.problem}") from None
    except yaml.YAMLError as error:
        raise refusal(f"{where}: {str(error).splitlines()[0]}") from None
    except ValueError:  # Python's own limit
        raise refusal(f"{where}: a whole number of more than 4300 digits") from None
