"""A finished run: load it, predict, evaluate, look."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mapsto import disk
from mapsto.data.folder import PICTURES
from mapsto.data.forecast import Presents
from mapsto.data.passage import Passages, is_text
from mapsto.data.source import Table
from mapsto.data.table import ENDINGS, open_table
from mapsto.errors import ConfigError, DataError, ModelFileError
from mapsto.models.mapper import Mapper
from mapsto.models.vae import VAE
from mapsto.tasks.autoencoder import bound
from mapsto.tasks.build import load_model
from mapsto.tasks.config import Config, read_config
from mapsto.tasks.dataset import Dataset, Measured, convert, prepare
from mapsto.tasks.dataset import tables as read_tables
from mapsto.tasks.feed import StoreFeed
from mapsto.tasks.future import in_windows, to_go_on
from mapsto.tasks.holes import filled
from mapsto.tasks.honesty import Trust, some, trust
from mapsto.tasks.judge import judge
from mapsto.tasks.latent import beliefs, p_values
from mapsto.tasks.latent import surprise as strange
from mapsto.tasks.readable import readable, told
from mapsto.tasks.schema import USUAL, Errors, Schema
from mapsto.tasks.score import answer
from mapsto.tasks.window import make_feed
from mapsto.tasks.written import alone, strategy, write, written
from mapsto.training.parallel import World

FILES = (*PICTURES, *ENDINGS, ".json")

__all__ = ["Run", "load"]


class Run:
    """A trained map and its folder.

    Attributes:
        folder: the run folder.
        model: the model, in eval mode.
        schema: which columns are mapped to which.
        config: every setting of the run.
    """

    def __init__(self, folder: Path, model: Mapper, schema: Schema, config: Config, dataset: Dataset | None = None):
        self.folder, self.model, self.schema, self.config = folder, model, schema, config
        self._dataset = dataset

    @property
    def result(self) -> dict[str, Any]:
        """What training ended with: metrics, intervals, baselines."""
        found: dict[str, Any] = disk.read_json(self.folder / "result.json")
        if not isinstance(found, dict) or not {"metrics", "intervals", "baselines"} <= found.keys():
            raise ModelFileError(f"{self.folder / 'result.json'} is of another version of mapsto")
        return found

    def dataset(self) -> Dataset:
        """The data the run was trained on, prepared again if need be."""
        if self._dataset is None:
            if not self.config.data.source:
                raise ConfigError(f"{self.folder} was trained on rows in memory.   Say which data to use")
            parts = Measured([part.settings() for part in self.model.sources.values()], self.model.output.settings())
            dataset = prepare(self.config, schema=self.schema, measured=parts)
            known = disk.read_json(self.folder / "environment.json")
            if not isinstance(known, dict) or dataset.facts() != known.get("data"):
                source = self.config.data.source
                raise DataError(
                    f"{source} has changed since {self.folder} was trained on it, so its test rows may be training rows.   "
                    f"Give new data of its own: mapsto evaluate {self.folder} FILE"
                )
            self._dataset = dataset
        return self._dataset

    def label(self, rows: NDArray[np.int64]) -> list[str] | None:
        """What the data call some rows of the store, by the column of ``--to`` or one of a usual name; None if by none."""
        tables = {table.name: table for table, _ in read_tables(self.config)}
        names: dict[str, list[Any]] = {}
        for name, table in tables.items():
            asked = [text.partition(":")[0] for text in self.config.data.targets]
            column = next(
                (c for c in [*asked, *(c for c in table.columns if c.lower() in USUAL)] if c in table.columns), ""
            )
            if not column or column in self.schema.sources:
                return None
            names[name] = table.column(column)
        places = self.dataset().places
        return [str(names[places[row][0]][places[row][1] - 1]) for row in rows.tolist()]

    def feed(self, part: str) -> StoreFeed:
        """Batches of "train", "val" or "test"."""
        data = self.dataset()
        return self._feed(data, data.split.rows(part))

    def _feed(self, data: Dataset, rows: NDArray[np.int64]) -> StoreFeed:
        t = self.config.train
        return make_feed(
            data.store, rows, self.model, tokens=t.batch_tokens, batch_rows=t.batch_rows, device=self.device
        )

    @property
    def autoencoder(self) -> VAE:
        """The model, if it is one.

        Raises:
            ConfigError: it is another.
        """
        model: Any = self.model
        if not isinstance(model, VAE):
            raise ConfigError(f"{self.folder} is no autoencoder.   mapsto train DATA --latent 10 trains one")
        return model

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    def evaluate(self, source: Any = None, *, world: World | None = None) -> dict[str, Any]:
        """Metrics with intervals beside simple models; on the run's own test part, or on other data.

        Args:
            source: other data with the same columns.
            world: processes to share the work; the first gets intervals and simple models too.

        Returns:
            ``{"metrics", "intervals", "baselines"}``, and ``"attention"`` if it is favor: how far each head is to be
            trusted, as :func:`mapsto.tasks.honesty.trust` says.
        """
        data = self.dataset() if source is None or self.config.data.source else None
        if source is None:
            test, groups = self.feed("test"), None if data is None else data.groups
        else:
            table = self._other(source)
            skip = self.config.data.skip_bad
            store, numbers, _ = convert(table, self.schema, self.model, targets=True, skip=skip)
            groups = None
            if self.config.data.group and self.config.data.group in table.columns:
                groups = np.array([str(g) for g in table.column(self.config.data.group)])[np.array(numbers) - 1]
            test = self.store_feed(store, targets=True)
        groups = None if groups is None else groups[test.owners]
        first = world is None or world.first
        found = None if isinstance(self.model, VAE) else answer(self.model, test, world=world)
        known = None if data is None else (self.feed("train"), self.feed("val"))
        result = judge(self.model, self.config, test, known, found, groups=groups, world=world)
        judged = self.trust(test) if first else []
        return result | ({"attention": [asdict(one) for one in judged]} if judged else {})

    def _other(self, source: Any) -> Table:
        """Other data to judge by: a text file is one text to a model that was trained on one text."""
        whole = not self.model.names and self.config.data.split == Passages.split and isinstance(source, str | Path)
        if whole and is_text(path := Path(source).expanduser()):
            return Passages.of(path, (0.0, 0.0, 1.0))
        return in_windows(self.config, open_table(source, root=self.config.data.root or None), "test")

    def trust(self, feed: StoreFeed) -> list[Trust]:
        """How far each head's favor attention is to be trusted, on some rows of a feed; empty for other kinds."""
        batch = some(feed, seed=self.config.seed)
        return [] if batch is None else trust(self.model, batch, seed=self.config.seed)

    def store_feed(self, store: Any, *, targets: bool) -> StoreFeed:
        """Batches of all rows of a store."""
        t = self.config.train
        rows = np.arange(len(store))
        return make_feed(
            store, rows, self.model, tokens=t.batch_tokens, batch_rows=t.batch_rows, device=self.device, targets=targets
        )

    def predict(
        self, values: Any, *, embed: bool = False, beam: int = 0, best: int = 1, surprise: bool = False
    ) -> list[dict[str, Any]]:
        """Predict.

        Args:
            values: a text, a path (a table, a picture, a folder of pictures), a list of values or of dicts, arrays, or a
                table of another library.
            embed: give the answer's vector instead.
            beam: how many beams a sequence is searched for with, 1 for greedy search; 0: as the run's settings say.
            best: how many sequences to give for each row.
            surprise: of an autoencoder, give also ``nll``, -log p of the row in nats, and ``p_value``: how often a row like
                those it was validated on is as strange.

        Returns:
            One dict a row: by target its value, and by ``TARGET.probability`` or ``TARGET.sigma`` how sure. Of a
            sequence, ``TARGET.log_probability`` in nats, and with several ``TARGET.best``: a list of (text, log p). Of a
            forecast, lists of H: the means, ``TARGET.sigma``, and ``TARGET.low`` and ``TARGET.high``, between which a
            number lies with a probability of 0.95; and the series' own name, where the data name it (data.group). Of an
            autoencoder, ``latent`` and ``latent.sigma``: the mean and the deviation of what is believed of z; of a table
            also its columns, with their holes filled (:func:`mapsto.tasks.holes.filled`).

        Raises:
            ConfigError: beams for a model that writes no sequences, or a language model, which continues texts.
        """
        if (beam or best > 1) and alone(self.model) is None:
            written(self.model)
        if surprise and not self.autoencoder.bound.drawn:
            raise ConfigError(f"{self.folder} is a plain autoencoder, and has no density to be surprised by")
        if not self.model.names:
            raise ConfigError("a language model maps from nothing.   mapsto sample RUN --from TEXT continues a text")
        table = isinstance(self.model, VAE) and self.schema.output.kind == "vector"
        feed = self.rows(values, targets=table or (surprise and isinstance(self.model, VAE)))
        if embed:
            return [{"embedding": row} for row in self._embed(feed)]
        if isinstance(self.model, VAE):
            latent = beliefs(self.model, feed)
            if surprise:
                latent = [row | more for row, more in zip(latent, self._strange(feed), strict=True)]
            if not table:
                return latent
            cells = [row.inputs[0] for row in self.schema.rows(self.table(values), Errors(1.0), targets=False)]
            return [row | z for row, z in zip(filled(self.model, feed, cells), latent, strict=True)]
        if alone(self.model) is not None:
            output = self.config.output.model_copy(update={"beam": max(beam or self.config.output.beam, best)})
            return told(self.model, write(self.model, feed, strategy(output), best=best))
        told_of = readable(self.model, answer(self.model, feed, targets=False), len(feed.rows))
        return [name | row for name, row in zip(self._called(values, len(told_of)), told_of, strict=True)]

    def _strange(self, feed: StoreFeed) -> list[dict[str, float]]:
        usual = np.array(self.result.get("usual", []))
        if not len(usual):
            raise ConfigError(f"{self.folder} knows of no validation rows to be compared with.   Train it anew")
        nats = strange(self.autoencoder, feed)
        return [{"nll": float(s), "p_value": float(p)} for s, p in zip(nats, p_values(nats, usual), strict=True)]

    def encode(self, values: Any) -> NDArray[np.float32]:
        """(N, Z): the mean of what an autoencoder believes of z of each row; the same bits at every call.

        Args:
            values: as for :meth:`predict`.
        """
        _ = self.autoencoder
        return np.array([row["latent"] for row in self.predict(values)], np.float32)

    def sample(self, count: int = 16, *, like: Any = None, spread: float = 0.0, seed: int = 0) -> Any:
        """New rows of an autoencoder: pictures (N, height, width, C) from 0 to 1, texts, or rows of a table as dicts.

        Args:
            count: N.
            like: a row: what is believed of it is drawn from, instead of the prior.
            spread: how far from it instead, in deviations of all z.
            seed: of the draws.
        """
        from mapsto.tasks.imagined import latent, said

        return said(self, latent(self, like, None, count, seed, spread), seed=seed)

    def between(self, one: Any, other: Any, count: int = 8) -> Any:
        """What an autoencoder says along the straight line from one row's z to another's, both ends among them."""
        from mapsto.tasks.imagined import latent, said

        return said(self, latent(self, None, (one, other), count, 0), mean=True)

    def _called(self, values: Any, rows: int) -> list[dict[str, Any]]:
        """What the data call the series that are forecast."""
        table, group = self.table(values), self.config.data.group
        if not isinstance(table, Presents) or group not in table.columns:
            return [{} for _ in range(rows)]
        return [{group: name} for name in table.column(group)]

    def rows(self, values: Any, *, targets: bool = False) -> StoreFeed:
        """What :meth:`predict` was given, as batches of inputs; of an autoencoder also with what is to be said again."""
        store, _, _ = convert(self.table(values), self.schema, self.model, targets=targets)
        return self.store_feed(store, targets=targets)

    @torch.inference_mode()
    def _embed(self, feed: StoreFeed) -> list[list[float]]:
        found: list[list[float]] = [[] for _ in feed.rows]
        for rows in feed.once():
            vectors = self.model.embed(feed.batch(rows)).float().cpu().tolist()
            for row, vector in zip(rows, vectors, strict=True):
                found[int(row)] = vector
        return found

    def table(self, values: Any) -> Table:
        """What :meth:`predict` was given, as a table; of series that go on from their own past, a row each."""
        found = self._table(values)
        return to_go_on(self.config, self.schema.inputs[0].name, found) if self.schema.inputs else found

    def _table(self, values: Any) -> Table:
        root = self.config.data.root or None
        columns = self.schema.sources
        if isinstance(values, str | Path) and _is_file(values):
            path = Path(values).expanduser()
            if path.is_file() and path.suffix.lower() in PICTURES and len(columns) == 1:
                return open_table([{columns[0]: path.name}], root=path.parent)
            table = open_table(path, root=root)
            return self._rename(table)
        if isinstance(values, str):
            if re.fullmatch(r"\S+\.[A-Za-z]{2,7}(\.gz)?", values) and Path(values).suffix.lower() in FILES:
                open_table(values)  # a file that is not there: says so, and what there is
            values = [values]
        if isinstance(values, Sequence) and values and not isinstance(values[0], Mapping):
            if len(columns) != 1:
                row = ", ".join(f'"{column}": ...' for column in columns)
                raise DataError(f"a row needs {', '.join(columns)}: give it as {{{row}}}, or name a file")
            return open_table({columns[0]: list(values)}, root=root)
        if isinstance(values, np.ndarray | torch.Tensor) and len(columns) == 1:
            return open_table({columns[0]: values}, root=root)
        return self._rename(open_table(values, root=root))

    def _rename(self, table: Table) -> Table:
        """A one-column file (lines of text, a folder of pictures) fits a model of one input under any name."""
        columns = self.schema.sources
        if len(columns) == 1 and columns[0] not in table.columns and table.columns[0] in ("text", "path"):
            return open_table({columns[0]: table.column(table.columns[0])}, root=table.root)
        return table


def _is_file(text: str | Path) -> bool:
    if isinstance(text, Path):
        return True
    try:
        return len(text) < 1000 and "\n" not in text and Path(text).expanduser().exists()
    except OSError:
        return False


def load(folder: str | Path, *, device: str = "auto") -> Run:
    """Open a run folder.

    Raises:
        ModelFileError: no run, an unfinished one, or damaged files.
    """
    from mapsto.tasks.environment import device as find

    path = Path(folder)
    if not path.is_dir():
        there = sorted(p.name for p in path.parent.iterdir() if p.is_dir()) if path.parent.is_dir() else []
        raise ModelFileError(f"there is no run folder {path}.   Here: {', '.join(there[:10]) or 'none'}")
    if not (path / "model").is_dir():
        steps = sorted(p.name for p in (path / "checkpoints").glob("step-*"))
        more = f"   Its last checkpoint is {steps[-1]}; go on with --resume --run {path.name}" if steps else ""
        raise ModelFileError(f"{path} holds no finished model.{more}")
    model, schema, _ = load_model(path / "model")
    config = read_config(path / "config.yaml")
    if isinstance(model, VAE):
        model.bound = bound(config.train, config.train.steps)
    return Run(path, model.to(find(device)), schema, config)
