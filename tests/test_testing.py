"""Every law check has broken twins: kinds and models with one deliberate fault, which it must catch and name."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mapsto.attention.softmax import SoftmaxAttention, SoftmaxState
from mapsto.collection import Collection
from mapsto.errors import DataError
from mapsto.functional.attention import attend
from mapsto.inputs.image import ImageInput
from mapsto.inputs.sequence import SequenceInput
from mapsto.inputs.series import SeriesInput
from mapsto.inputs.vector import VectorInput
from mapsto.likelihoods.bernoulli import BernoulliLikelihood
from mapsto.likelihoods.categorical import CategoricalLikelihood
from mapsto.likelihoods.gaussian import GaussianLikelihood
from mapsto.models.mapper import Mapper
from mapsto.nn.dropout import Dropout
from mapsto.nn.initial import initialise
from mapsto.nn.pool import MeanPool, SumPool
from mapsto.nn.position import Position
from mapsto.nn.reader import Reader
from mapsto.nn.transformer import Encoder
from mapsto.outputs.items import ItemsOutput
from mapsto.outputs.vector import VectorOutput
from mapsto.ragged import Ragged
from mapsto.testing import (
    LawError,
    Verdict,
    check_attention,
    check_input,
    check_likelihood,
    check_model,
    check_output,
    require,
)
from mapsto.testing.verdict import Case, Report, tolerance
from mapsto.vocabulary import Bytes

DIM = 8


def broken(verdicts):
    """The laws that are broken, in order, each once."""
    return list(dict.fromkeys(v.law for v in verdicts if not v.passed))


def notes(verdicts):
    return "\n".join(v.note for v in verdicts if not v.passed)


# Attention


class Plain(SoftmaxAttention):
    """Exact attention written out, where a twin changes one thing."""

    honours = frozenset({"allowed", "bias"})

    def forward(self, q, k, v, *, valid=None, segment=None, allowed=None, causal=False, bias=None, decay=None):
        if segment is not None or decay is not None:
            raise NotImplementedError
        L, M = q.shape[2], k.shape[2]
        if not M:
            return q.new_zeros(*q.shape[:3], v.shape[3])
        seen = torch.ones(q.shape[0], 1, L, M, dtype=torch.bool)
        if valid is not None:
            k, v = self.clean(k, valid), self.clean(v, valid)
            seen = seen & valid[:, None, None]
        if allowed is not None:
            seen = seen & allowed
        if causal:
            seen = seen & torch.ones(L, M, dtype=torch.bool).tril()
        bad = ~q.detach().abs().amax(-1, keepdim=True).lt(1e18)
        logits = q.masked_fill(bad, 0) @ k.transpose(-1, -2) / q.shape[3] ** 0.5
        if bias is not None:
            logits = logits + bias(slice(0, L), slice(0, M))
        return self.mix(logits, seen, v)

    def clean(self, x, valid):
        return x.masked_fill(~valid[:, None, :, None], 0)

    def mix(self, logits, seen, v):
        blind = ~seen.any(-1, keepdim=True)
        return torch.softmax(logits.masked_fill(~(seen | blind), -torch.inf), -1).masked_fill(blind, 0) @ v


class MasksLogitsOnly(Plain):
    """NaN in a padded value leaks: 0 · NaN is NaN."""

    def clean(self, x, valid):
        return x


class AddsTenThousand(Plain):
    """-1e4 is not -∞: large logits see what is hidden, and a query with nothing to see gets a mean."""

    def mix(self, logits, seen, v):
        return torch.softmax(logits - 1e4 * ~seen, -1) @ v


class BlindGetsMean(Plain):
    def mix(self, logits, seen, v):
        return torch.softmax(logits.masked_fill(~seen, -1e30), -1) @ v


class BlindGetsNaN(Plain):
    def mix(self, logits, seen, v):
        return torch.softmax(logits.masked_fill(~seen, -torch.inf), -1) @ v


class OverTheBatch(Plain):
    """The normaliser sums over the rows of the batch."""

    def mix(self, logits, seen, v):
        weights = super().mix(logits, seen, torch.eye(v.shape[2], dtype=v.dtype).expand(*v.shape[:2], -1, -1))
        return weights / weights.sum((0, 3), keepdim=True).clamp(min=1e-3) @ v


class LooksAheadToStabilise(Plain):
    """The stabiliser is the largest logit of all, seen or not: harmless until exp underflows, then zeros."""

    def mix(self, logits, seen, v):
        weights = torch.exp(logits - logits.detach().amax((-2, -1), keepdim=True)).masked_fill(~seen, 0)
        return weights @ v / weights.sum(-1, keepdim=True).clamp(min=1e-30)


class LeaksTheFuture(Plain):
    def mix(self, logits, seen, v):
        return super().mix(logits, seen, v) + 1e-3 * v.mean(2, keepdim=True)


class ForgetsBias(SoftmaxAttention):
    def forward(self, q, k, v, *, bias=None, **seen):
        return super().forward(q, k, v, **seen)


class ForgetsDecay(SoftmaxAttention):
    def forward(self, q, k, v, *, decay=None, **seen):
        return super().forward(q, k, v, **seen) + (0 if decay is None else 0 * decay.sum())


class DropsWhatItCannotHonour(SoftmaxAttention):
    honours = frozenset({"allowed", "bias", "decay"})

    def forward(self, q, k, v, *, segment=None, **seen):
        return super().forward(q, k, v, **seen)


class IgnoresRaggedLengths(SoftmaxAttention):
    """The cache writes every place of a piece, whether it exists or not."""

    def step(self, q, k, v, state, *, valid=None, bias=None):
        return super().step(q, k, v, state, bias=bias)


class SelectsTwice(SoftmaxAttention):
    """Beams keep their keys, but not their values."""

    def start(self, like, capacity, **sizes):
        return HalfSelected.of(super().start(like, capacity, **sizes))

    def write(self, k, v, state, *, valid=None):
        return HalfSelected.of(super().write(k, v, state, valid=valid))


class HalfSelected(SoftmaxState):
    @classmethod
    def of(cls, state):
        return cls(state.keys, state.values, state.length, state.filled, state.even)

    def select(self, rows):
        chosen = SoftmaxState.select(self, rows)
        values = self.values[torch.arange(len(rows)) % len(self.values)]
        return HalfSelected(chosen.keys, values, chosen.length, chosen.filled, chosen.even)


torch.utils._pytree.register_pytree_node(
    HalfSelected,
    lambda s: ([s.keys, s.values, s.length], (s.filled, s.even)),
    lambda tensors, rest: HalfSelected(*tensors, *rest),
)


class ReadsAll(SoftmaxAttention):
    """Reading a memory takes the empty places of its cache too."""

    def read(self, q, state):
        return attend(q, state.keys, state.values, beta=self.beta)


class CountsCalls(SoftmaxAttention):
    """A buffer written in place in eval."""

    def __init__(self, beta=None):
        super().__init__(beta)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, q, k, v, **seen):
        self.calls += 1
        return super().forward(q, k, v, **seen)


class ScalesInPlace(SoftmaxAttention):
    def forward(self, q, k, v, **seen):
        if not q.requires_grad:
            q.mul_(1.0001)
        return super().forward(q, k, v, **seen)


class Unseeded(SoftmaxAttention):
    def forward(self, q, k, v, **seen):
        return super().forward(q + 1e-6 * torch.rand(()), k, v, **seen)


class Overflows(Plain):
    def mix(self, logits, seen, v):
        weights = torch.exp(logits).masked_fill(~seen, 0)
        return weights @ v / weights.sum(-1, keepdim=True).clamp(min=1e-30)


class ForgetsItsSettings(SoftmaxAttention):
    def __init__(self, beta=3.0):
        super().__init__(beta)

    def settings(self):
        return {"beta": 1.0}


class BranchesOnValues(SoftmaxAttention):
    def forward(self, q, k, v, **seen):
        return super().forward(q if q.sum() > 0 else q * 1.0, k, v, **seen)


class OneGraphALength(Plain):
    """A loop over the keys is unrolled: a graph for each length."""

    def mix(self, logits, seen, v):
        out = super().mix(logits, seen, v)
        for _ in range(min(v.shape[2], 9)):
            out = out + 0.0
        return out


TWINS = [
    (MasksLogitsOnly, "P"),
    (AddsTenThousand, "M"),
    (BlindGetsMean, "M"),
    (BlindGetsNaN, "M"),
    (OverTheBatch, "B"),
    (LooksAheadToStabilise, "C"),
    (LeaksTheFuture, "C"),
    (ForgetsBias, "M"),
    (ForgetsDecay, "M"),
    (DropsWhatItCannotHonour, "M"),
    (IgnoresRaggedLengths, "T"),
    (SelectsTwice, "T"),
    (ReadsAll, "T"),
    (CountsCalls, "D"),
    (ScalesInPlace, "D"),
    (Unseeded, "D"),
    (Overflows, "K"),
    (ForgetsItsSettings, "R"),
]


def test_an_honest_attention_passes_the_checks_its_twins_fail():
    require(check_attention(Plain, laws="PBSCTMKDR"))


@pytest.mark.parametrize(("twin", "law"), TWINS, ids=[t.__name__ for t, _ in TWINS])
def test_a_broken_attention_is_caught_and_named(twin, law):
    verdicts = check_attention(twin, laws=law, longest=64)
    assert broken(verdicts) == [law]
    with pytest.raises(LawError, match=rf"law {law}, .*: {twin.__name__}"):
        require(verdicts)


def test_an_attention_that_does_not_compile_is_caught():
    assert "G" in broken(check_attention(BranchesOnValues, laws="G"))


@pytest.mark.slow
def test_an_attention_that_needs_a_graph_for_each_length_is_caught():
    assert "G" in broken(check_attention(OneGraphALength, laws="G"))


def test_a_kind_may_name_the_law_it_cannot_obey():
    class Exempt(LeaksTheFuture):
        exempt = {"C": "a twin for this test"}

    verdicts = check_attention(Exempt, laws="C")
    require(verdicts)
    assert verdicts[0].note == "exempt: a twin for this test"
    assert verdicts[0].worst > 0


# Likelihoods


class WithoutTheHalf(GaussianLikelihood):
    def log_prob(self, theta, x):
        mu, log_sigma = self.split(theta)
        scaled = (x - mu) * torch.exp(-log_sigma)
        return -(scaled * scaled + log_sigma + 0.5 * np.log(2 * np.pi)).sum(-1)


class OverTheWrongAxis(CategoricalLikelihood):
    def log_prob(self, theta, x):
        return torch.log_softmax(theta, 0).gather(-1, x[..., None]).squeeze(-1)


class NaiveBernoulli(BernoulliLikelihood):
    """log(σ(θ)) is -∞ where σ underflows."""

    def log_prob(self, theta, x):
        p = torch.sigmoid(theta)
        return (x * p.log() + (1 - x) * (1 - p).log()).sum(-1)


class TakesAnything(BernoulliLikelihood):
    def check(self, values):
        pass


class RefusesWithoutTheRow(GaussianLikelihood):
    def check(self, values):
        if not torch.isfinite(values).all():
            raise DataError("some number is not finite")


class BiasedDraws(GaussianLikelihood):
    def sample(self, theta, stream):
        return super().sample(theta, stream) * 1.05


class UnseededDraws(GaussianLikelihood):
    def sample(self, theta, stream):
        return self.mean(theta) + self.sigma(theta) * torch.randn(self.mean(theta).shape, dtype=theta.dtype)


class SumsOverTheBatch(GaussianLikelihood):
    def log_prob(self, theta, x):
        found = super().log_prob(theta, x)
        return found - 1e-3 * found.mean().detach()


class RoundsToSingle(BernoulliLikelihood):
    def log_prob(self, theta, x):
        return super().log_prob(theta.float(), x.float())


LIKELIHOODS = [
    (lambda: WithoutTheHalf(1), "L", "the total and one"),
    (lambda: OverTheWrongAxis(3), "L", "the total and one"),
    (lambda: NaiveBernoulli(1), "L", "not finite"),
    (lambda: TakesAnything(1), "L", "takes 0.5"),
    (lambda: RefusesWithoutTheRow(1), "L", "does not name row 4"),
    (lambda: BiasedDraws(1), "L", "standard errors"),
    (lambda: UnseededDraws(1), "D", "draws from the same stream"),
    (lambda: SumsOverTheBatch(1), "B", "row"),
    (lambda: RoundsToSingle(1), "L", "float64"),
]


@pytest.mark.parametrize(("make", "law", "says"), LIKELIHOODS, ids=[type(m()).__name__ for m, _, _ in LIKELIHOODS])
def test_a_broken_likelihood_is_caught_and_named(make, law, says):
    verdicts = check_likelihood(make, laws=law)
    assert broken(verdicts) == [law]
    assert says in notes(verdicts)
    assert type(make()).__name__ in notes(verdicts)


# Inputs

TEXTS = ["one", "and two", "3"]
GREY = {"channels": 1, "mean": [0.5], "scale": [0.3]}
SERIES = {"mean": [0.0], "scale": [1.0]}


def rows(*lengths):
    return [np.random.default_rng(n).normal(size=(n, 1)) for n in lengths]


def pictures():
    return [np.random.default_rng(h).integers(0, 256, (h, w), dtype=np.uint8) for h, w in ((8, 8), (5, 12), (9, 3))]


class LeavesGarbage(SequenceInput):
    def forward(self, batch):
        out = super().forward(batch)
        return Collection(self.embedding(batch["ids"]), out.valid, out.places)


class PlacesFromTheEnd(SequenceInput):
    """The place counts from the longest row's end: it depends on company."""

    def forward(self, batch):
        out = super().forward(batch)
        return out.replace(places=(out.places - out.valid.shape[1]).masked_fill(~out.valid[..., None], 0))


class CentresOverTheBatch(SeriesInput):
    def forward(self, batch):
        out = super().forward(batch)
        mean = out.items.sum((0, 1)) / out.valid.sum().clamp(min=1)
        return out.replace(items=(out.items - mean).masked_fill(~out.valid[..., None], 0))


class CountsPadding(SeriesInput):
    """Items are divided by the number of places, padding included."""

    def forward(self, batch):
        out = super().forward(batch)
        return out.replace(items=out.items / max(1, out.valid.shape[1]))


class ForgetsTheEdge(ImageInput):
    """The second convolution sees what the first, its bias and norm have put outside the picture."""

    def _layer(self, x, size, convolution, norm):
        x = F.gelu(norm(convolution(x).permute(0, 2, 3, 1))).permute(0, 3, 1, 2)
        return F.max_pool2d(x, 2, ceil_mode=True), (size + 1) // 2


class HasAnIdleParameter(VectorInput):
    def __init__(self, dim, **settings):
        super().__init__(dim, **settings)
        self.idle = nn.Parameter(torch.zeros(3))


class FillsInPlace(SeriesInput):
    def forward(self, batch):
        batch["values"].nan_to_num_()
        return super().forward(batch)


class ForgetsItsStem(SequenceInput):
    def settings(self):
        return {**super().settings(), "stem": 0}


class MiscountsLengths(SequenceInput):
    def lengths(self, columns):
        return super().lengths(columns) + 1


COLUMNS = [{"name": "a", "kind": "number", "mean": [0.0], "scale": [1.0]}]
INPUTS = [
    (lambda: LeavesGarbage(DIM, vocabulary=Bytes()), TEXTS, "P"),
    (lambda: PlacesFromTheEnd(DIM, vocabulary=Bytes()), TEXTS, "B"),
    (lambda: CentresOverTheBatch(DIM, **SERIES), rows(5, 9, 1), "B"),
    (lambda: CountsPadding(DIM, **SERIES), rows(5, 9, 1), "P"),
    (lambda: ForgetsTheEdge(DIM, **GREY), pictures(), "B"),
    (lambda: HasAnIdleParameter(DIM, columns=COLUMNS), [(1.0,), (None,)], "D"),
    (lambda: FillsInPlace(DIM, **SERIES), [np.array([[1.0], [np.nan]]), *rows(5)], "D"),
    (lambda: ForgetsItsStem(DIM, vocabulary=Bytes(), stem=3), TEXTS, "R"),
    (lambda: MiscountsLengths(DIM, vocabulary=Bytes()), TEXTS, "P"),
]


@pytest.mark.parametrize(("make", "values", "law"), INPUTS, ids=[type(m()).__name__ for m, _, _ in INPUTS])
def test_a_broken_input_is_caught_and_named(make, values, law):
    verdicts = check_input(make, values, laws=law)
    assert broken(verdicts) == [law]
    assert type(make()).__name__ in notes(verdicts)


# Outputs

TAGS = {"name": "tag", "target": {"kind": "label", "classes": ["x", "y", "z"]}}
TAGGED = [(["x", "y", "x"],), (["z"],), (["y", "y"],)]
LABEL = {"targets": {"one": {"kind": "label", "classes": ["x", "y", "z"]}}}
LABELLED = [("x",), ("y",), ("z",)]


class MasksTooLate(ItemsOutput):
    """The loss at padding is masked after it is computed: its gradient is 0 · NaN."""

    def loss(self, theta, target):
        found = super().loss(theta, target)
        log_p = self.head.likelihood.log_prob(theta[self.name], target["values"])
        found.terms[self.name] = -log_p.masked_fill(~target["valid"], 0).sum(1)
        return found


class CountsPaddedTags(ItemsOutput):
    def log_likelihood(self, theta, target):
        return self.head.log_likelihood(theta[self.name], target["values"]).sum(1)


class MeansOverTheBatch(VectorOutput):
    def loss(self, theta, target):
        found = super().loss(theta, target)
        found.terms["one"] = found.terms["one"].mean().expand(len(found.count))
        return found


class PredictsUnseeded(VectorOutput):
    def predict(self, theta):
        torch.rand(1)
        return super().predict(theta)


class LossIsAnother(VectorOutput):
    def loss(self, theta, target):
        found = super().loss(theta, target)
        found.terms["one"] = found.terms["one"] ** 2
        return found


class ForgetsSmoothing(VectorOutput):
    def settings(self):
        return {**super().settings(), "smoothing": 0.0}


OUTPUTS = [
    (lambda: MasksTooLate(DIM, **TAGS), TAGGED, "P"),
    (lambda: CountsPaddedTags(DIM, **TAGS), TAGGED, "P"),
    (lambda: MeansOverTheBatch(DIM, **LABEL), LABELLED, "B"),
    (lambda: PredictsUnseeded(DIM, **LABEL), LABELLED, "D"),
    (lambda: LossIsAnother(DIM, **LABEL), LABELLED, "L"),
    (lambda: ForgetsSmoothing(DIM, **LABEL, smoothing=0.2), LABELLED, "R"),
    (lambda: CountsPaddedTags(DIM, **TAGS), TAGGED, "M"),
]


@pytest.mark.parametrize(("make", "values", "law"), OUTPUTS, ids=[f"{type(m()).__name__}-{law}" for m, _, law in OUTPUTS])
def test_a_broken_output_is_caught_and_named(make, values, law):
    verdicts = check_output(make, values, laws=law)
    assert broken(verdicts) == [law]
    assert type(make()).__name__ in notes(verdicts)


# Models


def batch(part, values):
    parsed = [part.parse(value) for value in values]
    columns = {n: Ragged.pack([row[n] for row in parsed]) for n in parsed[0]}
    return part.gather({n: c.take(np.arange(len(values))) for n, c in columns.items()})


def model(*, reader=None, encoder=None, output=None, values=LABELLED, masking=0.0):
    text = SequenceInput(DIM, vocabulary=Bytes())
    out = output or VectorOutput(DIM, **LABEL)
    made = Mapper({"x": text}, encoder or Encoder(DIM, 1, 2), reader or MeanPool(), out, masking=masking)
    initialise(made, 0)
    return made, {"x": batch(text, TEXTS), "target": batch(out, values)}


class MeanOfPlaces(Reader):
    """Padding counts in the mean."""

    def forward(self, queries, memory, *, causal=False):
        return queries.items + memory.items.masked_fill(~memory.valid[..., None], 0).mean(1, keepdim=True)


class MaxOfPlaces(Reader):
    """Padding is zeros, and zero is larger than some."""

    def forward(self, queries, memory, *, causal=False):
        return queries.items + memory.items.masked_fill(~memory.valid[..., None], 0).amax(1, keepdim=True)


class CentredPool(Reader):
    """Statistics over the batch, as batch norm in train mode."""

    def forward(self, queries, memory, *, causal=False):
        pooled = SumPool()(queries, memory)
        return pooled - pooled.mean(0, keepdim=True)


class FirstItem(Reader):
    """Takes the first item of a set, whichever comes first."""

    def forward(self, queries, memory, *, causal=False):
        return queries.items + memory.items[:, :1] if memory.valid.shape[1] else queries.items


class MeanWithoutCare(Reader):
    """0/0 for an empty group."""

    def forward(self, queries, memory, *, causal=False):
        total = memory.items.masked_fill(~memory.valid[..., None], 0).sum(1, keepdim=True)
        return queries.items + total / memory.valid.sum(1)[:, None, None]


class ByIndex(Position):
    """Positions from the index in the tensor, not from the places."""

    def add(self, items, places):
        index = torch.arange(items.shape[-2], dtype=torch.float32)[:, None]
        return items + torch.cat([index.sin(), index.cos()], 1).repeat(1, DIM // 2).to(items.dtype)


class Silent(Position):
    """Says it tells where items are, and does not."""


class AlwaysDropping(Dropout):
    """Dropout that stays active in eval mode."""

    def forward(self, x):
        kept = self.training
        self.training = True
        out = super().forward(x)
        self.training = kept
        return out


class UnseededDropout(Dropout):
    def forward(self, x):
        return F.dropout(x, self.rate, self.training)


class Learner(Reader):
    """Keeps a running mean in a buffer, in place, in eval too."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(DIM))

    def forward(self, queries, memory, *, causal=False):
        out = MeanPool()(queries, memory)
        self.mean.mul_(0.9).add_(0.1 * out.detach().mean((0, 1)))
        return out


class Idle(MeanPool):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(DIM))


class PacksOtherwise(Encoder):
    """Packed items are cut into windows, padded ones are not."""

    def forward(self, x, *, causal=False):
        out = super().forward(x, causal=causal)
        return out if isinstance(x, Collection) else out.replace(items=out.items * 1.001)


def with_dropout(cls):
    made, given = model(encoder=Encoder(DIM, 1, 2, dropout=0.3))
    made.encoder.dropout = cls(0.3)
    return made, given


MODELS = {
    "MeanOfPlaces": (lambda: model(reader=MeanOfPlaces()), "P"),
    "MaxOfPlaces": (lambda: model(reader=MaxOfPlaces()), "B"),
    "CentredPool": (lambda: model(reader=CentredPool()), "B"),
    "FirstItem": (lambda: model(reader=FirstItem()), "S"),
    "MeanWithoutCare": (lambda: model(reader=MeanWithoutCare()), "M"),
    "ByIndex": (lambda: model(encoder=Encoder(DIM, 1, 2, position=ByIndex())), "S"),
    "Silent": (lambda: model(encoder=Encoder(DIM, 1, 2, position=Silent())), "S"),
    "AlwaysDropping": (lambda: with_dropout(AlwaysDropping), "D"),
    "UnseededDropout": (lambda: with_dropout(UnseededDropout), "D"),
    "Learner": (lambda: model(reader=Learner()), "D"),
    "Idle": (lambda: model(reader=Idle()), "D"),
    "PacksOtherwise": (lambda: model(encoder=PacksOtherwise(DIM, 1, 2)), "R"),
}


def test_an_honest_model_passes_the_checks_its_twins_fail():
    made, given = with_dropout(Dropout)
    require(check_model(made, given, laws="PBSMDR"))


@pytest.mark.parametrize("twin", MODELS)
def test_a_broken_model_is_caught_and_named(twin):
    make, law = MODELS[twin]
    verdicts = check_model(*make(), laws=law)
    assert broken(verdicts) == [law]
    with pytest.raises(LawError, match=rf"law {law}, .*: Mapper"):
        require(verdicts)


def test_checking_a_model_leaves_it_and_its_batch_as_they_are():
    made, given = with_dropout(Dropout)
    made.train()
    before = {n: t.clone() for n, t in made.state_dict().items()}
    kept = {n: {m: t.clone() for m, t in part.items()} for n, part in given.items()}
    state = torch.random.get_rng_state()
    check_model(made, given, laws="PBSMDR")
    assert all(torch.equal(before[n], t) for n, t in made.state_dict().items())
    assert all(torch.equal(kept[n][m], t) for n, part in given.items() for m, t in part.items())
    assert made.training
    assert made.encoder.dropout.rate == 0.3
    assert all(p.grad is None and p.requires_grad for p in made.parameters())
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_model_that_cannot_learn_is_checked_too():
    made, given = model()
    made.requires_grad_(False)
    require(check_model(made, {"x": given["x"]}, laws="PBSMDR"))


# The report itself


def test_numbers_agree_when_their_difference_is_small_beside_their_size():
    case = Case()
    case.agree(torch.tensor([1000.0, 1000.0]), torch.tensor([1000.0, 1000.005]), 1e-5)
    assert not case.broken
    assert case.worst == pytest.approx(5e-6, rel=0.1)
    case.agree(torch.tensor([0.1]), torch.tensor([0.2]), 1e-5)
    assert case.broken == "may differ by 1e-05, differs by 0.1"


@pytest.mark.parametrize("other", [torch.tensor([1.0, float("nan")]), torch.zeros(3), torch.tensor([1.0, float("inf")])])
def test_a_nan_or_another_shape_never_agrees(other):
    for compare in (Case.exactly, lambda c, a, b: c.agree(a, b, 1e3), lambda c, a, b: c.near(a, b, 1e3)):
        case = Case()
        compare(case, other, torch.tensor([1.0, 2.0]))
        assert case.broken
        assert case.worst == float("inf")


def test_zeros_and_finite_numbers_are_told_from_others():
    case = Case()
    case.zero({"a": torch.zeros(2)}, "these")
    case.finite([torch.zeros(0), torch.ones(1)], "those")
    assert not case.broken
    case.zero(torch.tensor([0.0, -2.0]), "these")
    assert case.broken == "these must be zeros, found 2"


def test_an_error_inside_a_case_breaks_the_law_and_the_check_goes_on():
    report = Report("Kind")
    with report.case("P", "it holds", "first"):
        raise ValueError("no such thing\nand more")
    with report.case("P", "it holds", "second") as case:
        case.that(True, "")
    assert report.verdicts() == [Verdict("P", "it holds", False, float("inf"), "Kind, first: raised ValueError: no such thing")]


def test_tolerances_are_those_of_the_laws():
    assert tolerance(torch.float64) == tolerance(torch.float64, model=True) == 1e-10
    assert tolerance(torch.float32) == 1e-5
    assert tolerance(torch.float32, model=True) == 1e-4
