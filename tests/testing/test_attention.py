"""Broken twins: kinds with one deliberate fault, which the check must catch and name."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.nn.functional import pad

from mapsto.attention.favor import FavorAttention
from mapsto.attention.hard import HardAttention
from mapsto.attention.softmax import SoftmaxAttention
from mapsto.attention.window import WindowAttention
from mapsto.errors import ConfigError
from mapsto.functional.attention import attend
from mapsto.functional.band import attend_band
from mapsto.functional.cache import Cache
from mapsto.testing import (
    LawError,
    check_attention,
    require,
)


def broken(verdicts):
    """The laws that are broken, in order, each once."""
    return list(dict.fromkeys(v.law for v in verdicts if not v.passed))


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


class HalfSelected(Cache):
    @classmethod
    def of(cls, state):
        return cls(state.keys, state.values, state.length, state.filled, state.even)

    def select(self, rows):
        chosen = Cache.select(self, rows)
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


class SumsInItsOwnType(Plain):
    """One key after the other, added in the type of the values: in bfloat16 a long sum stands still."""

    def mix(self, logits, seen, v):
        fine = super().mix(logits, seen, v)
        with torch.no_grad():
            logits = logits.masked_fill(~seen, -torch.inf)
            weights = torch.exp(logits - logits.amax(-1, keepdim=True).clamp(min=-1e30))
            total, out = torch.zeros_like(weights[..., :1]), torch.zeros_like(fine)
            for weight, value in zip(weights.split(1, -1), v.split(1, -2), strict=True):
                total += weight
                out += weight * value
            rough = out / total.clamp(min=1e-30)
        return fine + (rough - fine.detach())


class LeaksInBfloat16(Plain):
    def mix(self, logits, seen, v):
        out = super().mix(logits, seen, v)
        return out + v.mean(2, keepdim=True) if v.dtype == torch.bfloat16 else out


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


class OneTooMany(WindowAttention):
    """|r(l) − r(m)| <= w."""

    def forward(self, q, k, v, **seen):
        return attend_band(q, k, v, window=self.window + 1, shared=self.shared, **seen)


class RanksByIndex(WindowAttention):
    """What is not valid counts in a rank."""

    def forward(self, q, k, v, *, valid=None, **seen):
        place = torch.arange(q.shape[2])
        near = (place[:, None] - place).abs() < self.window
        return attend(q, k, v, valid=valid, allowed=near[None, None], **seen)


class AllPairs(WindowAttention):
    """Right, by a mask of L × L."""

    def forward(self, q, k, v, *, valid=None, **seen):
        rank = torch.arange(q.shape[2])[None] if valid is None else valid.cumsum(1) - 1
        near = (rank[:, :, None] - rank[:, None]).abs() < self.window
        return attend(q, k, v, valid=valid, allowed=near[:, None], **seen)


class AllKeysInBlocks(WindowAttention):
    """Right, and never holds L × L, but looks at all of it."""

    honours = frozenset()

    def forward(self, q, k, v, *, valid=None, causal=False):
        place = torch.arange(q.shape[2])
        rank = place[None] if valid is None else valid.cumsum(1) - 1
        parts = []
        for rows in place.split(32):
            near = (rank[:, rows, None] - rank[:, None]).abs() < self.window
            if causal:
                near = near & (place <= rows[:, None])
            parts.append(attend(q[:, :, rows], k, v, valid=valid, allowed=near[:, None]))
        return torch.cat(parts, 2)


class ForgetsTooEarly(WindowAttention):
    """The ring is one place short."""

    def start(self, like, capacity, **sizes):
        state = super().start(like, capacity, **sizes)
        return replace(state, keys=state.keys[:, :, 1:], values=state.values[:, :, 1:])


class Hoards(WindowAttention):
    """The ring has room for everything."""

    def start(self, like, capacity, **sizes):
        state = super().start(like, capacity, **sizes)
        more = (0, 0, 0, capacity)
        return replace(state, keys=pad(state.keys, more), values=pad(state.values, more))


class AnswersStrangers(WindowAttention):
    def read(self, q, state):
        return q


class LastOfEquals(HardAttention):
    """Later keys are a little better."""

    def forward(self, q, k, v, *, bias=None, **seen):
        def later(queries, keys):
            block = 1e-3 * torch.arange(keys.start, keys.stop, dtype=torch.float64)
            return block[None, None, None] if bias is None else block + bias(queries, keys)

        return super().forward(q, k, v, bias=later, **seen)


class SoftInTraining(HardAttention):
    def forward(self, q, k, v, **seen):
        return attend(q, k, v, **seen) if self.training else super().forward(q, k, v, **seen)


class SoftInEval(HardAttention):
    """A large beta is no choice: equal keys are mixed."""

    def forward(self, q, k, v, **seen):
        return super().forward(q, k, v, **seen) if self.training else attend(q, k, v, beta=1e6, **seen)


class RandomInEval(HardAttention):
    def __init__(self):
        super().__init__("gumbel")

    def settings(self):
        return {}

    def forward(self, q, k, v, **seen):
        self.train()
        return super().forward(q, k, v, **seen)


class LearnsNothing(HardAttention):
    """An argmax has no gradient."""

    def forward(self, q, k, v, **seen):
        return super().forward(q.detach() + 0 * q, k.detach() + 0 * k, v, **seen)


class ComparesInBfloat16(HardAttention):
    """Logits rounded to bfloat16 tie where the keys' products differ."""

    def forward(self, q, k, v, **seen):
        if q.dtype != torch.bfloat16 or q.requires_grad:
            return super().forward(q, k, v, **seen)
        rounded = q @ k.mT
        places = torch.eye(k.shape[2], dtype=q.dtype).expand(*k.shape[:2], -1, -1)
        return super().forward(rounded, places, v, **seen)


class DrawsUnseeded(HardAttention):
    """Noise from the global generator."""

    def forward(self, q, k, v, **seen):
        return super().forward(q + 3 * torch.randn(q.shape, dtype=q.dtype) * self.training, k, v, **seen)


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
    (SumsInItsOwnType, "K"),
    (ForgetsItsSettings, "R"),
    (partial(OneTooMany, 8), "W"),
    (partial(RanksByIndex, 8), "W"),
    (partial(AllPairs, 8), "W"),
    (partial(AllKeysInBlocks, 8), "W"),
    (partial(ForgetsTooEarly, 8), "W"),
    (partial(ForgetsTooEarly, 8), "T"),
    (partial(Hoards, 8), "W"),
    (partial(AnswersStrangers, 8), "T"),
    (LastOfEquals, "H"),
    (SoftInTraining, "H"),
    (SoftInEval, "H"),
    (RandomInEval, "H"),
    (LearnsNothing, "H"),
    (ComparesInBfloat16, "H"),
    (DrawsUnseeded, "H"),
]


def name(twin):
    return getattr(twin, "func", twin).__name__


def test_an_honest_attention_passes_the_checks_its_twins_fail():
    require(check_attention(Plain, laws="PBSCTMKDR"))


@pytest.mark.parametrize(("twin", "law"), TWINS, ids=[f"{name(t)}-{law}" for t, law in TWINS])
def test_a_broken_attention_is_caught_and_named(twin, law):
    verdicts = check_attention(twin, laws=law, longest=64)
    assert broken(verdicts) == [law]
    with pytest.raises(LawError, match=rf"law {law}, .*: {name(twin)}"):
        require(verdicts)


def test_a_fault_of_bfloat16_alone_is_caught_by_every_law_tried_there():
    wrong = [v for v in check_attention(LeaksInBfloat16, laws="PCMK", longest=64) if not v.passed]
    assert broken(wrong) == ["P", "C", "M", "K"]
    assert all("bfloat16" in v.statement + v.note for v in wrong)


def test_a_letter_without_trials_is_refused():
    with pytest.raises(ConfigError, match='"X" is not tried of Plain; expected letters of "PBSCTMKDRG"'):
        check_attention(Plain, laws="PX")


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


class Careless(FavorAttention):
    """Rotations as LAPACK gives them, without their signs put right."""

    def bind(self, heads, key, stream=None):
        bound = super().bind(heads, key, stream)
        blocks = torch.randn(self.features // key, key, key, generator=stream, dtype=torch.float64)
        rows = torch.linalg.qr(blocks).Q.mT.reshape(-1, key)
        lengths = torch.randn(rows.shape, generator=stream, dtype=torch.float64).norm(dim=1, keepdim=True)
        bound.omega.copy_(rows * lengths)
        return bound


class OneDrawForAll(FavorAttention):
    """Every layer has the same features, whatever its stream: where one errs, all do."""

    def bind(self, heads, key, stream=None):
        return super().bind(heads, key)


class MoreOfTheSame(FavorAttention):
    """Beyond the width rows are repeated, so that more features are no better."""

    def bind(self, heads, key, stream=None):
        bound = super().bind(heads, key, stream)
        bound.omega.copy_(bound.omega[:key].repeat(self.features // key, 1))
        return bound


@pytest.mark.parametrize("twin", [Careless, OneDrawForAll, MoreOfTheSame])
def test_law_f_catches_features_that_are_not_drawn_as_they_must_be(twin):
    assert broken(check_attention(lambda: twin(64, feature="positive"), laws="F")) == ["F"]


@pytest.mark.parametrize("options", [{}, {"feature": "positive"}, {"feature": "hyperbolic", "coupling": "iid"}])
def test_law_f_holds_for_features_of_the_softmax_kernel(options):
    require(check_attention(lambda: FavorAttention(64, **options), laws="F"))


class AsksTheBiasOfTheFirstRow(WindowAttention):
    """Rows that have drifted apart in this very piece are taken to be equally long."""

    def _block(self, bias, before, count, ranks, *, even):
        return super()._block(bias, before, count, ranks, even=before.even)


def test_law_t_catches_a_bias_for_the_ranks_of_another_row():
    assert broken(check_attention(lambda: AsksTheBiasOfTheFirstRow(3), laws="T")) == ["T"]
