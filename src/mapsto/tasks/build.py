"""A model from its settings, and the files of a model: ``model.safetensors``, ``config.json``, ``vocabulary.*``."""

import os
from pathlib import Path
from typing import Any

import torch

from mapsto import disk, document, kinds, manifest
from mapsto.errors import ConfigError, ModelFileError
from mapsto.models.mapper import Mapper
from mapsto.nn.initial import initialise
from mapsto.nn.pool import pool
from mapsto.nn.position import Learned, NoPosition, Position, Rotary, Sinusoidal
from mapsto.nn.reader import Keep, Reader
from mapsto.nn.transformer import Encoder, PostNorm, PreNorm
from mapsto.tasks.config import ModelConfig
from mapsto.tasks.dataset import Measured, Parts
from mapsto.tasks.schema import Schema
from mapsto.vocabulary import Vocabulary, restore

__all__ = ["build", "load_model", "parameters", "save_model"]

FORMAT = 1
WEIGHTS, CONFIG = "model.safetensors", "config.json"


def build(schema: Schema, measured: Measured, config: ModelConfig, *, seed: int) -> Mapper:
    """Put inputs, encoder, reader and output together, with first weights from the seed."""
    dim = config.dim
    parts = Parts.build(schema, measured, dim)
    with torch.random.fork_rng(devices=[]):  # torch's constructors draw from the global generator; it stays untouched
        encoder = Encoder(
            dim,
            config.depth,
            config.heads,
            attention=kinds.make("attention", config.attention),
            position=_position(schema, config, measured),
            norm=PreNorm() if config.norm == "pre" else PostNorm(),
            hidden=config.hidden or None,
            activation=config.activation,
            dropout=config.dropout,
            normalise=config.normalise,
        )
        reader: Reader = Keep() if schema.output.kind == "items" else pool(config.pool, dim, config.heads)
        names = [field.name for field in schema.inputs]
        model = Mapper(
            dict(zip(names, parts.inputs, strict=True)), encoder, reader, parts.output, masking=config.masking
        )
    initialise(model, seed)
    return model.eval()


def _position(schema: Schema, config: ModelConfig, measured: Measured) -> Position:
    sets = all(field.kind == "vector" for field in schema.inputs)
    name = ("none" if sets else "sinusoidal") if config.position == "auto" else config.position
    if name == "none":
        return NoPosition()
    if sets:
        raise ConfigError(
            f"model.position={name}: the columns of a table are a set and have no places.   Use auto or none"
        )
    if name == "sinusoidal":
        # Embeddings start small, linear layers and stems at about one; waves are to be no louder than the items.
        found = {f.kind for f in schema.inputs}
        return Sinusoidal(
            config.dim, amplitude=0.1 if "sequence" in found else 1.0, theta=100.0 if found == {"image"} else 10000.0
        )
    if name == "rotary":
        return Rotary()
    limits = [m["limit"] for m in measured.inputs if "limit" in m]
    if len(schema.inputs) != 1 or not limits or not limits[0]:
        raise ConfigError("model.position=learned needs one sequence or series with an input.limit")
    return Learned(config.dim, limits[0])


def parameters(model: torch.nn.Module) -> int:
    """How many numbers are learned."""
    return sum(p.numel() for p in model.parameters())


def save_model(folder: Path, model: Mapper, schema: Schema, config: ModelConfig, card: str) -> int:
    """Write the weights and all that is needed to make the model again, whole or not at all.

    Args:
        folder: where; one that is there is replaced.
        model: whose weights.
        schema: which columns it maps.
        config: its settings.
        card: the README.md that goes with it.

    Returns:
        Its size in bytes.
    """
    aside = folder.with_name(f".{folder.name}.{os.getpid()}")
    disk.remove(aside)
    disk.make(aside)

    def plain(value: Any, name: str) -> Any:
        if isinstance(value, Vocabulary):
            file = f"vocabulary.{name}.{value.suffix}"
            disk.write(aside / file, value.dump())
            return {"vocabulary": value.kind, "file": file}
        return value

    try:
        inputs = [
            {key: plain(value, str(i)) for key, value in one.settings().items()}
            for i, one in enumerate(model.sources.values())
        ]
        content = {
            "format": FORMAT,
            "schema": schema.to_json(),
            "inputs": inputs,
            "output": model.output.settings(),
            "model": config.model_dump(),
        }
        disk.write_tensors(aside / WEIGHTS, dict(model.named_parameters()))
        disk.write(aside / CONFIG, document.dump(content))
        manifest.seal(aside, {}, sorted(f.name for f in aside.iterdir()))
        disk.write(aside / "README.md", card.encode())  # not sealed: people write in it
        disk.sync(aside / "README.md")
        disk.remove(folder)
        disk.move(aside, folder)
        disk.sync(folder.parent)
    finally:
        disk.remove(aside)
    return sum(f.stat().st_size for f in folder.iterdir())


def load_model(folder: Path) -> tuple[Mapper, Schema, ModelConfig]:
    """Make a saved model again.

    Raises:
        ModelFileError: a file is missing, damaged, or of another model.
    """
    path = folder / CONFIG
    if not path.is_file():
        raise ModelFileError(f"{path} is missing: this is no finished run")
    manifest.verify(folder)
    content = disk.read_json(path)
    try:
        if content["format"] != FORMAT:
            raise ModelFileError(f"{path}: format {content['format']}, this version reads {FORMAT}")
        schema = Schema.from_json(content["schema"])
        config = ModelConfig.model_validate(content["model"])
        inputs = [{k: _value(v, folder) for k, v in part.items()} for part in content["inputs"]]
        model = build(schema, Measured(inputs, content["output"]), config, seed=0)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelFileError(f"{path} is of no model this version knows: {error}") from None
    _fill(model, disk.read_tensors(folder / WEIGHTS), folder / WEIGHTS)
    return model, schema, config


def _value(value: Any, folder: Path) -> Any:
    if isinstance(value, dict) and set(value) == {"vocabulary", "file"}:
        name = str(value["file"])
        if not name.startswith("vocabulary.") or "/" in name or "\\" in name:
            raise ModelFileError(f"{folder / 'config.json'}: {name!r} is no vocabulary of this folder")
        try:
            return restore(value["vocabulary"], (folder / name).read_bytes())
        except FileNotFoundError:
            raise ModelFileError(f"{folder / name} is missing") from None
    return value


@torch.no_grad()
def _fill(model: Mapper, tensors: dict[str, torch.Tensor], path: Path) -> None:
    own = dict(model.named_parameters())
    lacking, extra = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
    if lacking or extra:
        first = lacking[0] if lacking else extra[0]
        raise ModelFileError(f"{path} does not fit: {len(lacking)} missing, {len(extra)} unexpected, such as {first}")
    for name, p in own.items():
        if p.shape != tensors[name].shape:
            raise ModelFileError(f"{path}: {name} is {tuple(tensors[name].shape)}, expected {tuple(p.shape)}")
        p.copy_(tensors[name])
