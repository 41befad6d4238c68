"""A model from its settings, and the files of a model: ``model.safetensors``, ``config.json``, ``vocabulary.*``."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from mapsto import disk, document, kinds, manifest
from mapsto.data.fault import plain
from mapsto.data.memory import free_memory
from mapsto.errors import ConfigError, ModelFileError, ResourceError
from mapsto.models.mapper import Mapper
from mapsto.nn.distance import T5, ALiBi, Relative
from mapsto.nn.initial import initialise
from mapsto.nn.memory import CompositeMemory, GatedMemory, Recall
from mapsto.nn.perceptron import Joined, Perceptron
from mapsto.nn.pool import MeanPool, pool
from mapsto.nn.position import Learned, NoPosition, Position, Rotary, Sinusoidal
from mapsto.nn.reader import Keep, Reader
from mapsto.nn.transformer import Decoder, Encoder, PostNorm, PreNorm, Prior
from mapsto.tasks.autoencoder import autoencoder, flat
from mapsto.tasks.dataset import Measured, Parts
from mapsto.tasks.schema import Schema
from mapsto.tasks.section import ModelConfig
from mapsto.tasks.stored import FORMAT, read_stored
from mapsto.vocabulary import Vocabulary, restore

__all__ = ["build", "load_model", "parameters", "save_model", "tensors"]

Model = Any
"""A :class:`~mapsto.models.mapper.Mapper`, or a :class:`~mapsto.models.vae.VAE`, which has its inputs and its output."""

WEIGHTS, CONFIG = "model.safetensors", "config.json"
LIMIT = 32 << 20  # bytes of a file that is no weights


def build(schema: Schema, measured: Measured, config: ModelConfig, *, seed: int) -> Model:
    """Put inputs, encoder, reader and output together, with first weights from the seed.

    Raises:
        ConfigError: settings that do not go together.
        ResourceError: the weights alone would take more than four fifths of the free memory; nothing was allocated.
    """
    planned = _plan(schema, measured, config)
    _affordable(
        sum(t.nbytes for t in tensors(planned).values()),
        f"a model of dim {config.dim}, depth {config.depth}",
        "Lower --size or model.dim",
    )
    model = _assemble(schema, measured, config)
    initialise(model, seed)
    return model.eval()


def _assemble(schema: Schema, measured: Measured, config: ModelConfig) -> Model:
    dim = config.dim
    parts = Parts.build(schema, measured, dim)
    with torch.random.fork_rng(devices=[]):  # torch's constructors draw from the global generator; it stays untouched
        common: dict[str, Any] = {
            "norm": PreNorm() if config.norm == "pre" else PostNorm(),
            "hidden": config.hidden or None,
            "activation": config.activation,
            "dropout": config.dropout,
        }
        attends = config.mixer == "attention"
        encoder: torch.nn.Module = torch.nn.Identity()  # of a language model, which has nothing to encode
        simple = config.latent > 0 and flat(parts.output)
        if simple:
            encoder = Perceptron(dim, config.depth, activation=config.activation)
            if schema.output.kind == "vector":
                encoder = Joined(encoder)
        elif schema.inputs:
            encoder = Encoder(
                dim,
                config.depth,
                config.heads,
                attention=kinds.make("attention", config.attention) if attends else None,
                mixer=_mixer(schema, config),
                position=_places(schema, config, measured),
                normalise=bool(config.normalise) and attends,
                **common,
            )
        reader: Reader
        if simple:
            reader = MeanPool()
        elif schema.output.kind in ("sequence", "parallel", "series", "image"):
            reader = _writer(schema, measured, config, common)
        else:
            reader = Keep() if schema.output.kind == "items" else pool(config.pool, dim, config.heads)
        names = ["the column target" if f.name == "target" else f.name for f in schema.inputs]  # a batch has a "target"
        inputs = dict(zip(names, parts.inputs, strict=True))
        if not config.latent:
            return Mapper(inputs, encoder, reader, parts.output, masking=config.masking)
        inner = Perceptron(dim, config.depth, activation=config.activation) if simple else torch.nn.Identity()
        how = pool("mean" if simple else config.pool, dim, config.heads)
        return autoencoder(config, inputs, parts.output, encoder=encoder, pool=how, inner=inner, reader=reader)


class _Undrawn(TorchFunctionMode):
    """Constructors draw no numbers: where there is no memory, ``normal_`` imports a second's worth of torch."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in ("normal_", "uniform_"):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def _plan(schema: Schema, measured: Measured, config: ModelConfig) -> Model:
    """The model without its numbers: names and shapes, and no memory."""
    with torch.device("meta"), _Undrawn():
        return _assemble(schema, measured, config)


def _affordable(needed: int, what: str, cure: str) -> None:
    free = free_memory()
    if needed > 0.8 * free:
        raise ResourceError(f"{what} needs {needed / 1e9:,.1f} GB of memory, {free / 1e9:,.1f} GB are free.   {cure}")


def _mixer(schema: Schema, config: ModelConfig) -> Callable[[], torch.nn.Module] | None:
    if config.mixer == "attention":
        return None
    found = [field.kind for field in schema.inputs]
    if found not in (["sequence"], ["series"]):
        raise ConfigError(
            f"model.mixer={config.mixer}: a memory takes items in their order, and {' and '.join(found)} items have none.   "
            "Use model.mixer=attention, or map from one sequence or series"
        )
    if config.attention != "softmax" or config.normalise:
        raise ConfigError(
            f"model.mixer={config.mixer} stands in the place of attention.   Leave out model.attention and model.normalise"
        )
    made = CompositeMemory if config.mixer == "composite" else GatedMemory
    return lambda: Recall(made, config.dim)


def _writer(schema: Schema, measured: Measured, config: ModelConfig, common: dict[str, Any]) -> Decoder | Prior:
    """What writes a sequence or says a series: a decoder that asks the memory, or one that asks nobody. It attends."""
    settled, said, kind = config.model_copy(update={"mixer": "attention"}), measured.output, schema.output.kind
    longest = 0
    if kind != "image":
        longest = said["horizon"] if kind == "series" else said.get("window") or (said["limit"] and said["limit"] + 1)
    common = common | {
        "attention": kinds.make("attention", config.attention),
        "position": _position([kind], settled, [longest]),
        "normalise": bool(config.normalise),
    }
    depth = config.decoder or config.depth
    if not schema.inputs:
        return Prior(config.dim, depth, config.heads, **common)
    return Decoder(config.dim, depth, config.heads, cross=kinds.make("attention", config.cross), **common)


def _places(schema: Schema, config: ModelConfig, measured: Measured) -> Position:
    """The encoder's position."""
    found = [field.kind for field in schema.inputs]
    if schema.output.kind in ("sequence", "parallel", "series") and set(found) == {"vector"}:
        return NoPosition()  # the setting is the decoder's
    return _position(found, config, [m.get("limit", 0) for m in measured.inputs])


def _position(found: list[str], config: ModelConfig, limits: list[int]) -> Position:
    sets = all(kind == "vector" for kind in found)
    told = sets or config.mixer != "attention"  # a memory knows the order by itself
    name = ("none" if told else "sinusoidal") if config.position == "auto" else config.position
    if name == "none":
        return NoPosition()
    if sets:
        raise ConfigError(
            f"model.position={name}: the columns of a table are a set and have no places.   Use auto or none"
        )
    if name == "sinusoidal":
        # Embeddings start small, linear layers and stems at about one; waves are to be no louder than the items.
        return Sinusoidal(
            config.dim,
            amplitude=0.1 if "sequence" in found else 1.0,
            theta=100.0 if set(found) == {"image"} else 10000.0,
        )
    if name == "rotary":
        return Rotary()
    if name != "learned":
        return _distance(name, found, config, limits)
    if len(found) != 1 or not limits[0]:
        raise ConfigError(
            "model.position=learned needs one sequence or series with a limit.   Give input.limit, and output.limit where "
            "texts are written"
        )
    return Learned(config.dim, limits[0])


def _distance(name: str, found: list[str], config: ModelConfig, limits: list[int]) -> Position:
    if len(found) > 1:
        raise ConfigError(
            f"model.position={name}: items of several inputs ({', '.join(found)}) have no distance from each other.   "
            "Use auto, sinusoidal or rotary"
        )
    if name == "alibi":
        return ALiBi(config.heads)
    if found == ["image"]:
        raise ConfigError(
            f"model.position={name} counts in one coordinate, and a picture has two.   Use auto, sinusoidal, rotary or alibi"
        )
    longest = min([128, *(limit for limit in limits if limit > 1)])
    if name == "t5":
        return T5(config.heads, longest=max(longest, 9))  # of 16 buckets a side, 8 are for the distances 0 to 7
    return Relative(config.heads, config.dim // config.heads, longest=longest)


def tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """All that a model is beside its settings, by name: what is learned, and what was drawn."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def parameters(model: torch.nn.Module) -> int:
    """How many numbers are learned."""
    return sum(p.numel() for p in model.parameters())


def save_model(folder: Path, model: Model, schema: Schema, config: ModelConfig, card: str) -> int:
    """Write the weights and all that is needed to make the model again, whole or not at all.

    Args:
        folder: where; one that is there is replaced.
        model: whose weights.
        schema: which columns it maps.
        config: its settings.
        card: the README.md that goes with it.

    Returns:
        Its size in bytes.

    Raises:
        ModelFileError: its settings are more than can be read again (16 MiB of JSON, or a million values).
    """
    aside = folder.with_name(f".{folder.name}.{os.getpid()}")
    disk.remove(aside)
    disk.make(aside)

    def plain(value: Any, name: int) -> Any:
        if isinstance(value, Vocabulary):
            file = f"vocabulary.{name}.{value.suffix}"
            disk.write(aside / file, value.dump())
            return {"vocabulary": value.kind, "file": file}
        return value

    try:
        inputs = [
            {key: plain(value, i) for key, value in one.settings().items()}
            for i, one in enumerate(model.sources.values())
        ]
        content = {
            "format": FORMAT,
            "schema": schema.to_json(),
            "inputs": inputs,
            "output": {key: plain(value, len(inputs)) for key, value in model.output.settings().items()},
            "model": config.model_dump(),
        }
        disk.write_tensors(aside / WEIGHTS, tensors(model))
        disk.write(aside / CONFIG, document.dump(content))
        read_stored(disk.read_json(aside / CONFIG))  # what could not be loaded again is not saved
        manifest.seal(aside, {}, sorted(f.name for f in aside.iterdir()))
        disk.write(aside / "README.md", card.encode())  # not sealed: people write in it
        disk.sync(aside / "README.md")
        disk.remove(folder)
        disk.move(aside, folder)
        disk.sync(folder.parent)
    finally:
        disk.remove(aside)
    return sum(f.stat().st_size for f in folder.iterdir())


def load_model(folder: Path) -> tuple[Model, Schema, ModelConfig]:
    """Make a saved model again.

    No file is trusted: each is a plain file of the folder that its manifest names, the settings are checked by
    :mod:`mapsto.tasks.stored`, the weights' names, types and shapes are those that the settings ask for before they are
    read and memory is taken, and all of them are finite. Nothing named in a file is imported but built-in kinds.

    Raises:
        ModelFileError: a file is missing, damaged, or of another model.
        ResourceError: there is too little memory.
    """
    path, weights = folder / CONFIG, folder / WEIGHTS
    if not path.is_file():
        raise ModelFileError(f"{path} is missing: this is no finished run")
    sealed = manifest.read(folder)
    for name in sealed["files"]:
        if name != WEIGHTS:
            manifest.check(folder, sealed, name, LIMIT)
    if CONFIG not in sealed["files"]:
        raise ModelFileError(f"{folder / manifest.MANIFEST} does not name {CONFIG}")
    content = disk.read_json(path)
    try:
        stored = read_stored(content)
        schema = Schema.from_json(content["schema"])
    except ValueError as error:
        raise ModelFileError(f"{path} is of no model this version knows: {error}") from None
    parts = [*stored.inputs, stored.output]
    references = [part.vocabulary for part in parts if "vocabulary" in part.model_fields_set]
    used = sorted([CONFIG, WEIGHTS, *(r.file for r in references)])
    if sorted(sealed["files"]) != used:
        raise ModelFileError(f"{folder / manifest.MANIFEST} is of other files than {', '.join(used)}")
    header = disk.read_header(weights)
    if stored.model.depth > len(header):
        raise ModelFileError(f"{weights} does not fit: {len(header)} tensors for a depth of {stored.model.depth}")
    inputs = [{k: _value(v, folder) for k, v in part.items()} for part in content["inputs"]]
    measured = Measured(inputs, {k: _value(v, folder) for k, v in content["output"].items()})
    try:
        _fits(_plan(schema, measured, stored.model), header, weights)
        _affordable(2 * sum(entry.size for entry in header.values()), str(folder), "Close other programs")
        model = _assemble(schema, measured, stored.model).eval()
    except (ModelFileError, ResourceError, MemoryError):
        raise
    except Exception as error:  # whatever a constructor makes of settings that do not go together
        raise ModelFileError(f"{path} is of no model this version knows: {plain(str(error))}") from error
    manifest.check(folder, sealed, WEIGHTS)
    _fill(model, disk.read_tensors(weights), weights)
    return model, schema, stored.model


def _value(value: Any, folder: Path) -> Any:
    if isinstance(value, dict) and set(value) == {"vocabulary", "file"}:
        path = folder / value["file"]
        try:
            return restore(value["vocabulary"], disk.read(path, LIMIT))
        except FileNotFoundError:
            raise ModelFileError(f"{path} is missing") from None
        except ModelFileError as error:
            raise ModelFileError(f"{path}: {error}") from None
    return value


def _fits(planned: Model, header: dict[str, disk.Entry], path: Path) -> None:
    own = tensors(planned)
    lacking, extra = sorted(own.keys() - header.keys()), sorted(header.keys() - own.keys())
    if lacking or extra:
        first = lacking[0] if lacking else extra[0]
        raise ModelFileError(
            f"{path} does not fit: {len(lacking)} missing, {len(extra)} unexpected, such as {first!r:.80}"
        )
    for name, p in own.items():
        found = header[name]
        if tuple(p.shape) != found.shape or p.dtype != found.dtype:
            raise ModelFileError(
                f"{path}: {name} is {found.shape} of {found.dtype}, expected {tuple(p.shape)} of {p.dtype}"
            )


@torch.no_grad()
def _fill(model: Mapper, found: dict[str, torch.Tensor], path: Path) -> None:
    for name, p in tensors(model).items():
        if not torch.isfinite(found[name]).all():
            raise ModelFileError(f"{path}: {name} holds numbers that are not finite")
        p.copy_(found[name])
