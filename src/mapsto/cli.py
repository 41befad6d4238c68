"""The command line: each verb is a thin command over a function of :mod:`mapsto.tasks`, imported when it runs."""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mapsto.errors import ConfigError, MapstoError, did_you_mean

if TYPE_CHECKING:
    from rich.console import Console


__all__ = ["main"]

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help=(
        "Learn maps between collections: text, symbols, series, music, pictures and tables to labels, numbers, tags, "
        "text, music, forecasts; and autoencoders of pictures and texts.\n\n"
        "mapsto train --demo peptides                      a first run, in a minute\n\n"
        "mapsto train reviews.csv --from text --to label   your own data\n\n"
        "Settings go anywhere as section.key=value, such as train.lr=3e-4; mapsto config lists them."
    ),
)

Words = Annotated[list[str] | None, typer.Argument(metavar="DATA [section.key=value ...]", show_default=False)]
From = Annotated[
    list[str] | None, typer.Option("--from", metavar="COLUMN[:KIND]", help="column to map from; may be repeated")
]
To = Annotated[
    list[str] | None, typer.Option("--to", metavar="COLUMN[:KIND]", help="column to map to; may be repeated")
]
DemoName = Annotated[str, typer.Option("--demo", metavar="NAME", help="a data set that ships with mapsto")]
Json = Annotated[bool, typer.Option("--json", help="print one JSON object on standard output, nothing else there")]
Debug = Annotated[bool, typer.Option("--debug", help="show tracebacks")]
Device = Annotated[str, typer.Option("--device", metavar="NAME", help="auto, cpu, cuda, cuda:1, mps")]
Split = Annotated[str, typer.Option("--split", metavar="COLUMN", help="column that says train, val or test")]
Group = Annotated[str, typer.Option("--group", metavar="COLUMN", help="column whose equal values stay on one side")]
RunFolder = Annotated[
    Path, typer.Argument(metavar="RUN", help="a run folder, such as runs/reviews", show_default=False)
]


@app.command()
def train(
    words: Words = None,
    from_: From = None,
    to: To = None,
    demo: DemoName = "",
    run: Annotated[str, typer.Option("--run", metavar="NAME", help="name of the run folder in runs/")] = "",
    resume: Annotated[bool, typer.Option("--resume", help="go on with a run that was stopped")] = False,
    size: Annotated[str, typer.Option("--size", help="xs, s, m or l: width, depth, heads, learning rate")] = "",
    epochs: Annotated[float, typer.Option("--epochs", help="passes over the training rows")] = 0,
    time: Annotated[str, typer.Option("--time", metavar="10m", help="train for about so long")] = "",
    attention: Annotated[str, typer.Option("--attention", metavar="KIND", help="how heads mix values")] = "",
    latent: Annotated[
        int, typer.Option("--latent", metavar="N", help="a variational autoencoder with N latent dimensions")
    ] = 0,
    folds: Annotated[
        int, typer.Option("--folds", metavar="K", help="cross-validate: K runs, each tested on its fold")
    ] = 0,
    split: Split = "",
    group: Group = "",
    init: Annotated[str, typer.Option("--init", metavar="RUN", help="start from the weights of a run")] = "",
    device: Device = "",
    seed: Annotated[int, typer.Option("--seed", help="of everything random")] = -1,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Train a map on your data (or --demo NAME) and leave a run folder.

    DATA is a CSV, TSV, JSONL, Parquet, TXT or NPZ file, a folder of pictures or of MIDI files, or a run's config.yaml.
    """
    from mapsto.tasks.folds import train_folds
    from mapsto.tasks.runfolder import default_name
    from mapsto.tasks.train import train as work
    from mapsto.tasks.typed import configured, data

    settings = {
        "size": size,
        "train.epochs": epochs,
        "time": time,
        "model.attention": attention,
        "model.latent": latent,
        "data.folds": folds,
        "init": init,
        "device": device,
    } | ({"seed": seed} if seed >= 0 else {})
    if resume:
        source, typed = data(words)
        columns = any((from_, to, split, group, seed >= 0))
        if typed or columns or any(v not in ("", 0) for v in settings.values()):
            raise ConfigError("--resume goes on as the run began: leave out the other settings, or start a new run")
        name = run or (default_name(source or demo) if source or demo else "")
        if not name:
            raise ConfigError("which run?   mapsto train --resume --run NAME")
        from mapsto.tasks.config import Config

        _, result = work(Config(), name=name, resume=True, console=_console(as_json), tuned=_tune())
    else:
        config, name = configured(words, from_, to, demo, split, group, settings)
        act = train_folds if config.data.folds else work
        _, result = act(config, name=run or name, console=_console(as_json), tuned=_tune())
    if as_json:
        _print_json(result)


@app.command()
def check(
    words: Words = None,
    from_: From = None,
    to: To = None,
    demo: DemoName = "",
    split: Split = "",
    group: Group = "",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Read all the data and train nothing: kinds, counts, problems with their rows, what the model would see.

    With a run folder instead of data, hold its model to the laws (padding, batch, causality, ...).
    """
    from mapsto.tasks.check import check_data, check_run
    from mapsto.tasks.typed import configured, data

    console = _console(as_json)
    path = data(words)[0] if words else ""
    if path and (Path(path) / "model").is_dir():
        report = check_run(Path(path), console)
    else:
        config, _ = configured(words, from_, to, demo, split, group, {})
        report = check_data(config, console)
    if as_json:
        _print_json(report)


@app.command()
def evaluate(
    run: RunFolder,
    data: Annotated[str, typer.Argument(metavar="[DATA]", help="other data; by default the run's test part")] = "",
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE.html", help="write the report there")] = None,
    device: Device = "auto",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Metrics of a run with 95 % intervals, beside simple models."""
    from mapsto.tasks.evaluate import evaluate as work

    _tune()
    result = work(run, data or None, out=out, device=device, console=_console(as_json))
    if as_json:
        _print_json(result)


@app.command()
def predict(
    run: RunFolder,
    values: Annotated[
        list[str] | None,
        typer.Argument(metavar="INPUT ...", help="texts, rows as JSON, a file or a folder; - reads standard input"),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="write .jsonl, .csv or .parquet")] = None,
    embed: Annotated[bool, typer.Option("--embed", help="give the vector behind the answer")] = False,
    beam: Annotated[int, typer.Option("--beam", metavar="N", help="search a sequence with N beams; 1: greedy")] = 0,
    best: Annotated[int, typer.Option("--best", metavar="N", help="give the N best sequences")] = 1,
    surprise: Annotated[
        bool, typer.Option("--surprise", help="of an autoencoder: how strange each row is, in nats and as a p-value")
    ] = False,
    device: Device = "auto",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Predict for a text, a picture, a table, a folder, or standard input (a line each)."""
    from mapsto.tasks.predict import predict as work

    _tune()
    how: dict[str, Any] = {"embed": embed, "beam": beam, "best": best, "surprise": surprise, "device": device}
    rows = work(run, values or ["-"], out=out, console=_console(as_json), **how)
    if as_json:
        _print_json({"predictions": rows})


@app.command()
def sample(
    run: RunFolder,
    given: Annotated[str, typer.Option("--from", metavar="TEXT", help="what to go on from, or to be mapped")] = "",
    between: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--between", metavar="A B", help="of an autoencoder: a path from one picture, text or row to another"
        ),
    ] = None,
    spread: Annotated[
        float,
        typer.Option("--spread", metavar="S", help="with --from: how far z is moved, in deviations of all z", min=0),
    ] = 0.0,
    count: Annotated[int, typer.Option("-n", "--count", metavar="N", help="how many; of an autoencoder 16")] = 0,
    tokens: Annotated[int, typer.Option("--tokens", metavar="N", help="the most tokens of a sequence")] = 0,
    seconds: Annotated[float, typer.Option("--seconds", metavar="S", help="how long music is to be")] = 0.0,
    temperature: Annotated[float, typer.Option("--temperature", metavar="T", help="0: the likeliest token")] = 1.0,
    top_k: Annotated[int, typer.Option("--top-k", metavar="K", help="draw from the K likeliest; 0: from all")] = 0,
    top_p: Annotated[float, typer.Option("--top-p", metavar="P", help="draw from the likeliest of mass P")] = 1.0,
    min_p: Annotated[
        float, typer.Option("--min-p", metavar="P", help="leave out what has less than P of the likeliest's mass")
    ] = 0.0,
    until: Annotated[
        list[str] | None, typer.Option("--until", metavar="TEXT", help="end where this is written")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="of the draws")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="write .txt, .jsonl, .csv, .parquet, .mid, .png, .npz")
    ] = None,
    device: Device = "auto",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Draw new sequences from a model, printed as they are written; or pictures.

    mapsto sample runs/play --from "First Citizen:" --temperature 0.8

    mapsto sample runs/clothes-vae -n 64 --out new.png
    """
    from mapsto.models.search import Sample
    from mapsto.tasks.sample import sample as work

    _tune()
    how = Sample(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    more: dict[str, Any] = {"tokens": tokens, "seconds": seconds, "until": until or [], "device": device}
    of: dict[str, Any] = {"given": given, "between": between, "spread": spread, "count": count}
    written = work(run, **of, **more, how=how, out=out, console=_console(as_json))
    if as_json:
        _print_json({"samples": written})


@app.command()
def show(
    run: RunFolder,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="where to write; by default the run")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Pictures of a run: curves, answers, data as the model sees it, worst mistakes, attention; and report.html.

    Of a model that writes also what it looks at for each token; of a language model what surprises it, and samples.
    """
    from mapsto.tasks.show import show as work

    _tune()
    written = work(run, out=out, console=_console(as_json))
    if as_json:
        _print_json(written)


@app.command()
def convert(
    run: RunFolder,
    attention: Annotated[str, typer.Option("--attention", metavar="KIND", help="softmax, favor:256, window:128, ...")],
    normalise: Annotated[
        bool, typer.Option("--normalise", help="normalise queries and keys, too; takes --tune")
    ] = False,
    tune: Annotated[
        str, typer.Option("--tune", metavar="STEPS|SHARE", help="train on for 200 steps, or 5% of the run's own")
    ] = "",
    name: Annotated[str, typer.Option("--run", metavar="NAME", help="name of the new run folder, beside the old")] = "",
    device: Device = "auto",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Give a trained model another kind of attention: linear, windowed, exact, and back. The run stays as it is.

    mapsto convert runs/reviews --attention favor:256 --normalise --tune 5%
    """
    from mapsto.tasks.convert import convert as work

    console, tuned = _console(as_json), _tune()
    _, result = work(
        run, attention, normalise=normalise, tune=tune, name=name, device=device, console=console, tuned=tuned
    )
    if as_json:
        _print_json(result)


@app.command()
def config(
    key: Annotated[str, typer.Argument(metavar="[KEY]", help="one key, or a section")] = "",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Every setting with its default and meaning."""
    from mapsto.tasks.config import Config, keys, write_config

    if as_json:
        _print_json(Config().model_dump())
        return
    if not key:
        typer.echo(write_config(Config()), nl=False)
        return
    content, known = Config().model_dump(), keys()
    found = [k for k in known if k == key or k.startswith(f"{key}.")]
    if not found:
        raise ConfigError(f'there is no setting "{key}".{did_you_mean(key, known)}   mapsto config lists them all')
    for name in found:
        section, _, inner = name.partition(".")
        value = content[section][inner] if inner else content[section]
        typer.echo(f"{name}={json.dumps(value)}".ljust(40) + f"  # {known[name]}")


@app.command()
def doctor(as_json: Json = False, debug: Debug = False) -> None:
    """What this machine has, whether attention is right on it, and how fast it is."""
    from mapsto.tasks.doctor import doctor as work

    report = work(_tune(), _console(as_json))
    if as_json:
        _print_json(report)


@app.command()
def demo(as_json: Json = False, debug: Debug = False) -> None:
    """List the data sets that ship with mapsto."""
    from mapsto.tasks.demo import DEMOS

    if as_json:
        _print_json({name: {"maps": d.maps, "about": d.about} for name, d in DEMOS.items()})
        return
    for name, d in DEMOS.items():
        typer.echo(f"{name:<12}{d.maps:<22}{d.about}")
    typer.echo("\nmapsto train --demo NAME trains on one.")


def _console(as_json: bool) -> "Console":
    from rich.console import Console

    return Console(stderr=as_json, highlight=False)


def _tune() -> dict[str, Any]:
    from mapsto.process import tune_process

    return tune_process()


def _print_json(content: Any) -> None:
    if os.environ.get("RANK", "0") != "0":  # one of several processes that torchrun started: the first speaks
        return
    sys.stdout.write(json.dumps(content, ensure_ascii=False) + "\n")


def main() -> None:
    """Run a command; errors of the user's are one line, and their kind is the exit code."""
    debug = "--debug" in sys.argv
    try:
        if app(standalone_mode=False) == 130:  # typer makes this of Ctrl-C
            raise KeyboardInterrupt
    except MapstoError as error:
        _fail(str(error), error.code, debug)
    except KeyboardInterrupt:
        _fail("interrupted", 130, debug)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(141)
    except MemoryError:
        _fail("out of memory.   Lower train.batch_tokens or --size", 5, debug)
    except Exception as error:
        if hasattr(error, "exit_code") and hasattr(error, "format_message"):  # typer's usage errors
            _fail(_usage(error), 2, debug)
        if debug:
            raise
        _fail(f"{type(error).__name__}: {error}.   This is a fault of mapsto; --debug shows where", 1, debug)


def _usage(error: Any) -> str:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "mapsto"
    return f"{error.format_message()}   {path} --help tells more"


def _fail(message: str, code: int, debug: bool) -> None:
    if debug and sys.exc_info()[0] is not None:
        import traceback

        traceback.print_exc()
    clean = "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in message)
    try:
        sys.stderr.write(f"error: {clean}\n")
        sys.stderr.flush()
    except OSError:  # nobody reads any more; the code says it
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    sys.exit(code)
