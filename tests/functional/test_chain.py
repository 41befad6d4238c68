"""Law A: the chains leave their distribution as it is, and annealing bounds the evidence from both sides."""

import math
from collections.abc import Callable
from itertools import islice

import pytest
import torch
from scipy.stats import chi2, kstest, norm
from torch import Tensor

from mapsto.functional.chain import anneal, gibbs, hamiltonian, metropolis, tune
from mapsto.stream import stream

ALARM = 2e-5
CHAINS = 20_000


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=stream(seed, "chain", *shape), dtype=torch.float64)


def standard(z: Tensor) -> Tensor:
    return -0.5 * (z.square().sum(1) + z.shape[1] * math.log(2 * math.pi))


# z ~ N(0, 1), x | z ~ N(z, 1), x = 1.5: the posterior is N(.75, ½).
X, MEAN, SIGMA = 1.5, 0.75, math.sqrt(0.5)
EVIDENCE = -0.5 * (math.log(2 * math.pi * 2) + X**2 / 2)


def posterior(z: Tensor) -> Tensor:
    return standard(z) + likelihood(z)


def likelihood(z: Tensor) -> Tensor:
    return -0.5 * ((X - z[:, 0]) ** 2 + math.log(2 * math.pi))


def exact() -> Tensor:
    return MEAN + SIGMA * drawn(CHAINS, 1)


def alarms(z: Tensor) -> bool:
    """Whether draws are not those of the posterior."""
    return bool(kstest(z[:, 0].numpy(), norm(MEAN, SIGMA).cdf).pvalue < ALARM)


class TestStationary:
    def test_metropolis_leaves_the_posterior_fixed(self) -> None:
        z, moved = next(islice(metropolis(posterior, exact(), scale=1.0, stream=stream(0, "walk")), 30, None))
        assert not alarms(z)
        assert 0.3 < float(moved.double().mean()) < 0.9

    def test_metropolis_finds_the_posterior_from_elsewhere(self) -> None:
        z, _ = next(islice(metropolis(posterior, drawn(CHAINS, 1) - 4, scale=1.0, stream=stream(0, "walk")), 80, None))
        assert not alarms(z)

    def test_a_walk_that_takes_every_proposal_up_and_half_of_those_down_is_caught(self) -> None:
        def broken(z: Tensor) -> Tensor:
            return 0.8 * posterior(z)  # the broken twin: the ratio is not that of the posterior

        z, _ = next(islice(metropolis(broken, exact(), scale=1.0, stream=stream(0, "walk")), 30, None))
        assert alarms(z)

    def test_hamiltonian_leaves_the_posterior_fixed_at_any_length(self) -> None:
        for length in (0.2, 0.6, 1.1):
            z, source = exact(), stream(0, "hamilton")
            for _ in range(10):
                z, _ = hamiltonian(posterior, z, scale=length, leaps=5, stream=source)
            assert not alarms(z)

    def test_a_leapfrog_that_takes_all_is_caught(self) -> None:
        z, source = exact(), stream(0, "hamilton")
        for _ in range(10):  # the broken twin: half a gradient, as if the density were flatter than it is
            z, _ = hamiltonian(lambda at: 0.7 * posterior(at), z, scale=0.6, leaps=5, stream=source)
        assert alarms(z)

    def test_gibbs_leaves_a_table_fixed(self) -> None:
        table = torch.tensor([[0.1, 0.2, 0.05], [0.3, 0.05, 0.3]], dtype=torch.float64)
        draws = conditionals(table)
        flat = torch.multinomial(table.flatten(), CHAINS, replacement=True, generator=stream(0, "start"))
        z = torch.stack((flat // 3, flat % 3), 1).double()
        z = next(islice(gibbs(draws, z, stream=stream(0, "gibbs")), 10, None))
        assert not miscounted(z, table)

    def test_gibbs_finds_a_table_by_enumeration(self) -> None:
        table = torch.tensor([[0.1, 0.2, 0.05], [0.3, 0.05, 0.3]], dtype=torch.float64)
        z = next(
            islice(gibbs(conditionals(table), torch.zeros(CHAINS, 2).double(), stream=stream(1, "gibbs")), 60, None)
        )
        assert not miscounted(z, table)

    def test_gibbs_that_draws_from_the_margins_is_caught(self) -> None:
        table = torch.tensor([[0.1, 0.2, 0.05], [0.3, 0.05, 0.3]], dtype=torch.float64)
        alone = torch.outer(table.sum(1), table.sum(0))  # the broken twin: what the other is, is not looked at
        z = next(
            islice(gibbs(conditionals(alone), torch.zeros(CHAINS, 2).double(), stream=stream(1, "gibbs")), 60, None)
        )
        assert miscounted(z, table)


def conditionals(table: Tensor) -> list[Callable[[Tensor, torch.Generator], Tensor]]:
    def row(z: Tensor, source: torch.Generator) -> Tensor:
        return torch.multinomial(table.T[z[:, 1].long()], 1, generator=source)[:, 0].double()

    def column(z: Tensor, source: torch.Generator) -> Tensor:
        return torch.multinomial(table[z[:, 0].long()], 1, generator=source)[:, 0].double()

    return [row, column]


def miscounted(z: Tensor, table: Tensor) -> bool:
    counts = torch.bincount((3 * z[:, 0] + z[:, 1]).long(), minlength=6).double()
    expected = table.flatten() * len(z)
    return bool(chi2.sf(float(((counts - expected) ** 2 / expected).sum()), 5) < ALARM)


class TestAnneal:
    def lengths(self, steps: int) -> list[float]:
        return tune(standard, likelihood, drawn(500, 1, seed=5), steps=steps, stream=stream(5, "tune"), leaps=3)

    @pytest.mark.parametrize("steps", [2, 10, 60])
    def test_evidence_lies_between_its_two_bounds(self, steps: int) -> None:
        lengths = self.lengths(steps)
        up = anneal(standard, likelihood, drawn(4000, 1), lengths=lengths, stream=stream(0, "ais"), leaps=3)
        down = anneal(
            standard, likelihood, exact()[:4000], lengths=lengths, stream=stream(1, "ais"), leaps=3, backward=True
        )
        error = 4 / math.sqrt(4000)
        assert float(up.log_weight.mean()) - error * float(up.log_weight.std()) <= EVIDENCE
        assert float(down.log_weight.mean()) + error * float(down.log_weight.std()) >= EVIDENCE
        w = up.log_weight.exp()
        assert float(w.mean()) == pytest.approx(math.exp(EVIDENCE), abs=5 * float(w.std()) / math.sqrt(4000))
        if steps == 60:
            assert float(down.log_weight.mean() - up.log_weight.mean()) < 0.05

    def test_the_bounds_swap_where_the_weights_are_taken_after_the_move(self) -> None:
        # The broken twin of the forward bound: p(x | z_t) for p(x | z_{t−1}) is no lower bound with few steps.
        total = torch.zeros(4000).double()
        for before, after in ((0.0, 0.5), (0.5, 1.0)):
            z = MEAN + SIGMA * drawn(4000, 1, seed=3)
            total = total + (after - before) * likelihood(z)
        assert float(total.mean()) > EVIDENCE + 0.1

    def test_ends_in_the_posterior(self) -> None:
        lengths = self.lengths(40)
        up = anneal(standard, likelihood, drawn(CHAINS, 1), lengths=lengths, stream=stream(2, "ais"), leaps=3)
        share = torch.softmax(up.log_weight, 0)
        assert float((share * up.z[:, 0]).sum()) == pytest.approx(MEAN, abs=0.03)
        assert 0.4 < up.moved <= 1

    def test_is_a_function_of_its_stream(self) -> None:
        one, two = (
            anneal(standard, likelihood, drawn(50, 1), lengths=[0.3] * 4, stream=stream(2, "ais")).log_weight
            for _ in range(2)
        )
        assert torch.equal(one, two)
