"""Linear attention by random features of the softmax kernel: time and memory that grow with the length, not its square."""

import math
from collections.abc import MutableMapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from mapsto.attention import Attention, Bias
from mapsto.errors import ConfigError, did_you_mean
from mapsto.functional.attention import check_sizes
from mapsto.functional.block import fading
from mapsto.functional.causal import LinearState, linear_stream
from mapsto.functional.feature import (
    COUPLINGS,
    KERNELS,
    Exponential,
    draw,
    exponential,
    gaussian,
    generalised,
    optimal_shape,
    relative_variance,
    trigonometric,
)
from mapsto.functional.linear import guarded, linear_attend, normalised, through_features, wide
from mapsto.functional.retrieval import Mapped, advance, look_back, recall
from mapsto.stream import stream

__all__ = ["FavorAttention"]

EXPONENTIAL = ("optimal", "positive", "hyperbolic")
TRUSTED = 0.1  # relative variance of a weight; answers are then off by about a third
MADE: MutableMapping[Tensor, tuple[Any, Exponential]] = WeakTensorKeyDictionary()  # of each ω, the last that was asked
SIGNED = {"trigonometric": trigonometric, "gaussian": gaussian}


class FavorAttention(Attention):
    """Out_l = Σ_m φ(q_l)·φ(k_m) v_m / Σ_m φ(q_l)·φ(k_m), where E[φ(q)·φ(k)] = exp(q·k/√K).

    Time O((L + M) R (K + V)), memory O((L + M) R); a step costs O(R V), however much was written. It tends to softmax
    attention as features grow, and is as good as norms are small: the relative variance of a weight is about
    (exp(|q + k|²/√K) − 1)/R. Normalise queries and keys (``MultiheadAttention(normalise=True)``) to keep it so, and see
    :meth:`variance`.

    Nothing is added to keep denominators away from zero: seen by all, keys and queries meet in two softmaxes; causally,
    the size of each key is a logarithm beside its features, relative to the largest so far.

    Args:
        features: how many ω are drawn.
        feature: ``optimal`` (positive features of least variance for |q+k|²/√K near √K), ``positive``, ``hyperbolic``;
            ``relu`` and ``softplus`` are kernels of their own; ``trigonometric`` and ``gaussian`` have normalisers that
            cross zero, and are not for a model.
        coupling: ``orthogonal`` rows, ``iid``, or ``regularised``: rows of one norm, whose kernel is not quite
            exp(q·k/√K), but whose error is the least at any number of features one can afford.
        redraw: in training, draw the features anew every so many steps; 0 never does.
        seed: of the features of a kind that is asked without having been bound to a layer.

    Reference: Choromanski et al., Rethinking attention with Performers, 2021; Likhosherstov et al., Chefs' Random Tables,
    2022.
    """

    honours: ClassVar[frozenset[str]] = frozenset({"decay", "segment"})

    def __init__(
        self,
        features: int = 256,
        *,
        feature: str = "optimal",
        coupling: str = "orthogonal",
        redraw: int = 0,
        seed: int = 0,
    ):
        super().__init__()
        known = (*EXPONENTIAL, *KERNELS, *SIGNED)
        if feature not in known:
            raise ConfigError(
                f'attention.feature: "{feature}" is not one of {", ".join(known)}.{did_you_mean(str(feature), known)}'
            )
        if coupling not in COUPLINGS:
            raise ConfigError(
                f'attention.coupling: "{coupling}" is not one of {", ".join(COUPLINGS)}.'
                f"{did_you_mean(str(coupling), COUPLINGS)}"
            )
        for name, value, least, most in (
            ("features", features, 1, 1 << 16),
            ("redraw", redraw, 0, 1 << 40),
            ("seed", seed, 0, 1 << 62),
        ):
            if type(value) is not int or not least <= value <= most:
                raise ConfigError(f"attention.{name}={value}: expected a whole number from {least} to {most:,}")
        self.features, self.feature, self.coupling, self.redraw, self.seed = features, feature, coupling, redraw, seed
        self._turn = -1
        self.omega: Tensor | None
        self.register_buffer("omega", None)

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {n: getattr(self, n) for n in ("features", "feature", "coupling", "redraw", "seed")}

    def bind(self, heads: int, key: int, stream: torch.Generator | None = None) -> "FavorAttention":
        """A fresh module with features of its own, which all heads of the layer share.

        Raises:
            ConfigError: features whose normaliser crosses zero.
        """
        if self.feature in SIGNED:
            raise ConfigError(
                f"attention.feature={self.feature}: its normaliser crosses zero, so a model cannot learn with it.   "
                "Use optimal, positive or hyperbolic"
            )
        bound = FavorAttention(**self.settings())
        bound.omega = omega = torch.empty(self.features, key)
        if not omega.is_meta:
            omega.copy_(self._drawn(key, stream))
        return bound

    def renew(self, seed: int, layer: int, step: int) -> None:
        """Other features every ``redraw`` steps."""
        if self.redraw and step // self.redraw != self._turn:
            self._turn = step // self.redraw
            self.reset(stream(seed, "redraw", layer, self._turn))

    @torch.no_grad()
    def reset(self, stream: torch.Generator) -> None:
        """Draw the features anew."""
        if self.omega is not None:
            self.omega.copy_(self._drawn(self.omega.shape[1], stream))

    def _drawn(self, key: int, source: torch.Generator | None) -> Float[Tensor, "R K"]:
        source = stream(self.seed, "features", key) if source is None else source
        return draw(self.features, key, source, coupling=self.coupling)

    def _rows(self, q: Tensor) -> Float[Tensor, "R K"]:
        rows = self._drawn(q.shape[-1], None) if self.omega is None else self.omega
        return rows.to(q.device, wide(q.dtype))

    def _exponential(self, q: Tensor) -> Exponential | None:
        """The features as logarithms, if they are exponentials."""
        if self.feature not in EXPONENTIAL:
            return None
        omega = self.omega
        if torch.compiler.is_compiling() or omega is None or omega.is_inference() or torch.is_grad_enabled():
            return self._scaled(q)
        # Steps ask for the same ones again and again. What is written to ω counts its version up.
        asked = (omega._version, omega.data_ptr(), q.dtype, q.device)
        made = MADE.get(omega)
        if made is None or made[0] != asked:
            made = MADE[omega] = asked, self._scaled(q)
        return made[1]

    def _scaled(self, q: Tensor) -> Exponential:
        omega, width = self._rows(q), q.shape[-1]
        if self.feature == "hyperbolic":
            made = Exponential.hyperbolic(omega)
        else:
            made = Exponential.optimal(omega, self._shape(width))
        return made.scaled(width**-0.5)

    def _shape(self, width: int) -> float:
        # Rows of one norm have their size in common: there A would only change the kernel.
        least = self.feature == "optimal" and self.coupling != "regularised"
        return optimal_shape(width**0.5, width) if least else 0.0

    def _plain(self, x: Tensor) -> Tensor:
        omega, x = self._rows(x), x * x.shape[-1] ** -0.25
        return SIGNED[self.feature](x, omega) if self.feature in SIGNED else generalised(x, omega, kernel=self.feature)

    def _map(self, like: Tensor) -> Mapped:
        """The features for the width and type of some items, made once for all that are asked."""
        exponential = self._exponential(like)
        if exponential is None:
            return lambda q, k, valid: (self._plain(q), self._plain(k), k.new_zeros(k.shape[:-1]), None)
        # Only products of both count: the shift of the queries is given to the keys, and saves a pass.
        rows, keys = exponential.rows.T, replace(exponential, shift=2 * exponential.shift)
        return lambda q, k, valid: (torch.softmax(q @ rows, -1), *normalised(k, keys), None)

    def forward(
        self,
        q: Float[Tensor, "B H L K"],
        k: Float[Tensor, "B H M K"],
        v: Float[Tensor, "B H M V"],
        *,
        valid: Bool[Tensor, "B M"] | None = None,
        segment: Int[Tensor, "B M"] | None = None,
        allowed: Bool[Tensor, "#B #H L M"] | None = None,
        causal: bool = False,
        bias: Bias | None = None,
        decay: Float[Tensor, "B H M"] | None = None,
    ) -> Float[Tensor, "B H L V"]:
        """Answer every query. Segments only where causal: what is packed both ways is a ``Packed`` collection.

        Raises:
            ConfigError: what it cannot honour, or sizes that do not belong together.
        """
        self.refuse(allowed=allowed, bias=bias)
        check_sizes(q, k, v, causal or segment is not None, causal, decay)
        if segment is not None and not causal:
            raise ConfigError("favor attention honours segment with causal=True only.   Pack the collection instead")

        heads = q.shape[1]

        def answer(q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None) -> Tensor:
            if not causal and (exponential := self._exponential(q)) is not None:
                return through_features(q, k, v, exponential, valid)
            mapped = self._map(q)
            if not causal:
                return linear_attend(*mapped(q, k, valid)[:2], v, None, valid)
            fade = None if decay is None else fading(decay.flatten(0, 1), valid)
            if segment is not None or torch.is_grad_enabled() or torch.compiler.is_compiling():
                runs = None if segment is None else segment.repeat_interleave(heads, 0)
                return look_back(q, k, v, mapped, valid=valid, fade=fade, segment=runs)

            def piece(at: slice) -> tuple[Tensor, Tensor, Tensor]:
                f, g, log_weight, _ = mapped(q[:, at], k[:, at], None)
                return f, g, log_weight if fade is None else log_weight - fade[:, at]

            return linear_stream(piece, v, valid)

        return guarded(q, k, v, valid, answer)

    def start(self, like: Tensor, capacity: int, *, batch: int, heads: int, key: int, value: int) -> LinearState:
        """An empty state; its size does not depend on ``capacity``."""
        count = self.features * (2 if self.feature in ("hyperbolic", *SIGNED) else 1)
        return LinearState.start(like, batch, heads, count, value)

    def write(
        self,
        k: Float[Tensor, "B H T K"],
        v: Float[Tensor, "B H T V"],
        state: LinearState,
        *,
        valid: Bool[Tensor, "B T"] | None = None,
    ) -> LinearState:
        """Write T places. Consumes the state."""
        return self.step(k, k, v, state, valid=valid)[1]

    def step(
        self,
        q: Float[Tensor, "B H T K"],
        k: Float[Tensor, "B H T K"],
        v: Float[Tensor, "B H T V"],
        state: LinearState,
        *,
        valid: Bool[Tensor, "B T"] | None = None,
        bias: Bias | None = None,
    ) -> tuple[Float[Tensor, "B H T V"], LinearState]:
        """Write T new places and answer them from all that is written up to each."""
        self.refuse(bias=bias)
        return advance(q, k, v, state, self._map(q), valid)

    def read(self, q: Float[Tensor, "B H L K"], state: LinearState) -> Float[Tensor, "B H L V"]:
        """Answer queries from all that was written; writes nothing."""
        mapped = self._map(q)
        return recall(q, state, lambda x: mapped(x, x, None)[0])

    def kernel(self, q: Float[Tensor, "... K"], k: Float[Tensor, "... K"]) -> Float[Tensor, "..."] | None:
        """What :meth:`estimate` is in the mean: exp(q·k/√K); None for a kernel of its own or rows of one norm."""
        if self.feature not in (*EXPONENTIAL, "trigonometric") or self.coupling == "regularised":
            return None
        return torch.exp((q * k).sum(-1) * q.shape[-1] ** -0.5)

    def estimate(self, q: Float[Tensor, "... K"], k: Float[Tensor, "... K"]) -> Float[Tensor, "..."]:
        """φ(q)·φ(k), not normalised: for figures and laws. It overflows where attention does not."""
        made = self._exponential(q)
        f, g = (self._plain(x) if made is None else exponential(x, made) for x in (q, k))
        return (f * g).sum(-1)

    def variance(self, q: Float[Tensor, "... K"], k: Float[Tensor, "... K"]) -> Float[Tensor, "..."]:
        """Log of the relative variance of each pair's weight that theory predicts: below 0 it can be trusted.

        Reference: see :func:`mapsto.functional.feature.relative_variance`.
        """
        norm = (q.double() + k.double()).square().sum(-1) * q.shape[-1] ** -0.5
        return self._predicted(norm, q.shape[-1])

    def _predicted(self, norm: Tensor, width: int) -> Tensor:
        return relative_variance(
            norm, self.features, width, shape=self._shape(width), hyperbolic=self.feature == "hyperbolic"
        )

    def sharpness(self, key: int) -> float:
        """√K, or what the features can carry: queries and keys at right angles have a relative variance of 0.1 at most.

        Not below 1. With √K itself and 256 features a weight is noise from K = 32 on.
        """
        low, high = 1.0, max(1.0, super().sharpness(key))
        if self.feature not in EXPONENTIAL:
            return high
        for _ in range(20):
            middle = (low + high) / 2
            fine = self._predicted(torch.tensor(2 * middle, device="cpu"), key) <= math.log(TRUSTED)  # |q + k|²/√K = 2τ
            low, high = (middle, high) if fine else (low, middle)
        return low
