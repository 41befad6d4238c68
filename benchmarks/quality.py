"""What the maps reach on real data, each beside its reference, on two CPU threads.

    python benchmarks/quality.py                 all rows (about half an hour)
    python benchmarks/quality.py peptides digits

Demos use the settings they ship with; the others are fetched by recipe (``benchmarks/recipe.py``) and skipped with the
reason where that is not possible. Copies of a row stay on one side of every split; seeds and splits are printed. The
references are scikit-learn's, fitted to the same training rows and scored on the same test rows.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.svm import SVC

import recipe
from mapsto.process import tune_process
from mapsto.tasks.config import Config, override
from mapsto.tasks.demo import DEMOS
from mapsto.tasks.environment import bfloat16_helps
from mapsto.tasks.run import Run
from mapsto.tasks.train import train

Row = dict[str, Any]


def fit(
    settings: dict[str, Any], source: Any = None, *, inputs: list[str], targets: list[str], demo: str = ""
) -> tuple[Run, Row]:
    """Train with two threads; gives the run and its result."""
    config = override(Config(), [f"{k}={json.dumps(v)}" for k, v in settings.items()])
    config.data.inputs, config.data.targets, config.threads = inputs, targets, 2
    if demo:
        config.data.source = f"demo:{demo}"
    with tempfile.TemporaryDirectory() as folder:
        return train(config, source, name="quality", root=Path(folder), console=Console(stderr=True, quiet=not VERBOSE))


def demo(name: str, seed: int = 0, **more: Any) -> tuple[Run, Row]:
    """Train a demo as it ships."""
    d = DEMOS[name]
    return fit(d.settings | {"seed": seed} | more, inputs=d.inputs, targets=d.targets, demo=name)


def parts(run: Run, rows: list[Row], target: str) -> tuple[list[Row], list[Row]]:
    """The run's own training and test rows."""
    split = run.dataset().split
    kept = run.dataset().store.columns["row"].values
    known = [rows[i] for i in kept]
    return [known[i] for i in np.flatnonzero(split.sides < 2)], [known[i] for i in split.rows("test")]


def accuracy(model: Any, train_x: Any, train_y: Any, test_x: Any, test_y: Any) -> float:
    """Of a scikit-learn model."""
    return float(model.fit(train_x, train_y).score(test_x, test_y))


def peptides() -> list[Row]:
    """Mean of three splits."""
    rows = DEMOS["peptides"].rows()
    letters = sorted({c for r in rows for c in r["sequence"]})

    def composition(some: list[Row]) -> np.ndarray:
        counts = np.array([[r["sequence"].count(c) for c in letters] for r in some], float)
        length = counts.sum(1, keepdims=True)
        return np.hstack([counts / length, length])

    found, forests, seconds = [], [], []
    for seed in (0, 1, 2):
        run, result = demo("peptides", seed)
        found.append(result["metrics"]["accuracy"])
        seconds.append(result["seconds"])
        a, b = parts(run, rows, "label")
        ya, yb = ([r["label"] for r in x] for x in (a, b))
        forests.append(accuracy(RandomForestClassifier(500, random_state=0), composition(a), ya, composition(b), yb))
    shown = ", ".join(f"{x:.3f}" for x in found)
    return [
        row(
            "peptides, mean of three splits",
            np.mean(found),
            0.905,
            max(seconds),
            120,
            f"seeds 0, 1, 2: {shown}; forest on composition and length {np.mean(forests):.3f}",
        )
    ]


def languages() -> list[Row]:
    """One split by article."""
    rows = DEMOS["languages"].rows()
    run, result = demo("languages")
    a, b = parts(run, rows, "language")
    model = make_pipeline(
        TfidfVectorizer(analyzer="char", ngram_range=(1, 3), sublinear_tf=True), LogisticRegression(C=100, max_iter=300)
    )
    beside = accuracy(
        model, [r["text"] for r in a], [r["language"] for r in a], [r["text"] for r in b], [r["language"] for r in b]
    )
    own = result["baselines"]["logistic"]["accuracy"]
    asked = max(0.95, beside, own)
    note = f"character 1- to 3-grams, logistic: scikit-learn {beside:.4f}, ours {own:.4f}"
    return [row("languages, 30 characters", result["metrics"]["accuracy"], asked, result["seconds"], 120, note)]


def digits() -> list[Row]:
    """Mean of three splits: one test part has but 180 rows."""
    data = DEMOS["digits"].rows()
    rows = [{"x": x.ravel() / 255, "y": y} for x, y in zip(data["image"], data["digit"], strict=True)]
    found, machines, seconds = [], [], []
    for seed in (0, 1, 2):
        run, result = demo("digits", seed)
        found.append(result["metrics"]["accuracy"])
        seconds.append(result["seconds"])
        a, b = parts(run, rows, "digit")
        machine = SVC(gamma="scale", C=10)
        machines.append(accuracy(machine, *([r[k] for r in x] for x, k in ((a, "x"), (a, "y"), (b, "x"), (b, "y")))))
    shown = ", ".join(f"{x:.4f}" for x in found)
    note = f"seeds 0, 1, 2: {shown}; SVM {np.mean(machines):.4f}"
    return [row("digits, mean of three splits", np.mean(found), 0.98, max(seconds), 60, note)]


def clothes() -> list[Row]:
    """The small demo; no number is asked of it."""
    _, result = demo("clothes")
    logistic = result["baselines"]["logistic"]["accuracy"]
    return [
        row(
            "clothes (1,000 / 300)",
            result["metrics"]["accuracy"],
            None,
            result["seconds"],
            None,
            f"logistic {logistic:.4f}",
        )
    ]


def fashion() -> list[Row]:
    """The published split; the last 2,000 of its training pictures validate."""
    rows = recipe.fashion_mnist()
    rows["split"] = ["train"] * 58_000 + ["val"] * 2_000 + ["test"] * 10_000
    precision = "bfloat16" if bfloat16_helps(torch.device("cpu")) else "float32"
    _, result = fit(FASHION | {"train.precision": precision}, rows, inputs=["image"], targets=["label"])
    logistic = result["baselines"]["logistic"]["accuracy"]
    return [
        row(
            "Fashion-MNIST 60,000 / 10,000",
            result["metrics"]["accuracy"],
            0.925,
            result["seconds"],
            600,
            f"{precision}; logistic on pixels {logistic:.4f}",
        )
    ]


def imdb() -> list[Row]:
    """80/20, copies on one side."""
    rows = recipe.imdb()
    run, result = fit(IMDB, rows, inputs=["text"], targets=["label"])
    a, b = parts(run, rows, "label")
    model = make_pipeline(
        TfidfVectorizer(ngram_range=(1, 2), min_df=3, sublinear_tf=True), LogisticRegression(C=10, max_iter=200)
    )
    beside = accuracy(model, *([r[k] for r in x] for x, k in ((a, "text"), (a, "label"), (b, "text"), (b, "label"))))
    return [
        row(
            "IMDB 25,000",
            result["metrics"]["accuracy"],
            0.89,
            result["seconds"],
            600,
            f"TF-IDF of words and pairs, logistic, whole texts {beside:.4f}",
        )
    ]


def vowels() -> list[Row]:
    """The published split (270 / 370)."""
    _, result = fit(VOWELS, recipe.japanese_vowels(), inputs=["series"], targets=["speaker"])
    logistic = result["baselines"]["logistic"]["accuracy"]
    return [
        row(
            "JapaneseVowels 270 / 370",
            result["metrics"]["accuracy"],
            0.96,
            result["seconds"],
            None,
            f"logistic on resampled values {logistic:.4f}",
        )
    ]


FASHION = {
    "data.split": "split",
    "model.dim": 64,
    "model.depth": 2,
    "model.heads": 4,
    "model.dropout": 0.0,
    "model.masking": 0.1,
    "input.flip": True,
    "input.shift": 1,
    "train.lr": 3e-3,
    "train.smoothing": 0.1,
    "train.batch_tokens": 3136,
    "train.average": 0.998,
    "time": "510s",
}
IMDB = {
    "data.shares": [0.76, 0.04, 0.2],
    "input.vocabulary": "words",
    "input.vocabulary_size": 20000,
    "input.limit": 320,
    "input.keep": "ends",
    "input.ngrams": 2,
    "model.dim": 64,
    "model.depth": 2,
    "model.heads": 4,
    "model.dropout": 0.3,
    "model.masking": 0.3,
    "train.lr": 1e-3,
    "train.epochs": 4,
    "train.smoothing": 0.1,
    "train.batch_tokens": 8192,
    "train.average": 0.998,
}
VOWELS = {
    "data.split": "split",
    "model.dim": 64,
    "model.depth": 2,
    "model.heads": 4,
    "train.epochs": 80,
    "train.lr": 2e-3,
    "train.batch_tokens": 512,
    "model.dropout": 0.2,
    "model.pool": "mean",
}


def row(what: str, reached: float, asked: float | None, seconds: float, limit: float | None, note: str) -> Row:
    """One line of the table."""
    return {"what": what, "reached": float(reached), "asked": asked, "seconds": seconds, "limit": limit, "beside": note}


def less(what: str, reached: float, asked: float | None, seconds: float, limit: float | None, note: str) -> Row:
    """One line of the table, where less is better."""
    return row(what, reached, asked, seconds, limit, note) | {"less": True}


def line(r: Row) -> str:
    """For a person."""
    asked, met, limit = "-", "", ""
    if r["asked"] is not None:
        reached = r["reached"] <= r["asked"] if r.get("less") else r["reached"] >= r["asked"]
        asked, met = f"{r['asked']:.4g}", "reached" if reached else "NOT reached"
    if r["limit"] is not None:
        limit = f" of {r['limit']:.0f}"
    spent = f"{r['seconds']:.0f} s{limit}"
    return f"{r['what']:<40} {r['reached']:.4f}   asked {asked:<7} {met:<12} {spent}   beside: {r['beside']}"


def main(about: str | None, claims: dict[str, Callable[[], list[Row]]], usual: list[str] | None = None) -> None:
    """The command of a script of claims: which of them, and whether training is shown.

    Args:
        about: the script's docstring.
        claims: by name.
        usual: those that are tried if none is named; all by default.
    """
    global VERBOSE
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*claims, []], default=usual or list(claims))
    parser.add_argument("--verbose", action="store_true", help="show training")
    arguments = parser.parse_args()
    VERBOSE = arguments.verbose
    print(f"torch {torch.__version__}, process {tune_process()}", file=sys.stderr)
    for name in arguments.names:
        started = time.perf_counter()
        try:
            for found in claims[name]():
                print(line(found), flush=True)
        except recipe.Unavailable as reason:
            print(f"{name}: skipped, {reason}", flush=True)
        print(f"{name}: {time.perf_counter() - started:.0f} s in all", file=sys.stderr)


CLAIMS: dict[str, Callable[[], list[Row]]] = {
    f.__name__: f for f in (peptides, languages, digits, clothes, vowels, imdb, fashion)
}
VERBOSE = False

if __name__ == "__main__":
    main(__doc__, CLAIMS)
