"""Which columns an autoencoder reads, and says again."""

from typing import Any

from mapsto.data.fault import fault
from mapsto.data.kind import Summary, infer
from mapsto.data.source import Table
from mapsto.errors import ConfigError
from mapsto.tasks.schema import USUAL, Field, Schema, constant, fields, spec
from mapsto.tasks.section import DataConfig

__all__ = ["itself"]

AGAIN = ("image", "sequence", "series", "vector")
"""Inputs that there are outputs of: what an autoencoder can say again."""


def itself(config: DataConfig, table: Table, describe: Any) -> tuple[Schema, dict[str, Summary]]:
    """What an autoencoder reads and says again: one picture, sequence or series, or the columns of a table.

    Args:
        config: the columns as the user named them; with none, pictures if there are any. A target is not read: it is what
            rows are called by, if anything.
        table: the data.
        describe: summarises columns.

    Raises:
        ConfigError: nothing, or more than one thing, to say again.
    """
    special = {config.split, config.group, config.times, table.split or ""}
    named = [c for text in config.targets for c in spec(text, table, "to")]
    free = [c for c in table.columns if c not in special and c not in {c for c, _ in named}]
    sources = [c for text in config.inputs for c in spec(text, table, "from")] or [(c, "") for c in free]
    summaries = describe(table, [c for c, _ in sources])
    if not config.inputs:
        pictures = [c for c, _ in sources if infer(summaries[c]).kind == "image"]
        left = [c for c, _ in sources if c.lower() not in USUAL and not constant(summaries[c])]
        sources = [(c, "") for c in pictures or left]
    inputs = fields(table, sources, summaries, config)
    if len(inputs) != 1 or inputs[0].kind not in AGAIN:
        found = ", ".join(f"{field.name} ({field.kind})" for field in inputs) or "nothing"
        raise ConfigError(
            f"an autoencoder says again one picture, sequence or series, or the columns of a table; here it is {found}.   Say "
            "--from COLUMN:KIND"
        )
    (field,) = inputs
    for column in (c for c, _ in field.columns if field.kind == "vector" and constant(summaries[c])):
        raise fault(f'{table.name}: "{column}" is the same in every row: nothing to learn.   Leave it out of --from')
    output = Field(field.name, field.kind, field.columns)
    return Schema(inputs, output, "", tuple(config.missing)), {c: summaries[c] for c, _ in field.columns}
