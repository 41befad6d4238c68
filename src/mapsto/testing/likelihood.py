"""The laws of likelihoods, for every kind: ours and a user's own."""

import copy
import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.distributions import constraints

from mapsto.errors import DataError
from mapsto.likelihoods import Likelihood
from mapsto.stream import stream
from mapsto.testing.graph import check_compile
from mapsto.testing.trial import TYPES, draw
from mapsto.testing.verdict import Report, Verdict, tolerance

__all__ = ["check_likelihood"]

DRAWS = 20_000
SIGMAS = 5.0
HUGE = 1e4
COUNTS = (20_000, 600)
"""How many counts, from 0 on, stand for all there are: of one number, of two."""


def check_likelihood(
    make: Callable[[], Likelihood], *, support: constraints.Constraint | None = None, laws: Iterable[str] = "LBDG"
) -> list[Verdict]:
    """Hold a likelihood to the laws.

    L: it sums or integrates to one over its support (by enumeration, or by quadrature in float64: give it one or two
    dimensions), agrees with its torch distribution, has finite gradients at the extremes, refuses what lies outside
    its support and names the row, and its draws have its mean. B: each place is by itself. D: draws are a pure
    function of the stream. G: it compiles.

    Args:
        make: gives the likelihood.
        support: of one number of an event; the likelihood's own by default. Boolean, integer interval, counts, the
            unit interval, real and positive numbers are known.
        laws: the letters of those to try.

    Example:
        >>> from mapsto.testing import require
        >>> from mapsto.likelihoods.bernoulli import BernoulliLikelihood
        >>> require(check_likelihood(lambda: BernoulliLikelihood(2), laws="L"))
    """
    trial = _Trial(make(), support)
    trials: dict[str, list[Callable[[_Trial, Report], None]]] = {
        "L": [_total, _oracle, _extremes, _outside, _moments],
        "B": [_places],
        "D": [_draws],
        "G": [_graphs],
    }
    return Report.of(trial.kind).hold(trial, trials, laws)


@dataclass
class _Trial:
    kind: Likelihood
    given: constraints.Constraint | None
    double: Likelihood = field(init=False)

    def __post_init__(self) -> None:
        self.double = copy.deepcopy(self.kind).double()

    def of(self, dtype: torch.dtype) -> Likelihood:
        return self.double if dtype == torch.float64 else self.kind

    def theta(self, *shape: int, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
        return draw(*shape, self.kind.width, seed=seed, dtype=dtype)

    def events(self, theta: Tensor, seed: int = 2) -> Tensor:
        x = self.of(theta.dtype).sample(theta, stream(seed, "law")).detach()
        return x.to(theta.dtype) if x.is_floating_point() else x

    @property
    def shape(self) -> torch.Size:
        """Of one event."""
        return self.events(self.theta(1)).shape[1:]

    @property
    def support(self) -> constraints.Constraint:
        """Of one number of an event."""
        return self.given or self.double.support

    @property
    def discrete(self) -> bool:
        return bool(self.support.is_discrete)

    def points(self) -> tuple[Tensor, Tensor]:
        """Points of the support of one number, and the weight of each in a sum."""
        support = self.support
        if isinstance(support, type(constraints.boolean)):
            return torch.tensor([0.0, 1.0]).double(), torch.ones(2).double()
        if isinstance(support, constraints.integer_interval):
            values = torch.arange(int(support.lower_bound), int(support.upper_bound) + 1)
            return values, torch.ones(len(values)).double()
        if isinstance(support, type(constraints.nonnegative_integer)):
            values = torch.arange(COUNTS[math.prod(self.shape) > 1]).double()
            return values, torch.ones(len(values)).double()
        # Trapezoids in u with x = sinh u (e^u for positive numbers): errors fall faster than any power of the step.
        u = torch.linspace(-9, 9, 1201 if math.prod(self.shape) > 1 else 20001, dtype=torch.float64)
        step = float(u[1] - u[0])
        if isinstance(support, type(constraints.unit_interval)) and support.upper_bound == 1:
            v = 5 * u  # x = σ(v)
            return v.sigmoid(), v.sigmoid() * v.neg().sigmoid() * 5 * step
        if isinstance(support, type(constraints.real)):
            return u.sinh(), u.cosh() * step
        if isinstance(support, constraints.greater_than | constraints.greater_than_eq) and support.lower_bound == 0:
            v = u - torch.exp(-u - 4)  # x = e^v: v falls so fast to the left that no mass near zero is missed
            return v.exp(), v.exp() * (1 + torch.exp(-u - 4)) * step
        raise NotImplementedError(f"no quadrature over {support}; check this likelihood's total by itself")

    def outside(self) -> list[float]:
        """Numbers that are no data."""
        support = self.support
        if isinstance(support, type(constraints.boolean)):
            return [0.5, -1.0, 2.0, math.nan]
        if isinstance(support, constraints.integer_interval):
            return [int(support.lower_bound) - 1, int(support.upper_bound) + 1, 0.5, math.nan]
        if isinstance(support, type(constraints.nonnegative_integer)):
            return [-1.0, 0.5, math.nan, math.inf]
        if isinstance(support, type(constraints.unit_interval)):
            return [-0.01, 1.01, math.nan]
        return [math.nan, math.inf, -math.inf, *([] if isinstance(support, type(constraints.real)) else [-1.0])]


def _total(trial: _Trial, report: Report) -> None:
    with report.case("L", "it sums or integrates to one") as case:
        values, weights = trial.points()
        dims = math.prod(trial.shape)
        every = torch.cartesian_prod(*[values] * dims).reshape(-1, *trial.shape)
        weight = torch.cartesian_prod(*[weights] * dims).reshape(len(every), -1).prod(-1)
        for seed in range(4):
            theta = trial.theta(seed=seed).expand(len(every), -1)
            total = (trial.double.log_prob(theta, every).exp() * weight).sum()
            exact = 1e-10 if trial.discrete else 1e-6
            case.agree(total, torch.ones(()).double(), exact, "the total and one")


def _oracle(trial: _Trial, report: Report) -> None:
    with report.case("L", "it agrees with torch.distributions and gives nats, one number an event") as case:
        for dtype in TYPES:
            theta = trial.theta(5, 7, dtype=dtype)
            x = trial.events(theta)
            found = trial.of(dtype).log_prob(theta, x)
            case.that(found.shape == (5, 7), f"log_prob has shape {tuple(found.shape)}, expected (5, 7)")
            try:
                oracle = trial.of(dtype).distribution(theta)
            except NotImplementedError:
                return
            case.agree(found, oracle.log_prob(x), tolerance(dtype), f"{dtype}: log_prob and the oracle's")


def _extremes(trial: _Trial, report: Report) -> None:
    with report.case("L", "its value and gradient are finite at the extremes") as case:
        values = trial.points()[0]
        far = [x for x in (-HUGE, HUGE) if bool(trial.support.check(torch.tensor(x)))]
        kinds = values[[0, -1]] if trial.discrete else torch.tensor([0.0, 1.0, *far])
        for dtype in TYPES:
            signs = itertools.islice(itertools.product((-HUGE, 0.0, HUGE), repeat=trial.kind.width), 243)
            for value, signed in itertools.product(kinds, list(signs)):
                theta = torch.tensor(signed, dtype=dtype)[None].requires_grad_()
                x = value.expand(1, *trial.shape)
                found = trial.of(dtype).log_prob(theta, x if trial.discrete else x.to(dtype))
                (gradient,) = torch.autograd.grad(found.sum(), theta)
                case.finite(
                    [found, gradient], f"log_prob and gradient at θ = {list(signed)}, x = {float(value):g}, {dtype}"
                )
                case.finite(trial.of(dtype).mean(theta), f"the mean at θ = {list(signed)}")


def _outside(trial: _Trial, report: Report) -> None:
    with report.case("L", "data outside its support is refused, naming the row") as case, torch.no_grad():
        good = trial.events(trial.theta(6))
        trial.kind.check(good)
        for value in trial.outside():
            bad = good.double().clone()
            bad[3].fill_(value) if bad.dim() == 1 else bad[3].reshape(-1)[-1:].fill_(value)
            try:
                trial.kind.check(bad)
                case.that(False, f"takes {value:g}")
            except DataError as error:
                case.that("row 4" in str(error), f"does not name row 4: {error}")


def _moments(trial: _Trial, report: Report) -> None:
    """Means of draws lie within five standard errors: a false alarm in two million."""
    with report.case("L", "draws lie in the support and have its mean and variance") as case, torch.no_grad():
        for seed in range(3):
            theta = trial.theta(seed=seed + 5)
            x = trial.events(theta.expand(DRAWS, -1), seed)
            trial.kind.check(x)
            mean = trial.double.mean(theta[None])[0]
            if mean.dim() > x.dim() - 1:
                x = torch.nn.functional.one_hot(x, trial.kind.width)
            x = x.double()
            error = (x.var(0) / DRAWS).sqrt()
            off = ((x.mean(0) - mean).abs() / (error + 1e-4)).max()
            case.that(float(off) < SIGMAS, f"the mean of {DRAWS} draws is {float(off):.1f} standard errors away")
            if not trial.discrete:
                try:
                    variance = trial.double.distribution(theta).variance
                except NotImplementedError:
                    continue
                error = ((x - mean).pow(4).mean(0) - x.var(0) ** 2).clamp(min=0).sqrt() / math.sqrt(DRAWS)
                off = ((x.var(0) - variance).abs() / (error + 1e-4)).max()
                case.that(
                    float(off) < SIGMAS, f"the variance of {DRAWS} draws is {float(off):.1f} standard errors away"
                )


def _places(trial: _Trial, report: Report) -> None:
    with report.case("B", "a place alone is the place in any company") as case:
        for dtype in TYPES:
            theta = trial.theta(5, 7, dtype=dtype)
            x = trial.events(theta)
            whole = trial.of(dtype).log_prob(theta, x)
            for b in range(5):
                alone = trial.of(dtype).log_prob(theta[b : b + 1, :3], x[b : b + 1, :3])
                case.agree(alone[0], whole[b, :3], tolerance(dtype), f"row {b}, {dtype}")
            empty = trial.of(dtype).log_prob(theta[:0], x[:0])
            case.that(empty.shape == (0, 7), "no rows give no values")


def _draws(trial: _Trial, report: Report) -> None:
    with report.case("D", "draws are a pure function of θ and the stream, and nothing is written to") as case:
        before, theta = torch.random.get_rng_state(), trial.theta(50, dtype=torch.float32)
        kept, x = theta.clone(), trial.events(theta, 3)
        case.exactly(trial.events(theta, 3), x, "draws from the same stream")
        case.that(not torch.equal(trial.events(theta, 4), x), "another stream gives the same draws")
        trial.kind.log_prob(theta, x), trial.kind.mean(theta), trial.kind.check(x)
        case.exactly(theta, kept, "θ before and after")
        case.exactly(torch.random.get_rng_state(), before, "the global generator")


def _graphs(trial: _Trial, report: Report) -> None:
    thetas = [trial.theta(n, 3, dtype=torch.float32).requires_grad_() for n in (5, 1, 20)]
    check_compile(report, "log_prob", trial.kind.log_prob, [(t, trial.events(t.detach())) for t in thetas], 1e-5)
