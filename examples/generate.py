"""Write small made-up data for the examples, to try them before your own: ``python examples/generate.py FOLDER``.

Every file is one a spreadsheet, a database or a camera could have written, with the gaps such files have.
"""

import csv
import json
import sys
from datetime import date, timedelta
from pathlib import Path

import numpy as np
from PIL import Image

from mapsto.midi import write_midi
from mapsto.note import Note

SEED = 0


def reviews(folder: Path, rng: np.random.Generator, rows: int = 240) -> None:
    """Texts with a label, their author and an age that is sometimes missing."""
    said = {"pos": ["lovely", "warm", "great", "moving"], "neg": ["dull", "cold", "poor", "slow"]}
    plain = ["the", "a", "film", "plot", "actor", "scene", "was", "and", "it", "felt"]
    with (folder / "reviews.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "text", "label", "author", "age"])
        for i in range(rows):
            label = "pos" if rng.random() < 0.5 else "neg"
            words = [*rng.choice(plain, int(rng.integers(4, 30))), *rng.choice(said[label], 2)]
            rng.shuffle(words)
            age = "" if rng.random() < 0.1 else int(rng.integers(18, 80))
            writer.writerow([i, " ".join(words) + ".", label, f"author {i % 60}", age])


def films(folder: Path, rng: np.random.Generator, rows: int = 240) -> None:
    """Texts with any number of labels, parted by ``|``; quoted, so that "none of them" is ``""`` and not a gap."""
    of = {"war": ["soldier", "front"], "love": ["wedding", "kiss"], "crime": ["murder", "police"]}
    plain = ["a", "story", "about", "life", "in", "town"]
    with (folder / "films.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerow(["plot", "genres"])
        for _ in range(rows):
            genres = [g for g in of if rng.random() < 0.4]
            words = [*rng.choice(plain, int(rng.integers(4, 12))), *(rng.choice(of[g]) for g in genres)]
            rng.shuffle(words)
            writer.writerow([" ".join(words), "|".join(genres)])


def tags(folder: Path, rng: np.random.Generator, rows: int = 200) -> None:
    """Lists of words with a tag for each."""
    kind = {"cat": "noun", "dog": "noun", "house": "noun", "runs": "verb", "sleeps": "verb", "red": "adjective"}
    with (folder / "tags.jsonl").open("w", encoding="utf-8") as file:
        for _ in range(rows):
            words = rng.choice(list(kind), int(rng.integers(2, 9))).tolist()
            file.write(json.dumps({"words": words, "tags": [kind[w] for w in words]}) + "\n")


def peptides(folder: Path, rng: np.random.Generator, rows: int = 240) -> None:
    """Short strings with a label; some occur twice."""
    with (folder / "peptides.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["sequence", "label"])
        for i in range(rows):
            active = i % 2
            letters = "KKRRLLWAGIF" if active else "DDEESSGANTP"
            sequence = "".join(rng.choice(list(letters), int(rng.integers(8, 25))))
            for _ in range(1 + (i % 20 == 0)):
                writer.writerow([sequence, "active" if active else "other"])


def houses(folder: Path, rng: np.random.Generator, rows: int = 300) -> None:
    """Numbers and categories with gaps, and a price."""
    with (folder / "houses.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["area", "rooms", "town", "price"])
        for _ in range(rows):
            area, rooms = rng.uniform(30, 200), int(rng.integers(1, 8))
            town = str(rng.choice(["Aachen", "Bonn", "Celle"]))
            price = 3000 * area + (90_000 if town == "Bonn" else 0) + rng.normal(0, 15_000)
            cells = [f"{area:.1f}", "NA" if rng.random() < 0.2 else rooms, "" if rng.random() < 0.1 else town]
            writer.writerow([*cells, round(price)])


def photos(folder: Path, rng: np.random.Generator, each: int = 60) -> None:
    """A folder a label, with pictures of several sizes."""
    for label in ("lying", "standing"):
        (folder / "photos" / label).mkdir(parents=True, exist_ok=True)
        for i in range(each):
            height, width = rng.integers(18, 30, 2)
            pixels = rng.integers(0, 90, (height, width, 3)).astype(np.uint8)
            if label == "lying":
                pixels[int(rng.integers(2, height - 4)) :][:3] = 230
            else:
                pixels[:, int(rng.integers(2, width - 4)) :][:, :3] = 230
            Image.fromarray(pixels).save(folder / "photos" / label / f"{i:03}.png")


def faces(folder: Path, rng: np.random.Generator, each: int = 60) -> None:
    """A folder a label, with grey pictures of one size: round faces that smile or do not."""
    row, column = np.mgrid[:16, :16]
    for label in ("calm", "smiling"):
        (folder / "faces" / label).mkdir(parents=True, exist_ok=True)
        for i in range(each):
            top, left, size = rng.uniform(7, 9), rng.uniform(7, 9), rng.uniform(5, 7)
            far = np.hypot(row - top, column - left)
            shade = np.where(far < size, rng.uniform(150, 250), 20.0)
            for side in (-2.5, 2.5):
                shade[np.hypot(row - top + 2, column - left + side) < 1] = 40
            bend = 0.25 * (column - left) ** 2 if label == "smiling" else 0.0
            shade[(np.abs(row - top - 3 + bend) < 0.6) & (np.abs(column - left) < 3)] = 40
            pixels = np.clip(shade + rng.normal(0, 6, shade.shape), 0, 255)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / "faces" / label / f"{i:03}.png")


def vowels(folder: Path, rng: np.random.Generator, rows: int = 240) -> None:
    """Series of three channels and their speaker; a sample may be missing."""
    with (folder / "vowels.jsonl").open("w", encoding="utf-8") as file:
        for i in range(rows):
            speaker = i % 3
            turn = (0.3 + 0.25 * speaker) * np.arange(int(rng.integers(8, 24))) + rng.uniform(0, 6)
            wave = np.stack([np.sin(turn), np.cos(turn), np.sin(2 * turn)], 1) + rng.normal(0, 0.1, (len(turn), 3))
            frames = [[None if rng.random() < 0.02 else round(float(x), 3) for x in frame] for frame in wave]
            file.write(json.dumps({"frames": frames, "speaker": f"speaker {speaker + 1}"}) + "\n")


def visits(folder: Path, rng: np.random.Generator, rows: int = 240) -> None:
    """Measurements at irregular dates: a fall is fast or slow."""
    with (folder / "visits.jsonl").open("w", encoding="utf-8") as file:
        for i in range(rows):
            days = np.cumsum(rng.integers(1, 30, int(rng.integers(4, 12))))
            level = 100 * np.exp(-days / (40 if i % 2 else 160)) + rng.normal(0, 2, len(days))
            dates = [str(np.datetime64("2024-01-01") + int(d)) for d in days]
            row = {"level": [round(float(x), 2) for x in level], "date": dates, "course": "fast" if i % 2 else "slow"}
            file.write(json.dumps(row) + "\n")


def phrases(folder: Path, rng: np.random.Generator, rows: int = 240) -> None:
    """Short English sentences with their Spanish ones, in two columns."""
    who = {"the cat": "el gato", "the dog": "el perro", "a girl": "una niña", "my friend": "mi amigo"}
    does = {"sees": "ve", "wants": "quiere", "eats": "come", "buys": "compra"}
    what = {"an apple": "una manzana", "the bread": "el pan", "two fish": "dos peces", "the house": "la casa"}
    when = {"": "", "today": "hoy", "every day": "cada día", "at night": "de noche", "again": "otra vez"}
    with (folder / "phrases.tsv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter="\t")
        writer.writerow(["english", "spanish"])
        for _ in range(rows):
            chosen = [list(words.items())[int(rng.integers(len(words)))] for words in (who, does, what, when)]
            writer.writerow([" ".join(pair[side] for pair in chosen if pair[side]) for side in (0, 1)])


def tales(folder: Path, rng: np.random.Generator, lines: int = 400) -> None:
    """A text of many lines, read whole."""
    who, does, where = ["A king", "The fox", "One child"], ["walked", "slept", "sang"], ["in the wood", "by the sea"]
    with (folder / "tales.txt").open("w", encoding="utf-8") as file:
        for _ in range(lines):
            file.write(" ".join(str(rng.choice(words)) for words in (who, does, where)) + ".\n")


def tunes(folder: Path, rng: np.random.Generator, pieces: int = 12) -> None:
    """A folder of MIDI files: scales up and down, in thirds."""
    (folder / "tunes").mkdir(exist_ok=True)
    for piece in range(pieces):
        first = int(rng.integers(48, 72))
        steps = np.cumsum(rng.choice([-2, 2, 1, -1], 40))
        notes = [Note(25 * i, 25, int(first + step + third)) for i, step in enumerate(steps) for third in (0, 4)]
        write_midi(folder / "tunes" / f"{piece}.mid", notes)


def sales(folder: Path, rng: np.random.Generator, days: int = 200) -> None:
    """A number a row: three shops, a week's rhythm, slow growth, a few days without a number."""
    with (folder / "sales.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["day", "shop", "sold"])
        for day in range(days):
            for shop, size in (("north", 900.0), ("harbour", 120.0), ("station", 30.0)):
                week = 1 + 0.3 * np.sin(2 * np.pi * day / 7) + 0.001 * day
                sold = "" if rng.random() < 0.01 else f"{size * week * np.exp(0.05 * rng.normal()):.1f}"
                writer.writerow([date(2024, 1, 1) + timedelta(day), shop, sold])


def tracks(folder: Path, rng: np.random.Generator, storms: int = 40) -> None:
    """Where a storm was, and where it was next: latitude and longitude, turning to the right."""
    with (folder / "tracks.jsonl").open("w", encoding="utf-8") as file:
        for storm in range(storms):
            turn = np.cumsum(0.1 + 0.05 * rng.normal(size=12))
            step = np.stack([np.sin(turn), -np.cos(turn)], 1) * rng.uniform(0.5, 1.5)
            track = (np.array([15.0, -50.0]) + 5 * rng.normal(size=2) + np.cumsum(step, 0)).round(2)
            for cut in range(3, 10):
                row = {"storm": f"storm {storm}", "track": track[:cut].tolist(), "next": track[cut : cut + 3].tolist()}
                file.write(json.dumps(row) + "\n")


DATA = (reviews, films, tags, peptides, houses, photos, vowels, visits, phrases, tales, tunes, sales, tracks, faces)


def write(folder: Path) -> None:
    """All of it; the same bytes every time."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, one in enumerate(DATA):
        one(folder, np.random.default_rng((SEED, number)))


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
