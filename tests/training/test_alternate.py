"""Variational EM in turns: each half moves its own weights, and together they come to the exact evidence."""

import torch
from tests.models.test_vae import SIZE, batch, build, linear

from mapsto.functional.divergence import iwae
from mapsto.functional.posterior import Ppca
from mapsto.stream import stream
from mapsto.training.alternate import alternate


def weights(module):
    return [p.detach().clone() for p in module.parameters()]


def same(one, two):
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_each_half_moves_its_own_weights_alone():
    model = build()
    turns = alternate(model, [batch()], e_steps=2, m_steps=2)
    start = weights(model.encoder), weights(model.decoder)
    assert next(turns)[0] == "E"
    middle = weights(model.encoder), weights(model.decoder)
    assert not same(start[0], middle[0])
    assert same(start[1], middle[1])
    assert next(turns)[0] == "M"
    end = weights(model.encoder), weights(model.decoder)
    assert same(middle[0], end[0])
    assert not same(middle[1], end[1])


def rows():
    noise = torch.randn(400, 2 + 6, generator=stream(0, "alternate rows"), dtype=torch.float64)
    drawn = torch.randn(2, 6, generator=stream(5, "directions"), dtype=torch.float64)
    pixels = (0.5 + noise[:, :2] @ drawn * 0.1 + 0.03 * noise[:, 2:]).clamp(0, 1)
    x = (pixels * 255).round().to(torch.uint8)
    pictures = x.reshape(-1, *SIZE, 1)
    made = {"image": {"pixels": pictures, "size": torch.tensor([SIZE] * 400)}, "target": {"pixels": pictures}}
    return made, x.double() / 255


def test_in_turns_the_linear_model_comes_to_its_evidence():
    model = build(depth=0, dim=6)
    data, x = rows()
    turns = alternate(model, [data], e_steps=10, m_steps=10, lr=0.03, samples=4)
    for _ in range(2 * 60):
        next(turns)
    model.eval()
    noise = torch.randn(50, 400, 2, generator=stream(0, "judge"), dtype=torch.float64)
    with torch.no_grad():
        found = float(iwae(model.weigh(data, noise).log_weights).mean())
    best = float(Ppca.fit(x, 2).log_likelihood(x).mean())
    assert best - 0.3 < found < best + 0.02


def test_an_e_step_comes_to_log_p_and_leaves_it_where_it_is():
    # The decoder of a linear model, whose evidence is exact, and an encoder that begins elsewhere.
    model, exact = linear("full")
    data, x = rows()
    with torch.no_grad():
        model.encoder.output.targets["latent"].head.weight.mul_(-1)
    evidence = float(exact.log_likelihood(x).mean())
    turns = alternate(model, [data], e_steps=400, m_steps=0, lr=0.01, samples=4)
    noise = torch.randn(200, 400, 2, generator=stream(0, "judge"), dtype=torch.float64)

    def elbo():
        with torch.no_grad():
            found = model.weigh(data, noise)
            return float((found.log_likelihood.mean(0) - found.divergence).mean())

    before = elbo()
    assert next(turns)[0] == "E"
    assert before < evidence - 0.5
    assert evidence - 0.05 < elbo() < evidence + 0.02
