import itertools
import math
from dataclasses import dataclass, field

import pytest
import torch
from scipy import stats

from mapsto.errors import ConfigError, NonFiniteError
from mapsto.models.beam import Beam
from mapsto.models.search import Contrastive, Greedy, Sample, Written, search
from mapsto.stream import stream
from mapsto.vocabulary import BEGIN, END, UNKNOWN

A, B = 3, 4


@dataclass
class Prefixes:
    """A draft that is a list of all that was written, and is good for one use."""

    rows: list
    spent: bool = False

    def select(self, rows):
        assert not self.spent
        return Prefixes([self.rows[i] for i in rows.tolist()])


@dataclass
class Table:
    """A language whose next token depends on the whole prefix: a random tree, or what ``law`` says of a prefix."""

    size: int = 7
    seed: int = 0
    spread: float = 1.5
    law: object = None
    calls: list = field(default_factory=list)

    def logits(self, prefix):
        if self.law is not None:
            return torch.as_tensor(self.law(prefix), dtype=torch.float64)
        source = stream(self.seed, "tree", *prefix)
        return self.spread * torch.randn(self.size, generator=source, dtype=torch.float64)

    def answer(self, prefix):
        return torch.randn(5, generator=stream(self.seed, "answer", *prefix), dtype=torch.float64)

    def __call__(self, tokens, draft, *, valid=None):
        assert not draft.spent
        assert len(draft.rows) == len(tokens)
        draft.spent = True
        self.calls.append(tuple(tokens.shape))
        exists = torch.ones_like(tokens, dtype=torch.bool) if valid is None else valid
        logits = torch.full((*tokens.shape, self.size), torch.nan, dtype=torch.float64)
        answers = torch.full((*tokens.shape, 5), torch.nan, dtype=torch.float64)
        after = []
        for r, prefix in enumerate(draft.rows):
            for t in range(tokens.shape[1]):
                if exists[r, t]:
                    prefix = (*prefix, int(tokens[r, t]))
                    logits[r, t], answers[r, t] = self.logits(prefix), self.answer(prefix)
            after.append(prefix)
        return logits, answers, Prefixes(after)

    def log_p(self, prefix):
        return torch.log_softmax(self.logits(prefix), -1).tolist()


def write(table, prompts, **options):
    """Prompts as lists, padded with garbage."""
    longest = max(map(len, prompts))
    tokens = torch.tensor([[*p, *[table.size - 1] * (longest - len(p))] for p in prompts])
    valid = torch.arange(longest) < torch.tensor([len(p) for p in prompts])[:, None]
    return search(table, Prefixes([()] * len(prompts)), tokens, valid=valid, **options)


def one(table, prompt=(BEGIN,), **options):
    return write(table, [list(prompt)], **options)[0]


def retold(table, prompt, line):
    """Log p of a line, recomputed."""
    total, prefix = 0.0, tuple(prompt)
    for token in [*line.ids, *([END] if line.reason == "end" else [])]:
        total += table.log_p(prefix)[token]
        prefix = (*prefix, token)
    return total


def enumerate_all(table, limit, penalty, banned=(UNKNOWN, BEGIN)):
    """Every line there is, by falling score, by brute force."""
    letters = [v for v in range(table.size) if v not in (*banned, END)]
    lines = []
    for length in range(limit + 1):
        for ids in itertools.product(letters, repeat=length):
            ends = [END] * (length < limit)
            if length < limit or length == limit:
                whole = [*ids, *ends]
                log_p = sum(table.log_p((BEGIN, *whole[:i]))[token] for i, token in enumerate(whole))
                lines.append((log_p / len(whole) ** penalty, list(ids), log_p))
    return sorted(lines, reverse=True)


ALL = [
    Greedy(),
    Sample(),
    Sample(temperature=0.7, top_k=4, top_p=0.9, min_p=0.05, seed=3),
    Beam(3),
    Beam(5, penalty=0.0),
    Beam(4, penalty=-0.5),
    Contrastive(),
]
PROMPTS = [[BEGIN], [BEGIN, 3, 5], [BEGIN, 6], [BEGIN, 4, 4, 4, 3], [BEGIN, 3]]


@pytest.mark.parametrize("strategy", ALL, ids=str)
def test_the_log_probability_is_that_of_the_line_recomputed(strategy):
    for seed in range(20):
        table = Table(seed=seed)
        for prompt, (line, *_) in zip(PROMPTS, write(table, PROMPTS, strategy=strategy, limit=8), strict=True):
            assert line.log_probability == pytest.approx(retold(table, prompt, line), abs=1e-10)
            length = len(line.ids) + (line.reason == "end")
            penalty = getattr(strategy, "penalty", 0)
            assert line.score == pytest.approx(line.log_probability / length**penalty, abs=1e-12)
            assert not {UNKNOWN, BEGIN, END} & set(line.ids)
            assert line.reason == ("limit" if length == 8 and len(line.ids) == 8 else "end")


@pytest.mark.parametrize("strategy", ALL, ids=str)
def test_a_batch_of_ragged_prompts_is_written_as_one_by_one(strategy):
    best = 3 if isinstance(strategy, Sample | Beam) and not isinstance(strategy, Greedy) else 1
    for seed in range(10):
        table, limits = Table(seed=seed), [9, 4, 6, 9, 1]
        together = write(table, PROMPTS, strategy=strategy, limit=limits, best=best)
        for row, prompt in enumerate(PROMPTS):
            alone = write(table, [prompt], strategy=strategy, limit=limits[row], best=best, rows=[row])
            assert together[row] == alone[0]


@pytest.mark.parametrize("strategy", ALL, ids=str)
def test_what_a_row_is_told_does_not_depend_on_its_place(strategy):
    table, order = Table(seed=5), [3, 0, 4, 1, 2]
    straight = write(table, PROMPTS, strategy=strategy, limit=9)
    shuffled = write(table, [PROMPTS[i] for i in order], strategy=strategy, limit=9, rows=order)
    assert shuffled == [straight[i] for i in order]


def test_greedy_search_takes_the_likeliest_token_each_time():
    table = Table(size=9)
    for prompt, (line,) in zip(PROMPTS, write(table, PROMPTS, strategy=Greedy(), limit=12), strict=True):
        ids = list(prompt)
        while len(ids) - len(prompt) < 12:
            odds = table.log_p(tuple(ids))
            ids.append(max((v for v in range(9) if v not in (UNKNOWN, BEGIN)), key=odds.__getitem__))
            if ids[-1] == END:
                break
        written = ids[len(prompt) :]
        assert line.ids == [i for i in written if i != END]
        assert line.reason == ("end" if written[-1] == END else "limit")


@pytest.mark.parametrize("penalty", [0.0, 1.0, 0.6, 2.0, -1.0])
def test_a_beam_as_wide_as_the_tree_finds_the_best_there_is(penalty):
    """V = 4 and T = 4: with nothing but UNKNOWN kept back there are 2 letters and the end, 2^4 + … prefixes."""
    for seed in range(12):
        table = Table(size=4, seed=seed)
        wanted = enumerate_all(table, 4, penalty, banned=(UNKNOWN,))
        lines = one(table, strategy=Beam(64, penalty), limit=4, banned=(UNKNOWN,), best=5)
        assert [line.ids for line in lines] == [ids for _, ids, _ in wanted[:5]]
        assert [line.score for line in lines] == pytest.approx([score for score, _, _ in wanted[:5]])
        assert [line.log_probability for line in lines] == pytest.approx([log_p for _, _, log_p in wanted[:5]])


def test_a_wide_beam_gives_every_line_there_is():
    table = Table(size=5)
    wanted = enumerate_all(table, 3, 1.0)
    lines = one(table, strategy=Beam(100), limit=3, best=100)
    assert [line.ids for line in lines] == [ids for _, ids, _ in wanted]
    assert sum(math.exp(line.log_probability) for line in lines) < 1


def garden(prefix):
    """P(A) = .6, p(B) = .4; after A ten equal choices, after B one."""
    odds = [0.0] * 15
    written = prefix[1:]
    if not written:
        odds[A], odds[B] = 0.6, 0.4
    elif len(written) == 1:
        odds[5:15] = [0.1] * 10 if written == (A,) else [1.0] + [0.0] * 9
    else:
        odds[END] = 1.0
    return torch.tensor(odds, dtype=torch.float64).log()


@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_a_beam_leaves_the_garden_path(penalty):
    table = Table(size=15, law=garden)
    (greedy,) = one(table, strategy=Greedy(), limit=5)
    (line,) = one(table, strategy=Beam(4, penalty), limit=5)
    assert greedy.ids[0] == A
    assert line.ids == [B, 5]
    assert line.log_probability == pytest.approx(math.log(0.4))
    assert line.reason == greedy.reason == "end"


@pytest.mark.parametrize("penalty", [0.0, 1.0, -1.0])
def test_a_beam_of_one_is_greedy_search(penalty):
    for seed in range(10):
        table = Table(seed=seed)
        beam = write(table, PROMPTS, strategy=Beam(1, penalty), limit=7)
        greedy = write(table, PROMPTS, strategy=Greedy(), limit=7)
        assert [(b.ids, b.log_probability, b.reason) for (b,) in beam] == [
            (g.ids, g.log_probability, g.reason) for (g,) in greedy
        ]


def plain_beam(table, width, limit, penalty, *, patient=True):
    """Beam search without the greedy line, as textbooks have it. Returns lines by falling score."""
    running, done = [((), 0.0)], []
    for length in range(1, limit + 1):
        found = []
        for ids, total in running:
            odds = table.log_p((BEGIN, *ids))
            found += [((*ids, v), total + odds[v]) for v in range(END, table.size)]
        found.sort(key=lambda f: -f[1])
        for rank, (ids, total) in enumerate(found):
            if rank < width and (ids[-1] == END or length == limit):
                done.append((total / length**penalty, ids))
        running = [f for f in found if f[0][-1] != END][:width]
        if not patient and len(done) >= width:
            break
    return sorted(done, reverse=True)


@pytest.mark.parametrize("penalty", [0.0, 1.0, -0.5, 2.0])
@pytest.mark.parametrize("width", [2, 3])
def test_no_beam_falls_below_greedy_in_score(width, penalty):
    fell = 0
    for seed in range(150):
        table = Table(size=6, seed=seed, spread=2.5)
        (greedy,) = one(table, strategy=Greedy(penalty), limit=6)
        (line,) = one(table, strategy=Beam(width, penalty), limit=6)
        assert line.score >= greedy.score
        # The broken twin: without the greedy line, some do. With it, the best of both is found, and nothing else.
        plain, ids = plain_beam(table, width, 6, penalty)[0]
        fell += plain < greedy.score - 1e-9
        assert line.score == pytest.approx(max(plain, greedy.score))
        if plain > greedy.score + 1e-9:
            assert line.ids == [i for i in ids if i != END]
    assert fell > 0 or penalty == 0


@pytest.mark.parametrize("width", [2, 5])
def test_the_greedy_line_comes_back_after_every_beam_has_lost_it(width):
    """A (.4) then an even choice of 2·width tokens, then certainty; B (.35) then width tokens, then an early end (.5)."""

    def law(prefix):
        odds, written = torch.zeros(40, dtype=torch.float64), prefix[1:]
        if not written:
            odds[A], odds[B], odds[5] = 0.4, 0.35, 0.25
        elif len(written) == 1:
            odds[6 : 6 + (2 * width if written == (A,) else width)] = 1
        elif written[0] == A:
            odds[6 if len(written) < 4 else END] = 1
        else:
            odds[END], odds[6:] = 0.5, 0.5 / 34
        return (odds / odds.sum()).log()

    table = Table(size=40, law=law)
    (greedy,) = one(table, strategy=Greedy(), limit=6)
    table.calls.clear()
    (line,) = one(table, strategy=Beam(width, 0.0), limit=6)
    assert line == greedy
    assert plain_beam(table, width, 6, 0.0)[0][0] < greedy.score - 0.1
    assert {r for r, _ in table.calls} == {1, width, width + 1}
    assert len(line.ids) == 4  # no beam was worth going on when it was written


@pytest.mark.parametrize("penalty", [0.0, 1.0, -0.5, 2.0])
def test_a_search_that_stops_early_misses_nothing(penalty):
    """Against a beam that always goes on to the limit; one that stops when it is full does miss lines."""
    calls, missed = [], 0
    for seed in range(60):
        table = Table(size=6, seed=seed, spread=2.5)
        lines = one(table, strategy=Beam(4, penalty, reach=None), limit=12, best=2)
        wanted = plain_beam(table, 4, 12, penalty)
        hasty = plain_beam(table, 4, 12, penalty, patient=False)
        calls.append(len(table.calls))
        missed += hasty[0][0] < wanted[0][0] - 1e-9
        (greedy,) = one(table, strategy=Greedy(penalty), limit=12)
        scores = [score for score, _ in wanted]
        if min(abs(greedy.score - score) for score in scores) > 1e-9:
            scores.append(greedy.score)
        assert [line.score for line in lines] == pytest.approx(sorted(scores, reverse=True)[:2])
    assert min(calls) < 12 or penalty > 1
    assert missed > 0 or penalty < 1


def test_lines_of_a_beam_are_told_apart_and_ranked():
    for seed in range(20):
        lines = one(Table(seed=seed), strategy=Beam(4), limit=6, best=4)
        scores = [line.score for line in lines]
        assert scores == sorted(scores, reverse=True)
        assert len({(tuple(line.ids), line.reason) for line in lines}) == 4


def test_a_short_reach_ends_a_search_sooner_and_never_below_greedy():
    asked = {}
    for reach in (0, 8, None):
        steps, scores = 0, []
        for seed in range(30):
            table = Table(seed=seed)
            calls = []

            def counted(tokens, draft, *, valid=None, table=table, calls=calls):
                calls.append(1)
                return table(tokens, draft, valid=valid)

            ((line,),) = search(
                counted, Prefixes([()]), torch.tensor([[BEGIN]]), strategy=Beam(4, 1.0, reach), limit=60
            )
            ((greedy,),) = search(table, Prefixes([()]), torch.tensor([[BEGIN]]), strategy=Greedy(1.0), limit=60)
            assert line.score >= greedy.score - 1e-12
            steps += len(calls)
            scores.append(line.score)
        asked[reach] = steps, sum(scores)
    assert asked[0][0] < asked[8][0] < asked[None][0]
    assert asked[0][1] <= asked[8][1] <= asked[None][1] + 1e-12


@pytest.mark.parametrize("strategy", [Greedy(), Sample(), Beam(4), Contrastive()], ids=str)
def test_the_end_can_be_reached_and_ends_a_line(strategy):
    def law(prefix):
        return [-50.0, -50.0, 9.0 if len(prefix) >= 4 else -9.0, 3.0, 2.0, 1.0]

    table = Table(size=6, law=law)
    (line,) = one(table, strategy=strategy, limit=50)
    assert line.reason == "end"
    assert len(line.ids) == 3
    assert len(table.calls) < 10  # and nothing is written beyond it


@pytest.mark.parametrize("strategy", ALL, ids=str)
def test_no_line_is_longer_than_its_limit(strategy):
    for line in [row[0] for row in write(Table(), PROMPTS, strategy=strategy, limit=[1, 2, 3, 4, 5], ends=())]:
        assert line.reason == "limit"
    lengths = [len(r[0].ids) for r in write(Table(), PROMPTS, strategy=strategy, limit=[1, 2, 3, 4, 5], ends=())]
    assert lengths == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("strategy", [Greedy(), Sample(seed=1), Beam(3), Beam(3, 0.0), Contrastive()], ids=str)
def test_a_stop_sequence_ends_a_line_and_stays_in_it(strategy):
    stops, met = [[4, 3], [5]], 0
    for seed in range(30):
        table = Table(seed=seed, spread=1)
        for prompt, (line, *_) in zip(
            PROMPTS, write(table, PROMPTS, strategy=strategy, limit=8, stops=stops), strict=True
        ):
            ended = [i for i in range(len(line.ids)) if line.ids[: i + 1][-2:] == [4, 3] or line.ids[i] == 5]
            assert ended == ([len(line.ids) - 1] if line.reason == "stop" else [])
            assert line.log_probability == pytest.approx(retold(table, prompt, line))
            met += line.reason == "stop"
    assert met > 20


def test_a_stop_sequence_cut_off_by_the_limit_has_stopped():
    table = Table(size=6, law=lambda prefix: [0, 0, 0, 9.0, 0, 0])
    assert one(table, strategy=Greedy(), limit=2, stops=[[3, 3]])[0].reason == "stop"
    assert one(table, strategy=Greedy(), limit=1, stops=[[3, 3]])[0].reason == "limit"
    # What stands in the prompt is not written.
    assert one(table, (BEGIN, 3), strategy=Greedy(), limit=3, stops=[[3, 3]])[0].ids == [3, 3]


def test_a_beam_with_stop_sequences_as_wide_as_the_tree_finds_the_best():
    for seed in range(10):
        table = Table(size=5, seed=seed)
        best = max(
            (retold(table, (BEGIN,), line) / len(line.ids), line.ids)
            for n in range(1, 5)
            for ids in itertools.product((3, 4), repeat=n)
            if [i for i in range(n - 1) if ids[i : i + 2] == (4, 4)] == ([n - 2] if ids[-2:] == (4, 4) else [])
            if ids[-2:] == (4, 4) or n == 4
            for line in [Written(list(ids), 0, 0, "stop")]
        )
        (line,) = one(table, strategy=Beam(64), limit=4, stops=[[4, 4]], ends=(), banned=(0, 1, 2))
        assert (line.score, line.ids) == (pytest.approx(best[0]), best[1])


def test_several_tokens_may_end_a_line():
    table = Table(seed=2, spread=1)
    for strategy in (Greedy(), Sample(), Beam(3), Contrastive()):
        lines = [row[0] for row in write(table, PROMPTS * 4, strategy=strategy, limit=20, ends=(END, 5, 6))]
        assert not {END, 5, 6} & {i for line in lines for i in line.ids}
        assert {line.reason for line in lines} == {"end"}


def test_equal_tokens_are_taken_by_their_lowest_id():
    table = Table(size=9, law=lambda prefix: [0.0] * 9)
    assert one(table, strategy=Greedy(), limit=4)[0].ids == []
    assert one(table, strategy=Greedy(), limit=4, ends=(), banned=(0, 1, 2))[0].ids == [3] * 4
    assert one(table, strategy=Sample(temperature=0), limit=4, ends=(), banned=(0, 1, 2, 3))[0].ids == [4] * 4
    lines = one(table, strategy=Beam(4), limit=2, ends=(), banned=(0, 1, 2), best=4)
    assert [line.ids for line in lines] == [[3, 3], [3, 4], [3, 5], [3, 6]]
    # Of equal p the answers decide; with alpha 0 nothing does.
    assert one(table, strategy=Contrastive(3, 0.0), limit=4, ends=(), banned=(0, 1, 2))[0].ids == [3] * 4


@pytest.mark.parametrize(
    "strategy", [Sample(), Sample(temperature=1.7, top_k=5), Sample(0.6, top_p=0.8), Sample(1.2, min_p=0.2)], ids=str
)
def test_frequencies_of_samples_are_those_of_the_warped_distribution(strategy):
    table, count = Table(size=9, seed=4, spread=0.7), 4000
    lines = one(table, strategy=strategy, limit=1, best=count)
    tokens = [line.ids[0] if line.ids else END for line in lines]
    # The warped distribution, in plain Python.
    p = {v: math.exp(x / strategy.temperature) for v, x in enumerate(table.log_p((BEGIN,))) if v >= END}
    p = {v: x / sum(p.values()) for v, x in p.items()}
    falling = sorted(p, key=lambda v: -p[v])
    kept = falling[: strategy.top_k or None]
    total = sum(p[v] for v in kept)
    kept = [v for i, v in enumerate(kept) if sum(p[w] for w in kept[:i]) < strategy.top_p * total]
    kept = [v for v in kept if p[v] >= strategy.min_p * p[falling[0]]]
    total = sum(p[v] for v in kept)
    assert set(tokens) == set(kept)
    assert len(kept) > 2
    seen = [tokens.count(v) for v in kept]
    assert stats.chisquare(seen, [count * p[v] / total for v in kept]).pvalue > 0.01


def test_draws_of_a_row_are_its_own():
    table = Table(seed=1, spread=0.3)
    first, again = (write(table, [[BEGIN]] * 8, strategy=Sample(), limit=10) for _ in range(2))
    assert first == again
    assert len({tuple(line.ids) for (line,) in first}) > 4
    other = write(table, [[BEGIN]] * 8, strategy=Sample(seed=1), limit=10)
    assert first != other
    # The first of several samples is the one alone; more add to it.
    some = write(table, [[BEGIN]] * 8, strategy=Sample(), limit=10, best=3)
    assert [row[:1] for row in some] == first
    assert write(table, [[BEGIN]], strategy=Sample(), limit=10, rows=[6])[0] == first[6]


def test_a_temperature_towards_zero_is_greedy_search():
    for seed in range(10):
        table = Table(seed=seed)
        wanted = write(table, PROMPTS, strategy=Greedy(), limit=8)
        for temperature in (0.0, 5e-324, 1e-300, 1e-6):
            assert write(table, PROMPTS, strategy=Sample(temperature), limit=8) == wanted
    assert write(table, PROMPTS, strategy=Sample(1e4), limit=8) != wanted


def test_every_filter_at_its_tightest_is_greedy_search():
    for seed in range(10):
        table = Table(seed=seed)
        wanted = write(table, PROMPTS, strategy=Greedy(), limit=8)
        for strategy in (
            Sample(top_k=1),
            Sample(top_p=0.0),
            Sample(min_p=1.0),
            Contrastive(k=1),
            Contrastive(alpha=0.0),
        ):
            assert write(table, PROMPTS, strategy=strategy, limit=8) == wanted


@pytest.mark.parametrize(("k", "alpha"), [(4, 0.6), (2, 0.9), (50, 1.0), (3, 0.2)])
def test_contrastive_search_is_its_formula(k, alpha):
    differ = 0
    for seed in range(8):
        table = Table(size=9, seed=seed)
        rows = write(table, PROMPTS, strategy=Contrastive(k, alpha), limit=6)
        for prompt, (line,), (greedy,) in zip(
            PROMPTS, rows, write(table, PROMPTS, strategy=Greedy(), limit=6), strict=True
        ):
            ids, past = tuple(prompt), [table.answer(tuple(prompt[: i + 1])) for i in range(len(prompt))]
            while len(ids) - len(prompt) < 6 and (len(ids) == len(prompt) or ids[-1] != END):
                odds = table.log_p(ids)
                likely = sorted((v for v in range(9) if v >= END), key=lambda v: -odds[v])[:k]

                def value(v, ids=ids, past=past, odds=odds, table=table):
                    h = table.answer((*ids, v))
                    alike = max(float(torch.cosine_similarity(h, j, dim=0)) for j in past)
                    return (1 - alpha) * math.exp(odds[v]) - alpha * alike

                ids = (*ids, max(likely, key=value))
                past.append(table.answer(ids))
            assert line.ids == [i for i in ids[len(prompt) :] if i != END]
            differ += line.ids != greedy.ids
    assert differ > 5


def test_tokens_are_told_as_they_are_written():
    for strategy in (Greedy(), Sample(), Contrastive()):
        told, table = [], Table(seed=6)

        def watch(row, token, told=told, table=table):
            told.append((row, token, len(table.calls)))

        rows = write(table, PROMPTS, strategy=strategy, limit=7, rows=[10, 11, 12, 13, 14], watch=watch)
        for row, (line,) in enumerate(rows):
            assert [t for r, t, _ in told if r == 10 + row] == line.ids + [END] * (line.reason == "end")
        # Step by step, each row in turn.
        times = [calls for *_, calls in told]
        assert times == sorted(times)
        assert len(set(times)) > 2


def test_rows_that_are_done_leave_the_batch():
    def law(prefix):
        ends = 30.0 if len(prefix) > prefix[-1 if len(prefix) < 2 else 1] else -30.0
        return [0.0, 0.0, ends, 10.0, *[0.0] * 26]

    table = Table(size=30, law=law)
    prompts = [[BEGIN, n] for n in (4, 4, 5, 25)]
    for strategy in (Greedy(), Sample(), Beam(2), Contrastive(2, 0.01)):
        table.calls.clear()
        write(table, prompts, strategy=strategy, limit=30, ends=(END,))
        rows = [r for r, t in table.calls]
        assert rows[-1] == rows[1] // 4 or (isinstance(strategy, Beam) and rows[-1] <= rows[1] // 4 + 1)


def test_the_greedy_line_costs_a_row_only_while_it_is_in_no_beam():
    table = Table(size=15, law=garden)
    one(table, strategy=Beam(4), limit=5)
    assert {r for r, _ in table.calls} == {1, 4}


@pytest.mark.parametrize("strategy", [Greedy(), Sample(), Sample(top_p=0.5), Beam(3), Contrastive()], ids=str)
@pytest.mark.parametrize("flaw", [math.nan, math.inf])
def test_logits_that_are_not_finite_name_the_row(strategy, flaw):
    def law(prefix):
        logits = [0.0, 0.0, -9.0, 3.0, 2.0, 1.0, 0.0]
        if prefix[1:2] == (5,) and len(prefix) >= 4:
            logits[6] = flaw
        return logits

    with pytest.raises(NonFiniteError, match="row 7, token 3: its logits are NaN or infinite"):
        write(Table(law=law), [[BEGIN, 3], [BEGIN, 5]], strategy=strategy, limit=9, rows=[6, 7])


@pytest.mark.parametrize("strategy", [Greedy(), Sample(), Beam(3), Contrastive()], ids=str)
def test_a_row_that_cannot_go_on_is_named(strategy):
    law = lambda prefix: [0.0, 0.0, *[-math.inf] * 4] if len(prefix) > 1 else [0.0] * 6  # noqa: E731
    with pytest.raises(NonFiniteError, match="row 0, token 2: "):
        one(Table(size=6, law=law), strategy=strategy, limit=9, banned=(0, 1, 2))


@pytest.mark.parametrize(
    "strategy", [Sample(), Sample(temperature=1e-8), Sample(top_k=6), Beam(5), Contrastive(6)], ids=str
)
def test_a_token_of_no_probability_is_never_written(strategy):
    law = lambda prefix: [0.0, 0.0, -math.inf, 1.0, -math.inf, 0.5, -math.inf]  # noqa: E731
    for line in write(Table(law=law), [[BEGIN]] * 20, strategy=strategy, limit=6):
        assert set(line[0].ids) <= {3, 5}
        assert len(line[0].ids) == 6
        assert line[0].reason == "limit"


def test_no_prompts_give_no_lines():
    assert search(Table(), Prefixes([]), torch.zeros(0, 1, dtype=torch.int64), strategy=Beam(3), limit=4) == []


def test_nothing_is_learned_and_no_global_generator_moves():
    before = torch.random.get_rng_state()
    weight = torch.zeros(7, dtype=torch.float64, requires_grad=True)
    for strategy in ALL:
        write(Table(law=lambda prefix: weight), [[BEGIN]], strategy=strategy, limit=4)
    assert weight.grad is None
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"strategy": Greedy(), "banned": range(7)}, "search: all 7 tokens are banned"),
        ({"strategy": Greedy(), "banned": [9]}, "search: banned holds 9; expected ids from 0 to 6"),
        ({"strategy": Greedy(), "stops": [[3, 7]]}, "search: stops holds 7"),
        ({"strategy": Greedy(), "stops": [[]]}, "search: a stop sequence is empty"),
        ({"strategy": Greedy(), "ends": [-1]}, "search: ends holds -1"),
        ({"strategy": Greedy(), "limit": 0}, "search: a limit of 0 tokens; expected 1 or more"),
        ({"strategy": Greedy(), "limit": [3, 3]}, "search: 2 limits and 1 row numbers for a prompt of 1 rows"),
        ({"strategy": Greedy(), "best": 0}, "search: best=0"),
        ({"strategy": Greedy(), "best": 2}, "greedy search gives one"),
        ({"strategy": Contrastive(), "best": 2}, "contrastive search gives one"),
        ({"strategy": Beam(3), "best": 4}, "best=4 lines of a beam of width 3. Take width=4"),
        ({"strategy": Beam(3), "watch": print}, "Leave `watch` out"),
        ({"strategy": Sample(), "watch": print, "best": 2}, "watching a sample gives one"),
    ],
)
def test_what_cannot_be_is_refused(change, message):
    with pytest.raises(ConfigError) as error:
        one(Table(), **{"limit": 4, **change})
    assert message in str(error.value)


def test_prompts_that_cannot_be_are_refused():
    tokens = torch.tensor([[1, 3, 4]])
    for valid, message in {
        ((True, False, True),): "a gap",
        ((False, False, False),): "row 0 of the prompt is empty",
        ((True, True),): r"valid is \(1, 2\)",
    }.items():
        with pytest.raises(ConfigError, match=message):
            search(Table(), Prefixes([()]), tokens, strategy=Greedy(), limit=2, valid=torch.tensor(valid))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Sample(temperature=-1),
        lambda: Sample(temperature=math.nan),
        lambda: Sample(top_k=-1),
        lambda: Sample(top_p=1.5),
        lambda: Sample(min_p=-0.1),
        lambda: Beam(0),
        lambda: Beam(2, math.nan),
        lambda: Contrastive(0),
        lambda: Contrastive(2, 1.5),
    ],
)
def test_settings_that_cannot_be_are_refused(make):
    with pytest.raises(ConfigError, match="expected"):
        make()
