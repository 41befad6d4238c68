"""Small real data sets that ship with the package, and the settings that suit them."""

import calendar
import csv
import gzip
import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from importlib.resources import files
from io import BytesIO
from typing import Any

import numpy as np

from mapsto.data.passage import Passages
from mapsto.data.source import Table
from mapsto.data.table import open_table
from mapsto.errors import ConfigError, did_you_mean

__all__ = ["DEMOS", "Demo", "demo", "demo_table"]

PREFIX = "demo:"
PIECE = 30


@dataclass(frozen=True)
class Demo:
    """A data set and how to learn from it.

    Attributes:
        maps: what to what.
        about: one line.
        rows: gives the data.
        inputs: source columns.
        targets: target columns.
        settings: by ``section.key``.
    """

    maps: str
    about: str
    rows: Callable[[], Any]
    inputs: list[str]
    targets: list[str]
    settings: dict[str, Any] = field(default_factory=dict)


def _file(name: str) -> bytes:
    content = files("mapsto.demos").joinpath(name).read_bytes()
    return gzip.decompress(content) if name.endswith(".gz") else content


def peptides() -> list[dict[str, str]]:
    """5,200 peptides as one-letter amino acids; antimicrobial or not (4,642 are different)."""
    lines = csv.reader(_file("amp.csv.gz").decode().splitlines()[1:])
    names = {"0": "other", "1": "antimicrobial"}
    return [{"sequence": s.strip(), "label": names[y.strip()]} for s, y in lines]


def antimicrobial() -> dict[str, list[str]]:
    """Those of them that are antimicrobial, each once."""
    return {"sequence": sorted({row["sequence"] for row in peptides() if row["label"] == "antimicrobial"})}


def languages() -> list[dict[str, str]]:
    """The Universal Declaration of Human Rights in 26 languages, in pieces of 30 characters, with their article.

    Many articles begin alike ("Everyone has the right to"): a piece that has been seen is left out, or copies would tie
    almost all articles to one side of a split.
    """
    rows, seen = [], set()
    for language, articles in json.loads(_file("udhr.json.gz")).items():
        for number, article in enumerate(articles, 1):
            for start in range(0, len(article) - PIECE + 1, PIECE):
                piece = article[start : start + PIECE]
                if piece not in seen:
                    seen.add(piece)
                    rows.append({"text": piece, "language": language, "article": str(number)})
    return rows


def digits() -> dict[str, Any]:
    """1,797 handwritten digits of 8 x 8 pixels."""
    with np.load(BytesIO(_file("digits.npz")), allow_pickle=False) as arrays:
        images = np.round(arrays["x"] * (255 / 16)).astype(np.uint8)
        return {"image": images, "digit": [str(y) for y in arrays["y"]]}


CLOTHES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")


def clothes() -> dict[str, Any]:
    """1,300 pictures of clothes of 28 x 28 pixels (Fashion-MNIST), 1,000 of them to train and validate."""
    with np.load(BytesIO(_file("fashion_mnist_small.npz")), allow_pickle=False) as arrays:
        images = np.concatenate([arrays["x_train"], arrays["x_test"]])
        labels = [CLOTHES[y] for y in np.concatenate([arrays["y_train"], arrays["y_test"]])]
        split = ["train"] * len(arrays["x_train"]) + ["test"] * len(arrays["x_test"])
    return {"image": images, "label": labels, "split": split}


def words() -> dict[str, Any]:
    """4,700 English words and how they sound: phonemes of the CMU dictionary, stress marks kept."""
    lines = _file("cmudict_small.txt.gz").decode().splitlines()
    pairs = [line.split() for line in lines if line and not line.startswith(";;;")]
    return {"word": [p[0].lower() for p in pairs], "sounds": [p[1:] for p in pairs]}


def verses() -> list[dict[str, str]]:
    """5,431 verses of the Bible in English and Spanish (World English Bible, Reina-Valera 1909)."""
    rows = csv.reader(_file("bible_en_es.tsv.gz").decode().splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE)
    return [{"english": row[-2], "spanish": row[-1]} for row in rows]


def play() -> Passages:
    """270,000 characters of Shakespeare."""
    return Passages("play", lambda: _file("shakespeare_small.txt.gz").decode(), (0.8, 0.1, 0.1))


def pieces() -> dict[str, list[bytes]]:
    """16 pieces of music of many instruments, as MIDI files."""
    with zipfile.ZipFile(BytesIO(_file("freedoom_midi.zip"))) as archive:
        return {"music": [archive.read(name) for name in sorted(archive.namelist())]}


HOURS, PLACES = (6, 12, 24), ("latitude", "longitude", "wind")


def storms() -> list[dict[str, Any]]:
    """2,906 fixes of 512 storms of the Atlantic, one in four: where, how strong, and the same 6, 12 and 24 hours on.

    What comes after a storm's last fix is missing.
    """
    found = list(csv.DictReader(_file("storms.csv.gz").decode().splitlines()))
    when = [datetime.strptime("{year} {month} {day} {hour}".format(**row), "%Y %m %d %H") for row in found]
    names = [f"{row['name']} {row['year']}" for row in found]
    at = {(name, time): row for name, time, row in zip(names, when, found, strict=True)}
    rows = []
    for name, time, now in list(zip(names, when, found, strict=True))[::4]:
        row: dict[str, Any] = {"storm": name, "month": calendar.month_name[time.month]}
        for hours in (0, *HOURS):
            then = now if hours == 0 else at.get((name, time + timedelta(hours=hours)), {})
            for short, long in zip(("lat", "long", "wind"), PLACES, strict=True):
                row[f"{long} +{hours}h" if hours else long] = float(then[short]) if then else None
        rows.append(row)
    return rows


SHORT = {
    "input.vocabulary": "characters",
    "model.dropout": 0.3,
    "train.smoothing": 0.1,
    "train.batch_tokens": 2048,
}

DEMOS: dict[str, Demo] = {
    "peptides": Demo(
        "sequence -> label",
        "is a peptide antimicrobial?",
        peptides,
        ["sequence"],
        ["label"],
        {**SHORT, "size": "s", "input.ngrams": 3, "model.pool": "attention", "train.epochs": 20},
    ),
    "languages": Demo(
        "text -> label",
        "which of 26 languages are 30 characters in?",
        languages,
        ["text:sequence"],
        ["language"],
        {
            **SHORT,
            "data.group": "article",
            "input.ngrams": 4,
            "model.dim": 128,
            "model.depth": 1,
            "model.heads": 4,
            "model.dropout": 0.2,
            "train.lr": 4e-3,
            "train.epochs": 12,
        },
    ),
    "digits": Demo(
        "image -> label",
        "which digit is it?",
        digits,
        ["image"],
        ["digit"],
        {
            "size": "s",
            "model.pool": "attention",
            "model.dropout": 0.2,
            "train.epochs": 40,
            "train.smoothing": 0.1,
            "train.average": 0.995,
        },
    ),
    "words": Demo(
        "sequence -> sequence",
        "how is an English word pronounced?",
        words,
        ["word:sequence"],
        ["sounds:sequence"],
        {
            "input.vocabulary": "characters",
            "model.dim": 128,
            "model.depth": 2,
            "model.heads": 4,
            "model.dropout": 0.2,
            "train.lr": 2e-3,
            "train.batch_tokens": 1024,
            "train.smoothing": 0.1,
            "train.epochs": 48,
        },
    ),
    "verses": Demo(
        "sequence -> sequence",
        "English verses in Spanish",
        verses,
        ["english:sequence"],
        ["spanish:sequence"],
        {
            "input.vocabulary": "subwords",
            "input.vocabulary_size": 1000,
            "output.vocabulary": "subwords",
            "output.vocabulary_size": 1000,
            "model.dim": 128,
            "model.depth": 2,
            "model.heads": 4,
            "model.dropout": 0.3,
            "train.lr": 2e-3,
            "train.batch_tokens": 2048,
            "train.smoothing": 0.1,
            "train.epochs": 15,
        },
    ),
    "play": Demo(
        "text -> what comes next",
        "a language model of Shakespeare's characters",
        play,
        [],
        ["text:sequence"],
        {
            "output.vocabulary": "characters",
            "output.limit": 128,
            "size": "s",
            "train.batch_tokens": 2048,
            "train.steps": 1500,
        },
    ),
    "midi": Demo(
        "music -> what comes next",
        "a language model of pieces for many instruments",
        pieces,
        [],
        ["music:music"],
        {
            "data.shares": [0.7, 0.15, 0.15],
            "output.limit": 256,
            "model.position": "relative",
            "size": "s",
            "train.batch_tokens": 2048,
            "train.steps": 800,
        },
    ),
    "clothes": Demo(
        "image -> label",
        "which piece of clothing is it?",
        clothes,
        ["image"],
        ["label"],
        {
            "size": "s",
            "data.split": "split",
            "input.flip": True,
            "input.shift": 1,
            "model.masking": 0.1,
            "train.smoothing": 0.1,
            "train.batch_tokens": 784,
            "train.epochs": 30,
        },
    ),
    "clothes-vae": Demo(
        "image -> image",
        "which pieces of clothing could there be?",
        clothes,
        ["image"],
        [],
        {"data.split": "split", "model.latent": 10, "train.epochs": 100},
    ),
    "storms": Demo(
        "table -> table",
        "which cells are missing, and what would they be?",
        storms,
        ["month:label", *(f"{c}{h}:number" for h in ("", *(f" +{h}h" for h in HOURS)) for c in PLACES)],
        [],
        {
            "data.group": "storm",
            "model.latent": 8,
            "train.lr": 0.004,
            "train.epochs": 120,
            "train.beta_warmup": 0.4,
            "train.hide": 0.3,
        },
    ),
    "peptides-vae": Demo(
        "sequence -> sequence",
        "which antimicrobial peptides could there be?",
        antimicrobial,
        ["sequence:sequence"],
        [],
        {
            "input.vocabulary": "characters",
            "output.vocabulary": "characters",
            "model.latent": 8,
            "model.dim": 64,
            "train.lr": 0.003,
            "train.batch_tokens": 1024,
            "train.free": "dims:0.3",
            "train.beta_warmup": 0.3,
            "train.epochs": 12,
        },
    ),
}


def demo(name: str) -> Demo:
    """A demo by name.

    Raises:
        ConfigError: no such demo.
    """
    if name not in DEMOS:
        raise ConfigError(f'there is no demo "{name}".   Demos: {", ".join(DEMOS)}.{did_you_mean(name, DEMOS)}')
    return DEMOS[name]


def demo_table(source: str) -> Table:
    """The table of ``demo:NAME``."""
    name = source.removeprefix(PREFIX)
    table = open_table(demo(name).rows())
    table.name = name
    return table
