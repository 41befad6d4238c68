"""The same lines as the generation of transformers, on a tiny GPT-2 with random weights."""

import warnings

import pytest
import torch

from mapsto.models.search import Beam, Greedy, search
from mapsto.stream import stream

transformers = pytest.importorskip("transformers", reason="the peer that lines are compared with is not installed")

SIZE, END = 40, 2


class Prefixes:
    """A draft that is all that was written: the whole prefix is read anew each time."""

    def __init__(self, rows):
        self.rows = rows

    def select(self, rows):
        return Prefixes([self.rows[i] for i in rows.tolist()])


class Reader:
    """GPT-2 as a writer; a row at a time, without a cache, and without padding."""

    def __init__(self, model):
        self.model = model

    def __call__(self, tokens, draft, *, valid=None):
        logits = torch.full((*tokens.shape, SIZE), torch.nan)
        answers = torch.full((*tokens.shape, self.model.config.n_embd), torch.nan)
        rows = []
        for r, (before, new) in enumerate(zip(draft.rows, tokens, strict=True)):
            count = tokens.shape[1] if valid is None else int(valid[r].sum())
            rows.append([*before, *new[:count].tolist()])
            out = self.model(torch.tensor([rows[-1]]), output_hidden_states=True, use_cache=False)
            logits[r, :count], answers[r, :count] = out.logits[0, -count:], out.hidden_states[-1][0, -count:]
        return logits, answers, Prefixes(rows)


@pytest.fixture(scope="module", params=[5, 6])
def model(request):
    """Weights wide enough that tokens differ, from a stream of its own."""
    config = transformers.GPT2Config(
        vocab_size=SIZE,
        n_positions=64,
        n_embd=16,
        n_layer=2,
        n_head=2,
        bos_token_id=1,
        eos_token_id=END,
        pad_token_id=0,
    )
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        model = transformers.GPT2LMHeadModel(config).eval()
    source = stream(request.param, "test")
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.copy_(0.35 * torch.randn(weight.shape, generator=source))
        # An even push towards the end, so that it is reached in some rows.
        model.lm_head.weight[END] *= 1.2
        model.transformer.ln_f.bias.copy_(0.8 * model.lm_head.weight[END])
    return model


def generate(model, prompt, **options):
    """What the peer writes after one prompt: tokens up to the end, and the score of each line."""
    tokens = torch.tensor([prompt])
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        out = model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            do_sample=False,
            suppress_tokens=[0, 1],
            return_dict_in_generate=True,
            output_scores=True,
            **options,
        )
    lines = [row[len(prompt) :].tolist() for row in out.sequences]
    lines = [line[: line.index(END)] if END in line else line for line in lines]
    return lines, None if out.get("sequences_scores") is None else out.sequences_scores.tolist()


PROMPTS = [[1, *torch.randint(3, SIZE, (n % 5,), generator=stream(n, "prompt")).tolist()] for n in range(12)]


def write(model, **options):
    longest = max(map(len, PROMPTS))
    tokens = torch.tensor([[*p, *[0] * (longest - len(p))] for p in PROMPTS])
    valid = torch.arange(longest) < torch.tensor([len(p) for p in PROMPTS])[:, None]
    return search(Reader(model), Prefixes([[]] * len(PROMPTS)), tokens, valid=valid, limit=10, **options)


def test_greedy_search_writes_what_the_peer_writes(model):
    rows = write(model, strategy=Greedy())
    for prompt, (line,) in zip(PROMPTS, rows, strict=True):
        assert line.ids == generate(model, prompt, max_new_tokens=10)[0][0]
    assert len({tuple(line.ids) for (line,) in rows}) > 6


@pytest.mark.parametrize(("width", "penalty"), [(2, 0.0), (4, 1.0), (3, 0.6), (5, 2.0), (3, -0.5)])
def test_beam_search_writes_what_the_peer_writes(model, width, penalty):
    """The peer's exact setting is early_stopping="never"; its other two are heuristics that may miss the best line.

    Two lines a row, with their scores. The peer does not carry the greedy line along: where that is among our best
    two, the peer's lines are the rest.
    """
    rows = write(model, strategy=Beam(width, penalty, reach=None), best=2)
    greedy = write(model, strategy=Greedy(penalty))
    same, ended = 0, 0
    for prompt, lines, (likeliest,) in zip(PROMPTS, rows, greedy, strict=True):
        theirs, scores = generate(
            model,
            prompt,
            max_new_tokens=10,
            num_beams=width,
            num_return_sequences=2,
            length_penalty=penalty,
            early_stopping="never",
        )
        wanted = [(line, score) for line, score in zip(theirs, scores, strict=True)]
        if likeliest.ids not in theirs and likeliest.score > scores[-1]:
            wanted = sorted([*wanted, (likeliest.ids, likeliest.score)], key=lambda w: -w[1])[:2]
        else:
            same += 1
        assert [line.ids for line in lines] == [ids for ids, _ in wanted]
        assert [line.score for line in lines] == pytest.approx([score for _, score in wanted], abs=1e-5, rel=1e-6)
        ended += sum(line.reason == "end" for line in lines)
    assert same >= 8
    assert ended > 0 or penalty > 1


def test_the_peers_hasty_setting_does_miss_lines(model):
    """What the tests above would see if the search stopped as soon as the beam is full."""
    rows = write(model, strategy=Beam(4, 1.0, reach=None))
    hasty = [
        generate(model, prompt, max_new_tokens=10, num_beams=4, length_penalty=1.0, early_stopping=True)[1][0]
        for prompt in PROMPTS
    ]
    assert all(line.score >= score - 1e-5 for (line,), score in zip(rows, hasty, strict=True))
    assert any(line.score > score + 1e-3 for (line,), score in zip(rows, hasty, strict=True))
