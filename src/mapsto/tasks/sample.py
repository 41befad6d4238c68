"""The verb ``sample``: sequences drawn from a model, shown as they are written."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from rich.console import Console
from rich.text import Text
from torch import Tensor

from mapsto.errors import ConfigError
from mapsto.midi import write_midi
from mapsto.models.search import Sample, Strategy, Written, search
from mapsto.models.vae import VAE
from mapsto.music import Music
from mapsto.stream import entropy
from mapsto.tasks.imagined import imagined, plain
from mapsto.tasks.pictures.text import visible
from mapsto.tasks.predict import write_rows
from mapsto.tasks.run import Run, load
from mapsto.tasks.written import written
from mapsto.vocabulary import BEGIN, UNKNOWN, Vocabulary

__all__ = ["continued", "sample"]

TOKENS = 500  # that a language model writes, unless told otherwise
SECOND = 400  # tokens of music: more than a second of most music has
FILES = (".txt", ".jsonl", ".csv", ".parquet")


def sample(
    run: Path,
    *,
    given: str = "",
    between: tuple[str, str] | None = None,
    spread: float = 0.0,
    count: int = 0,
    tokens: int = 0,
    seconds: float = 0.0,
    how: Sample | None = None,
    until: Sequence[str] = (),
    out: Path | None = None,
    device: str = "auto",
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """Draw sequences, and print or write them.

    Args:
        run: the run folder.
        given: what a map is asked, or what a language model goes on from.
        between: of an autoencoder, two rows: what lies between their z is said, evenly from one to the other.
        spread: of an autoencoder, how far from the row's z new ones are drawn, in deviations of all z; 0: as its belief has it.
        count: how many to draw; 0: one, of an autoencoder 16.
        tokens: the most that are written; 0: 500 for a language model, else what training rows have.
        seconds: how long music is to be; 0: as many tokens as there are.
        how: how tokens are drawn.
        until: texts that end a sequence.
        out: ``.txt``, ``.jsonl``, ``.csv`` or ``.parquet``; printed if not given.
        device: where to compute.
        console: where to print; None prints nothing.

    Returns:
        One dict a sequence: its text under the target's name, ``log_probability`` in nats, and ``reason``: what ended
        it (end, limit, stop).
    """
    if count < 0 or tokens < 0:
        raise ConfigError(f"{count} sequences of {tokens} tokens: expected 0 (as usual) or more, of 0 or more tokens")
    loaded, how = load(run, device=device), how or Sample()
    if isinstance(loaded.model, VAE):
        return imagined(loaded, given, between, count or 16, tokens, how, out, console, spread)
    if spread:
        raise ConfigError(f"--spread is for the latent space of an autoencoder, and {run} has none.   Leave it out")
    if between is not None:
        raise ConfigError(
            f"--between is a path in the latent space of an autoencoder, and {run} has none.   Leave it out"
        )
    count = count or 1
    output = written(loaded.model)
    if isinstance(output.vocabulary, Music):
        return _play(loaded, output.vocabulary, given, count, tokens, seconds, how, out, console)
    if seconds:
        raise ConfigError(f"--seconds is for music, and {run} writes {output.vocabulary.kind}.   Say --tokens")
    if out is not None and out.suffix not in FILES:
        raise ConfigError(f"--out {out}: {', '.join(FILES)} are written")
    stops = [_stop(output.vocabulary, text) for text in until]
    parted = output.vocabulary.kind in ("words", "symbols")
    gap = " " if parted and given and not given[-1].isspace() else ""
    shown = None
    if console is not None and not console.stderr and out is None and count == 1:
        shown = _Shown(output.vocabulary.decode, console)
        if not loaded.model.names:
            shown.text(given + gap)
    lines = continued(loaded, given, count=count, tokens=tokens, how=how, stops=stops, watch=shown)
    prefix = "" if loaded.model.names else given + gap
    rows = []
    for line in lines:
        said = output.vocabulary.decode(line.ids)
        said = prefix + said if isinstance(said, str) else said
        rows.append({output.name: said, "log_probability": line.log_probability, "reason": line.reason})
    if shown is not None:
        shown.end()
    if out is not None:
        _write(out, rows, output.name)
        if console is not None:
            console.print(Text(f"{len(rows)} sequences written to {out}"))
    elif console is not None and not console.stderr and shown is None:
        for number, row in enumerate(rows, 1):
            if number > 1:
                console.print(Text("---"))
            console.print(Text(visible(plain(row[output.name]), "\n\t")), soft_wrap=True)
    return rows


def _stop(vocabulary: Vocabulary, text: str) -> list[int]:
    """A text that ends a sequence, as ids.

    Raises:
        ConfigError: it is never written.
    """
    ids: list[int] = vocabulary.encode(text).tolist()
    if not ids or UNKNOWN in ids:
        raise ConfigError(
            f"--until {text!r}: expected a text of {vocabulary.kind} that occur in the training rows, or it never ends one"
        )
    return ids


def _play(
    run: Run,
    music: Music,
    given: str,
    count: int,
    tokens: int,
    seconds: float,
    how: Sample,
    out: Path | None,
    console: Console | None,
) -> list[dict[str, Any]]:
    """Music, each piece as a MIDI file: ``new.mid``, or ``new-1.mid``, ``new-2.mid`` and so on."""
    out = out or Path(f"{run.folder.name}.mid")
    if out.suffix.lower() not in (".mid", ".midi"):
        raise ConfigError(f"--out {out}: music is written as .mid")
    enough = round(seconds * music.grid.rate)
    lines = continued(
        run,
        given,
        count=count,
        tokens=tokens or (round(seconds * SECOND) if seconds else 0),
        how=how,
        enough=(lambda ids: music.steps(ids) >= enough) if seconds else None,
    )
    prompt = [] if run.model.names or not given else music.encode(Path(given)).tolist()
    rows = []
    for number, line in enumerate(lines, 1):
        notes = [note for note in music.decode([*prompt, *line.ids]) if not seconds or note.start < enough]
        path = out if count == 1 else out.with_name(f"{out.stem}-{number}{out.suffix}")
        try:
            write_midi(path, notes, music.grid)
        except OSError as error:
            raise ConfigError(f"--out {path}: {error.strerror or error}") from None
        last = max((note.start + note.length for note in notes), default=0) / music.grid.rate
        rows.append({"file": str(path), "notes": len(notes), "seconds": last, "log_probability": line.log_probability})
        if console is not None:
            console.print(Text(f"{path}: {len(notes)} notes, {last:.1f} s"))
    return rows


def continued(
    run: Run,
    given: str,
    *,
    count: int = 1,
    tokens: int = 0,
    how: Strategy,
    stops: Sequence[Sequence[int]] = (),
    enough: Callable[[list[int]], bool] | None = None,
    watch: Callable[[int, int], None] | None = None,
) -> list[Written]:
    """Sequences after a text (of a language model), or of what a map is asked.

    A language model writes on beyond its window by remembering the last half of it.

    Args:
        run: a loaded run.
        given: the text.
        count: how many.
        tokens: the most that are written; 0 as for :func:`sample`.
        how: a strategy.
        stops: ids that end a sequence.
        enough: asked after each window of a language model whether a row is long enough.
        watch: told of every row's tokens as they are written.
    """
    model, output = run.model, written(run.model)
    if model.names:
        if not given:
            raise ConfigError(f"what is to be mapped?   mapsto sample {run.folder} --from TEXT")
        feed = run.rows([given] * count)
        limit = tokens or output.longest
        draft = model.begin(feed.batch(feed.rows), count, limit + 1)
        prompt = torch.full((count, 1), BEGIN, device=run.device)
        found = search(model.write, draft, prompt, strategy=how, limit=limit, stops=stops, watch=watch)
        return [one for (one,) in found]
    prompt = output.vocabulary.encode(given).tolist() if given else []
    known = torch.tensor([[BEGIN, *prompt]] * count, device=run.device)
    return _long(run, known, tokens or TOKENS, how, stops, enough or (lambda ids: False), watch)


def _long(
    run: Run,
    known: Int[Tensor, "R T"],
    tokens: int,
    how: Strategy,
    stops: Sequence[Sequence[int]],
    enough: Callable[[list[int]], bool],
    watch: Callable[[int, int], None] | None,
) -> list[Written]:
    """Texts of a language model, window after window; all rows that go on are equally long."""
    model = run.model
    window = written(model).window or known.shape[1] + tokens
    lines = [Written([], 0.0, 0.0, "limit") for _ in known]
    most = max(map(len, stops), default=1) - 1  # tokens of a stop sequence that an earlier window may hold
    rows, done = list(range(len(known))), 0
    while rows and done < tokens:
        seen = known if known.shape[1] < window else known[:, -max(1, window // 2) :]
        limit = min(tokens - done, window - seen.shape[1] + 1)
        draft = model.begin({}, len(rows), seen.shape[1] + limit)
        again = replace(how, seed=entropy(how.seed, "window", done)) if done and isinstance(how, Sample) else how
        options: dict[str, Any] = {"rows": rows, "stops": stops, "watch": watch}
        options["begun"] = [lines[row].ids[-most:] if most else [] for row in rows]
        found = search(model.write, draft, seen, strategy=again, limit=limit, **options)
        for row, (one,) in zip(rows, found, strict=True):
            total = lines[row].log_probability + one.log_probability
            lines[row] = Written([*lines[row].ids, *one.ids], total, total, one.reason)
        going = [i for i, (one,) in enumerate(found) if one.reason == "limit" and not enough(lines[rows[i]].ids)]
        new = torch.tensor([found[i][0].ids for i in going], dtype=known.dtype, device=known.device)
        known = torch.cat([known[going], new.reshape(len(going), limit)], 1)
        rows, done = [rows[i] for i in going], done + limit
    return lines


class _Shown:
    """Prints a text as its tokens come; what is half a character waits for the other half."""

    def __init__(self, decode: Callable[[list[int]], Any], console: Console):
        self.decode, self.console = decode, console
        self.ids: list[int] = []
        self.shown = 0

    def __call__(self, row: int, token: int) -> None:
        self.ids.append(token)
        text = plain(self.decode(self.ids))
        if not text.endswith("\ufffd"):
            self.text(text[self.shown :])
            self.shown = len(text)

    def text(self, text: str) -> None:
        """Print it at once."""
        self.console.print(Text(visible(text, "\n\t")), end="", soft_wrap=True)
        sys.stdout.flush()

    def end(self) -> None:
        """Print what still waits, and end the line."""
        self.text(plain(self.decode(self.ids))[self.shown :])
        self.console.print()


def _write(out: Path, rows: list[dict[str, Any]], name: str) -> None:
    if out.suffix != ".txt":
        write_rows(out, rows)
        return
    try:
        out.write_text("\n---\n".join(plain(row[name]) for row in rows) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--out {out}: {error.strerror or error}") from None
