"""The laws of variational autoencoders, for any model: ours, and what a user has trained."""

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mapsto.functional.divergence import iwae, ladder
from mapsto.models.bound import Elbo, Iwae, Weighed
from mapsto.models.mapper import Batch
from mapsto.models.vae import VAE
from mapsto.testing.trial import draw
from mapsto.testing.verdict import Report, Verdict, tolerance

__all__ = ["check_evidence"]

DRAWS = 256
SIGMAS = 5.0


def check_evidence(model: VAE, batch: Batch, *, laws: Iterable[str] = "EBND") -> list[Verdict]:
    """Hold a variational autoencoder to the laws, on some rows.

    E: of the same draws IWAE-k never falls as k doubles; IWAE-1 is the Monte Carlo ELBO in value and gradient; a KL in closed
    form is the mean of log q - log p; log q of a draw is q's density there. B: a row alone is the row in any company. N: a KL
    is never negative, and training lowers what the bound raises. D: twice gives the same bits, and nothing is written to.

    Args:
        model: in float32; copies are tried in float64.
        batch: some rows with their targets; bits, where the model wants bits.
        laws: the letters of those to try.
    """
    trial = _Trial(copy.deepcopy(model).double().eval(), batch)
    trials: dict[str, list[Callable[[_Trial, Report], None]]] = {
        "E": [_ladder, _one, _closed, _density],
        "B": [_company],
        "N": [_signs],
        "D": [_twice],
    }
    return Report.of(model).hold(trial, trials, laws)


@dataclass
class _Trial:
    model: VAE
    batch: Batch

    @property
    def rows(self) -> int:
        return len(next(iter(next(iter(self.batch.values())).values())))

    def noise(self, samples: int, seed: int = 1) -> Tensor:
        return draw(samples, self.rows, self.model.latent, seed=seed)

    def some(self, rows: list[int]) -> dict[str, dict[str, Any]]:
        return {name: {n: t[rows] for n, t in part.items()} for name, part in self.batch.items()}

    @torch.no_grad()
    def weigh(self, samples: int = DRAWS) -> Weighed:
        parts = [self.model.weigh(self.batch, part) for part in self.noise(samples).split(16)]
        likelihood, prior, q = (
            torch.cat([getattr(p, n) for p in parts]) for n in ("log_likelihood", "log_prior", "log_q")
        )
        return Weighed(likelihood, prior, q, parts[0].kl)


def _ladder(trial: _Trial, report: Report) -> None:
    with report.case("E", "of the same draws, IWAE-k never falls as k doubles") as case:
        weights = trial.weigh().log_weights
        case.finite(weights, "log-weights")
        rungs = torch.stack([ladder(weights, 2**i) for i in range(int(math.log2(DRAWS)) + 1)])
        case.that(bool((rungs.diff(dim=0) >= -1e-9).all()), f"falls by {float(-rungs.diff(dim=0).min()):.3g}")
        case.agree(rungs[-1], iwae(weights), 1e-10, "the last rung and IWAE")


def _one(trial: _Trial, report: Report) -> None:
    with report.case("E", "IWAE of one draw is the Monte Carlo ELBO, in value and gradient") as case:
        found = trial.model.weigh(trial.batch, trial.noise(1))
        plain = Weighed(found.log_likelihood, found.log_prior, found.log_q, None)
        losses = []
        for bound in (Iwae(1), Elbo()):
            terms, weights = bound.terms(plain, 0)
            losses.append(sum(weights.get(name, 1.0) * term.sum() for name, term in terms.items()))
        case.agree(losses[0], losses[1], 1e-10, "the losses")
        learned = [p for p in trial.model.parameters() if p.requires_grad]
        one, two = (
            torch.autograd.grad(loss, learned, retain_graph=True, materialize_grads=True)  # type: ignore[arg-type]
            for loss in losses
        )
        case.near(one, two, 1e-8, "the gradients")


def _closed(trial: _Trial, report: Report) -> None:
    with report.case("E", "a KL in closed form is the mean of log q - log p") as case:
        found = trial.weigh(16 * DRAWS if trial.model.latent < 64 else DRAWS)
        if found.kl is None:
            return
        ratio = found.log_q - found.log_prior
        error = ratio.std(0) / math.sqrt(len(ratio)) + 1e-9
        off = float(((ratio.mean(0) - found.kl.sum(-1)).abs() / error).max())
        case.that(off < SIGMAS, f"they are {off:.1f} standard errors apart")


def _density(trial: _Trial, report: Report) -> None:
    with report.case("E", "log q of a draw is q's density there") as case, torch.no_grad():
        belief = trial.model.believe(trial.batch)
        z, log_q = belief.draw(trial.noise(4))
        case.agree(belief.log_prob(z), log_q, 1e-8, "log q")


def _company(trial: _Trial, report: Report) -> None:
    with report.case("B", "a row's weights alone are its weights in any company") as case, torch.no_grad():
        noise = trial.noise(3)
        whole = trial.model.weigh(trial.batch, noise)
        for rows in (*([b] for b in range(min(3, trial.rows))), list(range(trial.rows))[::-1]):
            found = trial.model.weigh(trial.some(rows), noise[:, rows])
            tol = tolerance(torch.float64, model=True)
            case.agree(found.log_weights, whole.log_weights[:, rows], max(tol, 1e-9), f"rows {rows}")


def _signs(trial: _Trial, report: Report) -> None:
    with (
        report.case("N", "no term of a KL is negative, and training lowers what the bound raises") as case,
        torch.no_grad(),
    ):
        found = trial.model.weigh(trial.batch, trial.noise(2))
        if found.kl is not None:
            case.that(bool((found.kl >= -1e-12).all()), f"a term is {float(found.kl.min()):.3g}")
        terms, weights = Elbo(samples=2).terms(found, 0)
        loss = sum(weights.get(name, 1.0) * term for name, term in terms.items())
        assert isinstance(loss, Tensor)
        case.agree(-loss, found.log_likelihood.mean(0) - found.divergence, 1e-10, "the loss and -ELBO")


def _twice(trial: _Trial, report: Report) -> None:
    with report.case("D", "twice gives the same bits, and nothing is written to") as case, torch.no_grad():
        before = torch.random.get_rng_state()
        kept = {name: {n: t.clone() for n, t in part.items()} for name, part in trial.batch.items()}
        noise = trial.noise(2)
        first, second = (trial.model.weigh(trial.batch, noise).log_weights for _ in range(2))
        case.exactly(first, second, "log-weights")
        case.exactly(_bits(trial.batch), _bits(kept), "the batch")
        case.exactly(torch.random.get_rng_state(), before, "the global generator")


def _bits(batch: Batch) -> list[Tensor]:
    """All numbers of a batch, and where they are none: a cell that is missing is NaN, which nothing equals."""
    found = [t for part in batch.values() for t in part.values()]
    return [x for t in found for x in (t.nan_to_num(), t.isnan())]
