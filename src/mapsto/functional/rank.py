"""What items see of each other by rank: the valid items of a row counted from 0, wherever in the row they stand."""

from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mapsto.functional.block import Bias, fading

__all__ = ["Bias", "Ranked", "within"]


PIECE = 64
"""Queries and keys of a bias asked at once where the items of a block are scattered over the row."""


def within(queries: Int[Tensor, "..."], keys: Int[Tensor, "..."], window: int, shared: int) -> Bool[Tensor, "..."]:
    """Whether two ranks see each other: |r − s| < window, or one of them is among the first ``shared``."""
    near = (queries - keys).abs() < window
    return near | (queries < shared) | (keys < shared) if shared else near


@dataclass(frozen=True)
class Ranked:
    """A band of ranks, and all else that hides or weighs keys in it, made block by block.

    Attributes:
        window: w: ranks less than w apart see each other.
        shared: how many first ranks see all and are seen by all.
        causal: no rank sees a later one.
        order: the place of each rank, items that are not valid last; None if they are the same.
        valid: which ranks exist: the first of each row.
        shortest: a number of ranks that exist in every row.
        segment: which document a rank is of.
        fade: running sums of the log decay, by rank, in float64.
        allowed: which keys a query may look at, by place.
        bias: of the logits, by place.
        bands: masks of the band alone, which most tiles share.
    """

    window: int
    shared: int
    causal: bool
    order: Int[Tensor, "B L"] | None
    valid: Bool[Tensor, "B L"] | None
    shortest: int
    segment: Int[Tensor, "B L"] | None
    fade: Float[Tensor, "B H L"] | None
    allowed: Bool[Tensor, "#B #H L L"] | None
    bias: Bias | None
    bands: dict[tuple[int, ...], Tensor] = field(default_factory=dict)

    @classmethod
    def build(
        cls,
        valid: Tensor | None = None,
        segment: Tensor | None = None,
        decay: Tensor | None = None,
        allowed: Tensor | None = None,
        bias: Bias | None = None,
        *,
        causal: bool,
        window: int,
        shared: int,
        look: bool,
    ) -> "Ranked":
        """From the arguments of attention, which go by place.

        Args:
            valid: which items exist.
            segment: which document an item is of.
            decay: log γ_m, ignored where not valid.
            allowed: which keys a query may look at.
            bias: of the logits.
            causal: no item sees a later one.
            window: of the band.
            shared: first ranks that see all.
            look: whether to look if items need sorting at all; it changes no result, but waits for the device.
        """
        order, shortest = None, 0
        if valid is not None and not (look and not bool((valid[:, 1:] > valid[:, :-1]).any())):
            order = (~valid).to(torch.uint8).argsort(dim=1, stable=True)
            valid = valid.gather(1, order)
            segment = None if segment is None else segment.gather(1, order)
            decay = None if decay is None else decay.gather(2, order[:, None].expand_as(decay))
        if look and valid is not None:
            shortest = int(valid.sum(1).min())
        fade = None if decay is None else fading(decay, None if valid is None else valid[:, None])
        return cls(window, shared, causal, order, valid, shortest, segment, fade, allowed, bias)

    def sort(self, x: Float[Tensor, "B H L K"]) -> Float[Tensor, "B H L K"]:
        """Items by rank."""
        return x if self.order is None else x.gather(2, self.order[:, None, :, None].expand_as(x))

    def unsort(self, x: Float[Tensor, "B H L K"]) -> Float[Tensor, "B H L K"]:
        """Items by place."""
        return x if self.order is None else x.gather(2, self.order.argsort(1)[:, None, :, None].expand_as(x))

    def spans(self, rows: slice, count: int) -> list[slice]:
        """The keys that some of these queries might see. All queries, or none, are to be among the shared ones."""
        end = rows.stop if self.causal else count
        if rows.start < self.shared:
            return [slice(0, end)]
        low, high = max(self.shared, rows.start - self.window + 1), min(end, rows.stop + self.window - 1)
        if low == self.shared:
            return [slice(0, high)]
        return [slice(0, self.shared)] * (self.shared > 0) + [slice(low, high)]

    @staticmethod
    def floor(like: Tensor) -> float:
        """What hides a logit when added to it; a quarter of the least number, so that no sum overflows."""
        return torch.finfo(like.dtype).min / 4

    def band(self, rows: slice, spans: list[slice], like: Tensor) -> Float[Tensor, "1 1 l m"]:
        """0 where the band lets a query see a key, else the floor."""
        last = spans[-1]
        place = (rows.stop - rows.start, last.stop - last.start, rows.start - last.start)
        common = last.start > self.shared  # beyond the shared ranks only differences of ranks count
        if common and place in self.bands:
            return self.bands[place]
        query = torch.arange(rows.start, rows.stop, device=like.device)[:, None]
        key = torch.cat([torch.arange(s.start, s.stop, device=like.device) for s in spans])
        inside = within(query, key, self.window, self.shared)
        if self.causal:
            inside &= key <= query
        band = (~inside).to(like.dtype).mul_(self.floor(like))[None, None]
        if common:
            self.bands[place] = band
        return band

    def seen(self, batch: slice, rows: slice, spans: list[slice]) -> Bool[Tensor, "#b #H #l m"] | None:
        """True where a key may be seen, whatever the band says; None if all may."""
        parts = []
        if self.valid is not None and spans[-1].stop > self.shortest:
            parts.append(_of(self.valid[batch], spans)[:, None, None])
        if self.segment is not None:
            segment = self.segment[batch]
            parts.append((segment[:, rows, None] == _of(segment, spans)[:, None])[:, None])
        if self.allowed is not None:
            parts.append(torch.cat([self._allowed(self.allowed, batch, rows, keys) for keys in spans], -1))
        if not parts:
            return None
        seen = parts[0]
        for part in parts[1:]:
            seen = seen & part
        return seen

    def extra(self, batch: slice, rows: slice, spans: list[slice]) -> Float[Tensor, "#b #H l m"] | None:
        """What is added to the logits: the bias, and the sum of the decays from the key to the query."""
        extra = None
        if self.bias is not None:
            extra = torch.cat([self._bias(self.bias, batch, rows, keys) for keys in spans], -1)
        if self.fade is None:
            return extra
        fade = self.fade[batch]
        faded = fade[:, :, rows, None] - _of(fade, spans)[:, :, None]
        return faded if extra is None else faded + extra

    def gathered(
        self, rows: Int[Tensor, "n l 1"], keys: Int[Tensor, "n 1 m"], count: int
    ) -> tuple[Bool[Tensor, "B #H n l m"], Float[Tensor, "#B #H n l m"] | None]:
        """What is seen, and added to the logits, for whole blocks of ranks at once; ranks beyond the row see nothing.

        Args:
            rows: queries of each block.
            keys: keys of each block.
            count: L.
        """
        seen = within(rows, keys, self.window, self.shared) & (keys >= 0) & (keys < count) & (rows < count)
        if self.causal:
            seen = seen & (keys <= rows)
        seen = seen[None, None]
        rows, keys = rows.clamp(0, count - 1), keys.clamp(0, count - 1)
        if self.valid is not None:
            seen = seen & self.valid[:, keys][:, None]
        if self.segment is not None:
            seen = seen & (self.segment[:, rows] == self.segment[:, keys])[:, None]
        if self.allowed is not None:
            seen = seen & self._picked(self.allowed, rows, keys)
        extra = None
        if self.bias is not None:
            extra = self._picked(self.bias(slice(0, count), slice(0, count)), rows, keys)
        if self.fade is not None:
            faded = self.fade[:, :, rows] - self.fade[:, :, keys]
            extra = faded if extra is None else faded + extra
        return seen, extra

    def _picked(self, whole: Tensor, rows: Tensor, keys: Tensor) -> Tensor:
        """Entries of a tensor of all places, by rank."""
        if self.order is None:
            return whole[:, :, rows, keys]
        row = torch.arange(self.order.shape[0], device=whole.device).view(-1, 1, 1, 1)
        return whole.expand(self.order.shape[0], -1, -1, -1)[row, :, self.order[:, rows], self.order[:, keys]].movedim(
            -1, 1
        )

    def _allowed(self, allowed: Tensor, batch: slice, rows: slice, keys: slice) -> Tensor:
        if self.order is None:
            return (allowed[batch] if allowed.shape[0] > 1 else allowed)[:, :, rows, keys]
        order = self.order[batch]
        row = torch.arange(order.shape[0], device=order.device)[:, None, None]
        part = allowed[batch] if allowed.shape[0] > 1 else allowed.expand(order.shape[0], -1, -1, -1)
        return part[row, :, order[:, rows, None], order[:, None, keys]].movedim(-1, 1)

    def _bias(self, bias: Bias, batch: slice, rows: slice, keys: slice) -> Tensor:
        if self.order is None or self.valid is None:
            block = bias(rows, keys)
            return block[batch] if block.shape[0] > 1 else block
        # What does not exist stands at the last item that does, so that no piece of the row is asked for in vain.
        last = (self.valid.sum(1, keepdim=True) - 1).clamp(min=0)
        place = torch.arange(self.order.shape[1], device=self.order.device).minimum(last)
        places = self.order.gather(1, place)[batch]
        return torch.stack(
            [_pieced(bias, batch.start + b, places[b, rows], places[b, keys]) for b in range(len(places))]
        )


def _of(x: Float[Tensor, "... L"], spans: list[slice]) -> Float[Tensor, "... m"]:
    pieces = [x[..., span] for span in spans]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, -1)


def _pieced(bias: Bias, row: int, queries: Int[Tensor, " l"], keys: Int[Tensor, " m"]) -> Float[Tensor, "#H l m"]:
    """The bias of places in rising order, asked for the pieces of the row that hold any of them."""

    def pieces(places: Tensor) -> list[tuple[slice, Tensor]]:
        counts = torch.unique_consecutive(places // PIECE, return_counts=True)[1]
        parts = places.split(counts.tolist())
        return [(slice(int(p[0]), int(p[-1]) + 1), p - p[0]) for p in parts]

    def block(rows: tuple[slice, Tensor], columns: tuple[slice, Tensor]) -> Tensor:
        whole = bias(rows[0], columns[0])
        return whole[row if len(whole) > 1 else 0][:, rows[1][:, None], columns[1]]

    across = pieces(keys)
    return torch.cat([torch.cat([block(rows, columns) for columns in across], -1) for rows in pieces(queries)], -2)
