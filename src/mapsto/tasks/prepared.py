"""What reading a source told, kept beside its store: the next run on the same data starts without reading it again."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from mapsto import __version__, disk, document, manifest
from mapsto.data.kind import Summary
from mapsto.data.split import Split
from mapsto.data.store import cache_folder
from mapsto.errors import MapstoError
from mapsto.tasks.config import Config
from mapsto.tasks.schema import Errors, Schema
from mapsto.vocabulary import Vocabulary, restore

if TYPE_CHECKING:
    from mapsto.tasks.dataset import Dataset

__all__ = ["Measured", "place", "recall", "remember"]

FORMAT = 2


@dataclass(frozen=True)
class Measured:
    """What the training rows told: the constructor's arguments of every input and of the output."""

    inputs: list[dict[str, Any]]
    output: dict[str, Any]


def place(sources: Sequence[tuple[str, str]], parts: Sequence[str], config: Config) -> Path:
    """The folder of what some settings make of some sources, by the hash of all that it depends on.

    Args:
        sources: (name, SHA-256) of each table.
        parts: what each table is for.
        config: of the run.
    """
    settings = {
        "format": [FORMAT, __version__],
        "names": [name for name, _ in sources],
        "parts": list(parts),
        "data": config.data.model_dump(exclude={"source", "val", "test"}),
        "input": config.input.model_dump(),
        "output": config.output.model_dump(exclude={"beam", "penalty"}),
        "rest": [config.train.smoothing, config.model.sigma, config.model.latent > 0, config.seed],
    }
    store = cache_folder("+".join(digest for _, digest in sources), settings)
    return store.parent.with_name("prepared") / store.name


def remember(folder: Path, dataset: "Dataset", store: Path, split: str) -> None:
    """Keep all of a dataset but its store; where that is not possible, nothing happens."""
    tables = list(dict.fromkeys(name for name, _ in dataset.places))
    groups = None if dataset.groups is None else np.unique(dataset.groups)
    content = {
        "store": store.name,
        "split": split,
        "schema": dataset.schema.to_json(),
        "inputs": [plain(part) for part in dataset.measured.inputs],
        "output": plain(dataset.measured.output),
        "copies": [dataset.split.duplicates, dataset.split.crossing],
        "tables": tables,
        "groups": None if groups is None else groups.tolist(),
        "summaries": {name: asdict(summary) for name, summary in dataset.summaries.items()},
        "errors": [dataset.errors.rows, dataset.errors.count, dataset.errors.found],
    }
    numbers = {name: i for i, name in enumerate(tables)}
    arrays: dict[str, NDArray] = {
        "sides": dataset.split.sides,
        "places": np.array([(numbers[name], row) for name, row in dataset.places], np.int64).reshape(-1, 2),
    }
    if groups is not None and dataset.groups is not None:
        arrays["groups"] = np.searchsorted(groups, dataset.groups)
    aside = folder.with_name(f".{folder.name}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        disk.remove(aside)
        disk.make(aside)
        disk.write(aside / "facts.json", document.dump(content))
        disk.write(aside / "rows.safetensors", save(arrays))
        manifest.seal(aside, {}, ["facts.json", "rows.safetensors"])
        disk.remove(folder)
        disk.move(aside, folder)
    except (OSError, ValueError):  # no room, another process at the same, numbers that JSON cannot hold
        return


def recall(folder: Path) -> dict[str, Any] | None:
    """What :func:`remember` kept, or None.

    Returns:
        ``{"dataset", "store", "split_column"}``: arguments of a dataset, the folder of its store, the column of the
        split, which a folder of pictures may have brought.
    """
    if not folder.is_dir():
        return None
    try:
        manifest.verify(folder)
        content = disk.read_json(folder / "facts.json")
        arrays = load((folder / "rows.safetensors").read_bytes())
    except (MapstoError, SafetensorError, OSError):
        return None  # it is only a cache
    errors = Errors(None)
    errors.rows, errors.count = content["errors"][:2]
    errors.found = [(name, row, text) for name, row, text in content["errors"][2]]
    tables, groups = content["tables"], content["groups"]
    dataset = {
        "schema": Schema.from_json(content["schema"]),
        "measured": Measured([whole(part) for part in content["inputs"]], whole(content["output"])),
        "split": Split(arrays["sides"], *content["copies"]),
        "groups": None if groups is None else np.array(groups)[arrays["groups"]],
        "places": [(tables[table], row) for table, row in arrays["places"].tolist()],
        "summaries": {name: summary(part) for name, part in content["summaries"].items()},
        "errors": errors,
    }
    store = folder.parent.with_name("store") / content["store"]
    return {"dataset": dataset, "store": store, "split_column": content["split"]}


def plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as JSON; a vocabulary as its kind and its bytes."""
    return {
        name: {"vocabulary": value.kind, "bytes": value.dump().hex()} if isinstance(value, Vocabulary) else value
        for name, value in settings.items()
    }


def whole(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of :func:`plain`."""
    return {
        name: restore(value["vocabulary"], bytes.fromhex(value["bytes"]))
        if isinstance(value, dict) and set(value) == {"vocabulary", "bytes"}
        else value
        for name, value in settings.items()
    }


def summary(content: dict[str, Any]) -> Summary:
    spans = {name: content[name] and tuple(content[name]) for name in ("lengths", "range")}
    return Summary(**{**content, **spans, "odd": [(row, text) for row, text in content["odd"]]})
