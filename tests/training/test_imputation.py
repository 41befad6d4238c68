"""What is said of missing cells, against the exact conditional distribution of a linear model."""

import numpy as np
import pytest
import torch

from mapsto.functional.posterior import Normal
from mapsto.inputs.latent import LatentInput
from mapsto.inputs.vector import VectorInput
from mapsto.models.mapper import Mapper
from mapsto.models.vae import VAE
from mapsto.nn.initial import initialise
from mapsto.nn.perceptron import Joined, Perceptron
from mapsto.nn.pool import MeanPool
from mapsto.outputs.vector import VectorOutput
from mapsto.priors.standard import StandardPrior
from mapsto.ragged import Ragged
from mapsto.stream import stream, stream_numpy
from mapsto.training.imputation import impute

NUMBERS = ["a", "b", "c", "d"]
LATENT = 2


def rows(count: int = 6):
    drawn = stream_numpy(0, "impute").standard_normal((count, len(NUMBERS))) * [1, 2, 3, 4] + [0, 1, 2, 3]
    cells = [(*map(float, row), "yes" if i % 2 else "no") for i, row in enumerate(drawn)]
    gone = [(0,), (1, 3), (2,), (0, 1, 2), (4,), (3, 4)]
    return [tuple(None if i in out else x for i, x in enumerate(row)) for row, out in zip(cells, gone, strict=True)]


def model() -> VAE:
    """A linear decoder, and an encoder that knows nothing."""
    columns = [*((name, "number") for name in NUMBERS), ("e", "label")]
    source = VectorInput(8, **VectorInput.measure([rows()], columns=columns))
    output = VectorOutput(8, **VectorOutput.measure([rows()], columns=columns, holes=True))
    target = {"latent": {"kind": "latent", "latent": LATENT}}
    encoder = Mapper({"table": source}, Joined(Perceptron(8, 2)), MeanPool(), VectorOutput(8, targets=target))
    decoder = Mapper({"latent": LatentInput(8, latent=LATENT)}, Perceptron(8, 0), MeanPool(), output)
    made = VAE(encoder, StandardPrior(LATENT), decoder)
    initialise(made, 0)
    with torch.no_grad():
        for head in output.heads:
            head.head.weight.copy_(0.5 * torch.randn(head.head.weight.shape, generator=stream(0, "heads")))
        for i, name in enumerate(NUMBERS):
            output.targets[name].likelihood.log_sigma.fill_(-0.05 * (i + 1))
    return made.double().eval()


def batch(made: VAE):
    found = {}
    for name, part in (("table", made.sources["table"]), ("target", made.output)):
        parsed = [part.parse(row) for row in rows()]
        taken = {k: Ragged.pack([row[k] for row in parsed]).take(np.arange(len(parsed))) for k in parsed[0]}
        found[name] = part.gather(taken)
    return found


def exact(made: VAE) -> Normal:
    """The same model of the numbers without its latent variable, in the user's units."""
    zero, one = torch.zeros(1, LATENT).double(), torch.eye(LATENT).double()
    with torch.no_grad():
        base, each = (made.output.predict(made.say(z)) for z in (zero, one))
    mean = torch.tensor([base[n]["value"][0, 0] for n in NUMBERS])
    weight = torch.tensor(np.stack([each[n]["value"][:, 0] for n in NUMBERS])) - mean[:, None]
    sigma = torch.tensor([base[n]["sigma"][0, 0] for n in NUMBERS])
    return Normal(mean, weight @ weight.T + torch.diag(sigma**2))


@pytest.fixture(scope="module")
def guessed():
    made = model()
    numbers = list(range(len(rows())))
    return made, impute(made, [(numbers, batch(made))], samples=20_000)


def test_a_missing_number_has_the_exact_conditional_mean_and_interval(guessed):
    made, found = guessed
    normal = exact(made)
    # Rows whose label is missing: of the others the label says something of the numbers too.
    for row in (4, 5):
        x = torch.tensor([[torch.nan if cell is None else cell for cell in rows()[row][:4]]]).double()
        gone = x[0].isnan()
        if not gone.any():
            continue
        wanted = normal.impute(x)[0][gone]
        cross = normal.covariance[~gone][:, gone]
        left = normal.covariance[gone][:, gone] - cross.T @ torch.linalg.solve(
            normal.covariance[~gone][:, ~gone], cross
        )
        for j, mean, variance in zip(gone.nonzero()[:, 0].tolist(), wanted, left.diagonal(), strict=True):
            f, sigma = found[NUMBERS[j]], float(variance.sqrt())
            assert f["value"][row, 0] == pytest.approx(float(mean), abs=0.05 * sigma)
            for end, sign in (("low", -1), ("high", 1)):
                assert f[end][row, 0] == pytest.approx(float(mean) + sign * 1.96 * sigma, abs=0.1 * sigma)


def test_with_a_label_known_it_agrees_with_integration_over_a_grid(guessed):
    made, found = guessed
    even = torch.linspace(-6, 6, 241).double()
    z = torch.cartesian_prod(even, even)
    one = batch(made)
    with torch.no_grad():
        log_p = made.log_likelihood(z[:, None].expand(-1, len(rows()), -1), one["target"])
        weight = torch.softmax(log_p + made.prior.log_prob(z)[:, None], 0)
        said = made.output.predict(made.say(z))
    for row, j in ((0, 0), (1, 1), (1, 3), (2, 2), (3, 0), (3, 1), (3, 2)):
        wanted = float(weight[:, row] @ torch.from_numpy(said[NUMBERS[j]]["value"][:, 0]))
        spread = float(made.output.targets[NUMBERS[j]].scale[0])
        assert found[NUMBERS[j]]["value"][row, 0] == pytest.approx(wanted, abs=0.05 * spread)
    p = torch.from_numpy(said["e"]["log_probability"]).double().exp()
    for row in (4, 5):
        assert found["e"]["probability"][row] == pytest.approx((weight[:, row] @ p).numpy(), abs=0.02)
        assert found["e"]["value"][row] == found["e"]["probability"][row].argmax()


def test_without_weights_the_encoder_would_be_believed(guessed):
    made, found = guessed
    one = batch(made)
    with torch.no_grad():
        z = made.believe(one).draw(torch.randn(4000, len(rows()), LATENT, generator=stream(0, "q")).double())[0]
        plain = made.output.predict(made.say(z.flatten(0, 1)))["d"]["value"].reshape(4000, -1).mean(0)
    apart = abs(plain[1] - found["d"]["value"][1, 0]) / made.output.targets["d"].scale[0]
    assert apart > 0.1


def test_a_row_is_guessed_alike_in_any_company():
    made = model()
    whole, one = batch(made), [2, 5]
    some = {name: {k: t[one] for k, t in part.items()} for name, part in whole.items()}
    every = impute(made, [(list(range(6)), whole)], samples=50)
    alone = impute(made, [(one, some)], samples=50)
    for name, arrays in alone.items():
        for key, values in arrays.items():
            assert values == pytest.approx(every[name][key][one], abs=1e-9), (name, key)
