"""Sequences written by a model: for the rows of a feed, and beside what is true of them."""

import json
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mapsto.errors import ConfigError
from mapsto.inputs.sequence import SequenceInput
from mapsto.models.mapper import Mapper
from mapsto.models.search import Beam, Greedy, Strategy, Written, search
from mapsto.outputs import TokenOutput
from mapsto.tasks.feed import StoreFeed
from mapsto.tasks.section import OutputConfig
from mapsto.training.backoff import Unigram, tuned_order
from mapsto.training.parallel import World
from mapsto.training.transcript import Transcript, copied, tokens
from mapsto.vocabulary import BEGIN, END, Vocabulary

__all__ = ["alone", "beside", "searched", "strategy", "texts", "transcript", "units", "write", "written"]

Values = dict[str, float | None]


def alone(model: Mapper) -> TokenOutput | None:
    """The output of a model that writes sequences; None if it does not."""
    return model.output if isinstance(model.output, TokenOutput) else None


def written(model: Mapper) -> TokenOutput:
    """The same.

    Raises:
        ConfigError: the model writes no sequences.
    """
    output = alone(model)
    if output is None:
        raise ConfigError(f"this model answers with {', '.join(model.output.targets)}, and writes no sequences")
    return output


def units(vocabulary: Vocabulary) -> str:
    """What the tokens of a vocabulary are called, many of them."""
    return "events" if vocabulary.kind == "music" else vocabulary.kind


def strategy(config: OutputConfig) -> Strategy:
    """How the settings have a sequence searched for."""
    return Beam(config.beam, penalty=config.penalty) if config.beam > 1 else Greedy()


def searched(config: OutputConfig) -> str:
    """The same in words."""
    return f"beam search with {config.beam} beams" if config.beam > 1 else "greedy search"


@torch.no_grad()
def write(
    model: Mapper, feed: StoreFeed, how: Strategy, *, best: int = 1, world: World | None = None
) -> list[list[Written]]:
    """The best sequences for every row of a feed, in the feed's own order of rows.

    Whole batches are dealt to the processes of a world, as in :func:`mapsto.tasks.score.answer`.
    """
    output = written(model)
    model.eval()
    world = world or World()
    place = {int(row): i for i, row in enumerate(feed.rows)}
    batches = feed.once()
    found: dict[int, list[list[dict[str, Any]]]] = {}
    for number in world.turns(len(batches)):
        rows = batches[number % len(batches)]
        prompt = torch.full((len(rows), 1), BEGIN, device=feed.device)
        draft = model.begin(feed.batch(rows), len(rows), output.longest + 1)
        answers = search(model.write, draft, prompt, strategy=how, limit=output.longest, best=best)
        if number < len(batches):
            found[number] = [[asdict(one) for one in row] for row in answers]
    lines: list[list[Written]] = [[] for _ in feed.rows]
    for part in world.share(json.dumps(found).encode()):
        for number, answered in json.loads(part).items():
            for row, ones in zip(batches[int(number)], answered, strict=True):
                lines[place[int(row)]] = [Written(**one) for one in ones]
    return lines


def transcript(model: Mapper, feed: StoreFeed, how: Strategy, *, world: World | None = None) -> Transcript:
    """What the model writes for every row of a feed, beside what is true."""
    output = written(model)
    said = [output.vocabulary.decode(best[0].ids) for best in write(model, feed, how, world=world)]
    return Transcript(said, true(output, feed))


def true(output: TokenOutput, feed: StoreFeed) -> list[Any]:
    """The targets of the rows of a feed, as they can be written: what the vocabulary does not hold is gone."""
    return output.vocabulary.decode_rows(*feed.take("target", feed.rows)["ids"].flat())


def beside(model: Mapper, train: StoreFeed, val: StoreFeed, test: StoreFeed) -> dict[str, Values]:
    """Simple writers: what follows how often, whatever the source; and, of texts to texts, the source itself."""
    output = written(model)
    known, chosen, asked = (texts(feed) for feed in (train, val, test))
    size = output.vocabulary.size
    best = tuned_order(known, chosen, size)
    lengths = np.diff(asked[1])
    told = output.vocabulary.decode_rows(asked[0], lengths)
    row = np.repeat(np.arange(len(told)), lengths + 1)  # the end of each, too
    characters = np.array([len(text) for text in told]) if isinstance(told[0], str) else None
    result: dict[str, Values] = {}
    for simple in [Unigram(size).fit(*known), best][: 1 + (best.order > 1)]:
        name = "unigram" if simple.order == 1 else f"{simple.order}-gram"
        result[name] = tokens(-simple.log_prob(*asked), None, row, len(told), characters=characters)
    sources = list(model.sources.items())
    if len(sources) == 1 and isinstance(sources[0][1], SequenceInput):
        name, part = sources[0][0], sources[0][1]
        source = part.vocabulary.decode_rows(*test.take(name, test.rows)["ids"].flat())
        copy = copied(source, true(output, test))
        if copy is not None:
            result["copy"] = copy()
    return result


def texts(feed: StoreFeed) -> tuple[NDArray, NDArray]:
    """The whole targets of a feed without their ends: ids, and where each text begins."""
    column = feed.columns["target"]["ids"]
    ids, lengths = column.take(feed.texts).flat()
    kept = ids != END
    ends = np.cumsum(kept)[np.cumsum(lengths) - 1]
    return ids[kept], np.concatenate([[0], ends])
