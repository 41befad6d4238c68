"""The tables of ``benchmarks/attention.py``: ratios of what was timed in turns, beside what is asked of them."""

import itertools
import math
from collections.abc import Iterable

from candidate import QUADRATIC, Setting
from race import Time, table

__all__ = ["report_exact", "report_kinds", "report_peaks"]

ASKED = {
    ("float32", "forward"): 0.55,
    ("bfloat16", "forward"): 0.38,
    ("float32", "both"): 0.60,
    ("bfloat16", "both"): 0.50,
}
ASKED_OF_LIMIT = 1.1

RIVALS = {
    "softmax": ("torch",),
    "hard": ("torch",),
    "window": ("local-attention", "local-attention as installed"),
    "favor": ("performer-pytorch", "fast-transformers"),
    "memory": ("fast-transformers elu",),
}

Key = tuple[str, str, bool, bool]  # our kind, its rival, causal, learn

ASKED_OF_RIVAL: dict[Key, float] = {
    ("favor", "performer-pytorch", False, False): 0.45,
    ("favor", "performer-pytorch", False, True): 0.50,
    ("favor", "performer-pytorch", True, False): 0.05,
    ("favor", "performer-pytorch", True, True): 0.08,
    ("favor", "fast-transformers", True, False): 0.40,
    ("favor", "fast-transformers", True, True): 0.45,
    ("window", "local-attention", False, False): 1.0,
    ("window", "local-attention", True, False): 1.0,
}
FAVOR_OF_LIMIT = {(False, False): 1.3, (False, True): 1.7, (True, False): 1.4, (True, True): 1.7}
PEAK_ASKED = 0.06
"""Of performer-pytorch's peak, favor, causal, forward."""


def report_exact(lines: list[dict]) -> None:
    rows = []
    for line in lines:
        times = {name: Time(**t) for name, t in line["times"].items()}
        mine = times["attend"]
        small, median = mine.over(times["torch"])
        rows.append(
            [
                line["what"],
                *(f"{1e3 * times[n].minimum:.2f}" if n in times else "" for n in ("attend", "tiles", "torch", "limit")),
                f"{small:.2f}",
                f"{median:.2f}",
                ASKED.get((line["kind"], line["way"])),
                f"{mine.over(times['limit'])[0]:.2f}" if "limit" in times else "",
                ASKED_OF_LIMIT if "limit" in times and line["way"] == "forward" else None,
            ]
        )
    if rows:
        header = ["B=1 H=8 K=64 unless said", "attend ms", "tiles ms", "torch ms", "limit ms"]
        table(rows, [*header, "of torch: min", "median", "asked", "of limit", "asked"])


def asked_of_rival(setting: Setting, kind: str, rival: str) -> float | None:
    """Numbers are asked of float32, except of exact attention."""
    way = "both" if setting.learn else "forward"
    if kind == "softmax":
        return None if setting.causal else ASKED[setting.kind, way]
    if setting.kind != "float32":
        return None
    return ASKED_OF_RIVAL.get((kind, rival, setting.causal, setting.learn))


def report_kinds(lines: list[dict]) -> None:
    """One row a kind and rival; then slopes and crossovers, and what could not be compared with."""
    rows: list[list[object]] = []
    seen: list[tuple[Setting, dict[str, Time]]] = []
    for line in lines:
        setting = Setting(**line["setting"])
        times = {name: Time(**t) for name, t in line["times"].items()}
        seen.append((setting, times))
        for name in (n for n in times if n.removesuffix(" compiled") in RIVALS):
            rows += compare(setting, name, times)
    if not rows:
        return
    print()
    header = ["B=1 H=8 K=64 m=256 w=256", "ms", "rival", "rival ms", "of it: min", "median", "asked"]
    table(rows, [*header, "of torch", "values ms", "limit ms", "of limit", "asked"])
    if found := "; ".join(slopes(seen)):
        print("\nGrowth of time between the two longest rows, as a power of the length:", found)
    for sentence in crossovers(seen):
        print(sentence)
    for reason in sorted({reason for line in lines for reason in line["missing"]}):
        print("not compared:", reason)


def compare(setting: Setting, name: str, times: dict[str, Time]) -> Iterable[list[object]]:
    kind = name.removesuffix(" compiled")
    mine, own = times[name], times.get("torch")
    limit = times.get(f"limit of {kind}")
    asked = FAVOR_OF_LIMIT[setting.causal, setting.learn] if kind == "favor" else None
    if kind == "softmax" and not setting.learn:
        asked = ASKED_OF_LIMIT
    rest = [
        f"{mine.over(own)[0]:.2f}" if own else "",
        f"{1e3 * times['values'].minimum:.2f}",
        f"{1e3 * limit.minimum:.2f}" if limit else "",
        f"{mine.over(limit)[0]:.2f}" if limit else "",
        asked if limit else None,
    ]
    first = [f"{name} {setting}", f"{1e3 * mine.minimum:.2f}"]
    rivals = [rival for rival in RIVALS[kind] if rival in times]
    for rival in rivals:
        small, median = mine.over(times[rival])
        beside = [rival, f"{1e3 * times[rival].minimum:.2f}", f"{small:.3f}", f"{median:.3f}"]
        yield [*first, *beside, asked_of_rival(setting, kind, rival), *rest]
    if not rivals:
        yield [*first, "", "", "", "", None, *rest]


def grouped(seen: list[tuple[Setting, dict[str, Time]]]) -> Iterable[tuple[Setting, list[tuple[int, dict[str, Time]]]]]:
    """Rows that differ in length only, in ascending order."""

    def rest(one: tuple[Setting, dict[str, Time]]) -> tuple[str, bool, bool]:
        return one[0].kind, one[0].causal, one[0].learn

    for _, group in itertools.groupby(sorted(seen, key=rest), rest):
        some = sorted(group, key=lambda one: one[0].length)
        yield some[0][0], [(setting.length, times) for setting, times in some]


def slopes(seen: list[tuple[Setting, dict[str, Time]]]) -> Iterable[str]:
    for setting, some in grouped(seen):
        for name in ("window", "favor", "memory", "softmax"):
            there = [(length, times[name].minimum) for length, times in some if name in times]
            if len(there) > 1 and setting.kind == "float32":
                (l, a), (m, b) = there[-2:]
                way = str(setting).partition(" ")[2]
                yield f"{name} {way} {math.log(b / a) / math.log(m / l):.2f} ({l} to {m})"


def crossovers(seen: list[tuple[Setting, dict[str, Time]]]) -> Iterable[str]:
    """The length from which favor takes less time than exact attention, between lengths by powers."""
    for setting, some in grouped(seen):
        for rival in ("softmax", "torch"):
            both = [(l, t["favor"].minimum / t[rival].minimum) for l, t in some if "favor" in t and rival in t]
            way = str(setting).partition(" ")[2]
            for (l, a), (m, b) in itertools.pairwise(both):
                if a >= 1 > b:
                    place = l * (m / l) ** (math.log(a) / math.log(a / b))
                    yield f"favor takes less time than {rival} from about {place:.0f} items on ({way})"


def report_peaks(lines: list[tuple[Setting, dict[str, int | str]]]) -> None:
    rows: list[list[object]] = []
    for setting, found in lines:
        for name, size in found.items():
            if isinstance(size, str):
                continue
            other = found.get("performer-pytorch")
            ratio = f"{size / other:.3f}" if isinstance(other, int) and other and name not in QUADRATIC else ""
            asked = PEAK_ASKED if (name, setting) == ("favor", Setting(4096, causal=True)) and ratio else None
            rows.append([f"{name} {setting}", f"{size / 2**20:.1f}", ratio, asked])
    print()
    table(rows, ["the most memory beside the inputs", "MiB", "of performer-pytorch", "asked"])
    for reason in sorted({size for _, found in lines for size in found.values() if isinstance(size, str)}):
        print("not compared:", reason)
