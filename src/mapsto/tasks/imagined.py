"""What an autoencoder says of latent variables: new rows, variations of one, a path between two."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console
from rich.text import Text
from torch import Tensor

from mapsto.errors import ConfigError, did_you_mean
from mapsto.models.search import Sample, search
from mapsto.models.vae import VAE
from mapsto.nn.target import LabelTarget, NumberTarget
from mapsto.outputs import Output, TokenOutput
from mapsto.outputs.image import ImageOutput
from mapsto.outputs.series import SeriesOutput
from mapsto.outputs.vector import VectorOutput
from mapsto.stream import stream
from mapsto.tasks.feed import StoreFeed
from mapsto.tasks.pictures.text import visible
from mapsto.tasks.predict import named, write_rows
from mapsto.tasks.run import Run
from mapsto.vocabulary import BEGIN

__all__ = ["cells", "grid", "imagined", "latent", "pictures", "plain", "said", "simulated", "texts", "waves"]

PICTURES, TEXTS, ROWS = (".png", ".npz"), (".txt", ".jsonl", ".csv", ".parquet"), (".jsonl", ".csv", ".parquet")


def imagined(
    run: Run,
    given: str,
    between: tuple[str, str] | None,
    count: int,
    tokens: int,
    how: Sample,
    out: Path | None,
    console: Console | None,
    spread: float = 0.0,
) -> list[dict[str, Any]]:
    """Say what was never read.

    Args:
        run: of an autoencoder.
        given: a row: draws of what is believed of it are said; empty: draws of the prior.
        between: two rows, whose z are the ends of a straight line.
        count: how many.
        tokens: of a text, the most that are written; 0: what training rows have.
        how: of texts, how tokens are drawn; its seed is that of z.
        out: pictures to a sheet (``.png``) or an array (``.npz``), texts and rows to the files that predictions go to.
        console: where to print; None prints nothing.
        spread: as in :func:`latent`.

    Returns:
        One dict each: ``latent``, and the text under the target's name, or the file of the pictures and where in it.
    """
    model = run.autoencoder
    if given and between is not None:
        raise ConfigError("--from and --between are two things.   Say one of them")
    z = latent(run, given, between, count, how.seed, spread)
    output = model.decoder.output
    known = (
        PICTURES
        if isinstance(output, ImageOutput)
        else ROWS
        if isinstance(output, VectorOutput | SeriesOutput)
        else TEXTS
    )
    if out is not None and out.suffix.lower() not in known:
        raise ConfigError(f"--out {out}: {', '.join(known)} are written")
    if isinstance(output, ImageOutput):
        return _drawn(run, output, z, out or Path(f"{run.folder.name}.png"), console)
    if isinstance(output, SeriesOutput):
        return _listed([{output.name: one.tolist()} for one in waves(model, z)], z, out, console)
    if isinstance(output, VectorOutput):
        return _listed(cells(model, z, seed=how.seed, mean=between is not None), z, out, console)
    assert isinstance(output, TokenOutput)
    said = texts(model, z, how, tokens)
    rows: list[dict[str, Any]] = [
        {output.name: text, "latent": one.tolist()} for text, one in zip(said, z, strict=True)
    ]
    if out is not None:
        if out.suffix == ".txt":
            _written(out, lambda: out.write_text("\n".join(map(plain, said)) + "\n", encoding="utf-8"))
        else:
            write_rows(out, rows)
        if console is not None:
            console.print(Text(f"{len(rows)} texts written to {out}"))
    elif console is not None and not console.stderr:
        for text in said:
            console.print(Text(visible(plain(text), "\n\t")), soft_wrap=True)
    return rows


SPREAD = 0.5
"""How far a plain autoencoder's z is moved, in deviations of all z."""


@torch.inference_mode()
def latent(
    run: Run, given: Any, between: tuple[Any, Any] | None, count: int, seed: int, spread: float = 0.0
) -> Float[Tensor, "N Z"]:
    """Draws of the prior; or of what is believed of a row, or near it; or the straight line between two.

    Args:
        run: of an autoencoder.
        given: a row, or nothing.
        between: two rows, or nothing.
        count: N.
        seed: of the draws.
        spread: how far from the mean of the belief z is drawn, in deviations of all z; 0: as the belief has it, which a plain
            autoencoder has none of: there it is 0.5.

    Raises:
        ConfigError: a plain autoencoder, and nothing to draw near to.
    """
    model = run.autoencoder
    nothing = given is None or (isinstance(given, str) and not given)
    if nothing and between is None:
        if not model.bound.drawn:
            raise ConfigError(
                f"{run.folder} is a plain autoencoder: its z have no distribution to draw from.   Say --from with a row, which "
                "is varied; or train with train.bound=elbo"
            )
        return model.prior.sample(count, stream(seed, "imagine")).to(run.device)
    asked = list(between) if between is not None else [given]
    found = []
    for value in asked:
        feed = run.rows(_row(value, model.decoder.output) if run.schema.output.kind == "vector" else value)
        if len(feed.rows) != 1:
            raise ConfigError(
                f"{value}: one row is needed here, found {len(feed.rows)}.   Name one picture, one text, or a row as "
                '{"column": value, ...}'
            )
        found.append(model.believe(feed.batch(feed.rows)))
    if between is None and (spread or not model.bound.drawn):
        deviations = torch.tensor(run.result.get("deviations", []) or [1.0] * model.latent).to(found[0].mean)
        noise = torch.randn(count, model.latent, generator=stream(seed, "imagine")).to(run.device)
        return found[0].mean + (spread or SPREAD) * deviations * noise
    if between is None:
        noise = torch.randn(count, 1, model.latent, generator=stream(seed, "imagine")).to(run.device)
        return found[0].draw(noise)[0][:, 0]
    share = torch.linspace(0, 1, max(2, count), device=run.device)[:, None]
    return torch.lerp(found[0].mean, found[1].mean, share)


def _row(value: Any, output: Output) -> Any:
    """A row of a table may be given as a dict, or as one in JSON; what it does not say is missing."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ConfigError(f'{value}: expected a row as {{"column": value, ...}}: {error}') from None
    if not isinstance(value, Mapping):
        return value
    columns = output.targets
    for name, cell in value.items():
        if name not in columns:
            raise ConfigError(f'there is no column "{name}" ({", ".join(columns)}).{did_you_mean(name, columns)}')
        head = columns[name]
        if isinstance(head, LabelTarget) and cell is not None and str(cell) not in head.classes:
            raise ConfigError(f'"{name}": no training row has "{cell}".{did_you_mean(str(cell), head.classes)}')
    return [{name: value.get(name) for name in columns}]


def said(run: Run, z: Float[Tensor, "N Z"], *, seed: int = 0, mean: bool = False) -> Any:
    """What is said of each z: pictures (N, height, width, C) from 0 to 1, series (N, H, C); texts or rows in a list."""
    model = run.autoencoder
    if isinstance(model.decoder.output, VectorOutput):
        return cells(model, z, seed=seed, mean=mean)
    if isinstance(model.decoder.output, SeriesOutput):
        return waves(model, z)
    if isinstance(model.decoder.output, ImageOutput):
        return pictures(model, z)
    return texts(model, z, Sample(seed=seed))


@torch.inference_mode()
def pictures(model: VAE, z: Float[Tensor, "N Z"]) -> NDArray[np.float32]:
    """(N, height, width, C): the mean of every pixel, from 0 to 1."""
    output = model.decoder.output
    assert isinstance(output, ImageOutput)
    parts = [output.predict(model.say(some))[output.name]["value"] for some in z.split(64)]
    return np.clip(np.concatenate(parts), 0, 1).astype(np.float32)


@torch.inference_mode()
def cells(model: VAE, z: Float[Tensor, "N Z"], *, seed: int = 0, mean: bool = False) -> list[dict[str, Any]]:
    """A row of the table for each z: drawn of p(x | z), noise and all; or the mean and the likeliest label."""
    output = model.decoder.output
    assert isinstance(output, VectorOutput)
    theta, source = model.say(z), stream(seed, "cells", device=z.device)
    shown = output.predict(theta)
    columns: dict[str, list[Any]] = {}
    for name, head in output.targets.items():
        value = shown[name]["value"]
        if not mean:
            value = head.likelihood.sample(theta[name], source)[:, 0].cpu().numpy()
        if isinstance(head, LabelTarget):
            columns[name] = [head.classes[int(v)] for v in value]
        elif isinstance(head, NumberTarget):
            value = value if mean else value.astype(np.float64) * head.scale + head.mean
            value = np.round(value) if head.counted and not mean else value
            columns[name] = (value[:, 0] if value.shape[1] == 1 else value).tolist()
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


@torch.inference_mode()
def waves(model: VAE, z: Float[Tensor, "N Z"]) -> NDArray[np.float64]:
    """(N, H), or (N, H, C) of several channels: the mean of every number of a series, in the user's units."""
    output = model.decoder.output
    assert isinstance(output, SeriesOutput)
    parts = [output.predict(model.say(some))[output.name]["value"] for some in z.split(64)]
    said: NDArray[np.float64] = np.concatenate(parts)
    return said[..., 0] if said.shape[-1] == 1 else said


@torch.inference_mode()
def texts(model: VAE, z: Float[Tensor, "N Z"], how: Any, tokens: int = 0) -> list[Any]:
    """What is written of each z."""
    output = model.decoder.output
    assert isinstance(output, TokenOutput)
    limit = tokens or output.longest
    draft = model.decoder.begin({"latent": {"z": z}}, len(z), limit + 1)
    prompt = torch.full((len(z), 1), BEGIN, device=z.device)
    found = search(model.decoder.write, draft, prompt, strategy=how, limit=limit)
    return [output.vocabulary.decode(best[0].ids) for best in found]


@torch.inference_mode()
def simulated(run: Run, count: int, *, seed: int = 0) -> tuple[Float[Tensor, "N Z"], StoreFeed]:
    """Draws of the prior, and of p(x | z) as the encoder reads rows: pixels are cut and rounded to 8 bits."""
    model = run.autoencoder
    output = model.decoder.output
    z = model.prior.sample(count, stream(seed, "simulate")).to(run.device)
    if isinstance(output, ImageOutput):
        source = stream(seed, "pixels", device=z.device)
        parts = [output.head.likelihood.sample(model.say(some)[output.name], source) for some in z.split(64)]
        grey = torch.cat(parts).float().cpu().numpy() * (1 if output.head.levels else 255)
        drawn = np.clip(np.round(output.picture(grey)), 0, 255).astype(np.uint8)
        return z, run.rows(drawn[..., 0] if output.channels == 1 else drawn)
    if isinstance(output, VectorOutput):
        return z, run.rows(cells(model, z, seed=seed))
    if isinstance(output, SeriesOutput):
        source = stream(seed, "waves", device=z.device)
        x = np.concatenate([output.head.sample(model.say(some)[output.name], source) for some in z.split(64)])
        return z, run.rows((x[..., 0] if x.shape[-1] == 1 else x).tolist())
    return z, run.rows(texts(model, z, Sample(seed=seed)))


def grid(shown: NDArray, columns: int = 0, *, scale: int = 0, gap: int = 2) -> NDArray[np.uint8]:
    """Pictures (N, height, width, C) from 0 to 1 side by side on white, each pixel as a square of ``scale``."""
    count, height, width, channels = shown.shape
    columns = columns or int(np.ceil(np.sqrt(count)))
    scale = scale or max(1, 64 // max(height, width))
    rows = -(-count // columns)
    high, across = height * scale + gap, width * scale + gap
    sheet = np.full((rows * high + gap, columns * across + gap, 3), 255, np.uint8)
    pixels = np.round(255 * np.clip(shown, 0, 1)).astype(np.uint8).repeat(scale, 1).repeat(scale, 2)
    for i, one in enumerate(pixels if channels == 3 else pixels.repeat(3, 3)):
        top, left = gap + i // columns * high, gap + i % columns * across
        sheet[top : top + one.shape[0], left : left + one.shape[1]] = one
    return sheet


def _listed(
    said: list[dict[str, Any]], z: Float[Tensor, "N Z"], out: Path | None, console: Console | None
) -> list[dict[str, Any]]:
    if out is not None:
        write_rows(out, said)
        if console is not None:
            console.print(Text(f"{len(said)} rows written to {out}"))
    elif console is not None and not console.stderr:
        for row in said:
            console.print(Text(visible(named(row))), soft_wrap=True)
    return [row | {"latent": one} for row, one in zip(said, z.tolist(), strict=True)]


def _drawn(
    run: Run, output: ImageOutput, z: Float[Tensor, "N Z"], out: Path, console: Console | None
) -> list[dict[str, Any]]:
    shown = pictures(run.autoencoder, z)
    if out.suffix.lower() == ".png":
        _written(out, lambda: Image.fromarray(grid(shown)).save(out))
    else:
        _written(out, lambda: np.savez_compressed(out, images=shown, latent=z.cpu().numpy()))
    if console is not None:
        console.print(Text(f"{len(shown)} pictures written to {out}"), soft_wrap=True)
    return [{"file": str(out), "number": i, "latent": one} for i, one in enumerate(z.tolist())]


def _written(out: Path, write: Any) -> None:
    try:
        write()
    except OSError as error:
        raise ConfigError(f"--out {out}: {error.strerror or error}") from None


def plain(said: Any) -> str:
    """A text as it is, symbols with spaces between."""
    return said if isinstance(said, str) else " ".join(said)
