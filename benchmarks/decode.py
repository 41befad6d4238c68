"""Writing texts: ours against transformers' ``generate``, against the memory's bandwidth, and in constant memory.

    python benchmarks/decode.py
    OMP_NUM_THREADS=1 python benchmarks/decode.py --threads 1
    python benchmarks/decode.py --alone 64 --together 8x256 --beam 64 --rounds 3

A language model of GPT-2's form (6 layers, 512 wide, 8 heads, 8192 tokens, tied embeddings) writes greedily from one
token, never ending early: one row of 256 tokens, and 16 rows of 1024, with a cache of keys and values and with the
state of favor attention (256 features), each against transformers' GPT-2 of the same size with its cache; then a beam
of four. All candidates of a table take turns in one process; the ratio is the median over the rounds of the ratio
within a round. Everything runs with the same number of threads, after ``mapsto.process.tune_process``; one thread is
timed by the CPU's clock. On a machine that others use, several threads wait for each other by spinning: set
``OMP_WAIT_POLICY=passive`` then.

The limit of one row is reading all weights once a token, as fast as this machine reads memory: the faster of a sum and
a matrix-vector product over a tensor that no cache holds. bfloat16 is measured where the CPU multiplies it natively.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from mapsto import kinds
from mapsto.models.mapper import Mapper
from mapsto.models.search import Beam, Greedy, Strategy, search
from mapsto.nn.initial import initialise
from mapsto.nn.position import Learned
from mapsto.nn.transformer import Encoder, Prior
from mapsto.outputs.sequence import SequenceOutput
from mapsto.process import tune_process
from mapsto.vocabulary import BEGIN, Symbols
from race import table

DIM, DEPTH, HEADS, SIZE, LONGEST = 512, 6, 8, 8192, 1025

ASKED = {"alone": 1.9, "softmax": 4.0, "favor": 7.0}
ASKED_OF_BANDWIDTH = 0.7

Calls = dict[str, Callable[[], object]]


def ours(attention: str) -> Mapper:
    vocabulary = Symbols([f"w{i}" for i in range(SIZE - 3)])
    reader = Prior(DIM, DEPTH, HEADS, attention=kinds.make("attention", attention), position=Learned(DIM, LONGEST))
    output = SequenceOutput(DIM, name="text", vocabulary=vocabulary, window=LONGEST)
    model = Mapper({}, Encoder(DIM, 0, HEADS), reader, output)
    initialise(model, 0)
    return model.eval()


def writing(model: Mapper, rows: int, tokens: int, how: Strategy) -> Callable[[], object]:
    prompt = torch.full((rows, 1), BEGIN)

    def write() -> object:
        draft = model.begin({}, rows, tokens + 1)
        found = search(model.write, draft, prompt, strategy=how, limit=tokens, ends=())
        assert all(len(lines[0].ids) == tokens for lines in found)
        return found

    return write


def theirs(kind: torch.dtype = torch.float32) -> Any:
    try:
        from transformers import GPT2Config, GPT2LMHeadModel
    except ImportError as error:
        print(f"not compared: transformers ({error})")
        return None
    config = GPT2Config(
        vocab_size=SIZE,
        n_embd=DIM,
        n_layer=DEPTH,
        n_head=HEADS,
        n_positions=LONGEST,
        bos_token_id=BEGIN,
        eos_token_id=None,
        pad_token_id=0,
    )
    return GPT2LMHeadModel(config).eval().to(kind)


def generating(model: Any, rows: int, tokens: int, beams: int = 1) -> Callable[[], object]:
    prompt = torch.full((rows, 1), BEGIN)

    def write() -> object:
        found = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=tokens,
            do_sample=False,
            use_cache=True,
            num_beams=beams,
        )
        assert found.shape == (rows, tokens + 1)
        return found

    return write


def turns(calls: Calls, rounds: int, clock: Callable[[], float], *, warm: bool = True) -> dict[str, list[float]]:
    """Seconds of each call in each round; a first round warms up, unless calls are long."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(-warm, rounds):
        for name, call in calls.items():
            start = clock()
            call()
            if turn >= 0:
                taken[name].append(clock() - start)
    return taken


def ratio(slow: list[float], fast: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(slow, fast, strict=True))


def weights(model: Mapper) -> int:
    """Bytes of the parameters that each token needs whole: all but the table of places, since embeddings are tied."""
    return sum(p.numel() * p.element_size() for n, p in model.named_parameters() if "position" not in n)


def reading(size: int = 1 << 28) -> Calls:
    """Ways to read ``size`` bytes once."""
    table = torch.ones(size // 4 // 2048, 2048)
    vector = torch.ones(2048)
    return {"sum": lambda: table.sum(), "matrix-vector": lambda: table @ vector}


def natively() -> bool:
    """Whether the CPU multiplies bfloat16 itself."""
    has = torch.cpu.get_capabilities()
    return bool(has.get("amx_bf16") or has.get("avx512_bf16"))


def tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for one in value:
            yield from tensors(one)
    elif is_dataclass(value):
        for field in fields(value):
            yield from tensors(getattr(value, field.name))


def held(model: Mapper, tokens: int) -> int:
    """Bytes of the draft after so many tokens, counting each storage once."""
    draft = model.begin({}, 1, tokens + 1)
    for _ in range(tokens):
        *_, draft = model.write(torch.full((1, 1), BEGIN), draft)
    found = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors(draft.own)}
    return sum(found.values())


def report(what: str, tokens: int, taken: dict[str, list[float]], asked: dict[str, float]) -> None:
    rows = []
    for name, times in taken.items():
        peer = taken.get("transformers")
        faster = f"{ratio(peer, times):.2f}" if peer and name != "transformers" else ""
        rows.append([name, f"{tokens / statistics.median(times):.0f}", faster, asked.get(name) if faster else None])
    table(rows, [what, "tokens/s", "of transformers", "asked"])
    print()


def one_row(models: dict[str, Mapper], peer: Any, args: argparse.Namespace) -> None:
    kinds_of = [torch.float32, *([torch.bfloat16] if natively() else [])]
    if len(kinds_of) == 1:
        print("this CPU has no native bfloat16: not measured\n")
    for kind in kinds_of:
        calls: Calls = {n: writing(model.to(kind), 1, args.alone, Greedy()) for n, model in models.items()}
        if peer is not None:
            calls["transformers"] = generating(peer.to(kind), 1, args.alone)
        size = 1 << 28
        taken = turns({**calls, **reading(size)}, args.rounds, args.now)
        reads = [min(pair) for pair in zip(taken.pop("sum"), taken.pop("matrix-vector"), strict=True)]
        report(f"1 x {args.alone}, {kind}", args.alone, taken, {"softmax": ASKED["alone"]})
        need = weights(models["softmax"])
        print(f"memory is read at {size / statistics.median(reads) / 1e9:.1f} GB/s, weights are {need / 1e6:.1f} MB")
        for name in models:
            share = statistics.median(r * need / size * args.alone / t for r, t in zip(reads, taken[name], strict=True))
            print(f"share of the bandwidth, {name}: {share:.2f} (asked {ASKED_OF_BANDWIDTH})")
        print()
    for model in models.values():
        model.to(torch.float32)
    if peer is not None:
        peer.to(torch.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--alone", type=int, default=256, help="tokens of one row; 0 leaves it out")
    parser.add_argument("--together", default="16x1024", help="rows x tokens; 0 leaves it out")
    parser.add_argument("--beam", type=int, default=128, help="tokens of a row with a beam of four; 0 leaves it out")
    parser.add_argument("--held", type=int, nargs="*", default=[64, 256, 1024], help="tokens to measure drafts after")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    args.now = time.process_time if args.threads == 1 else time.perf_counter
    torch.set_num_threads(args.threads)
    setting, clock = tune_process(), "CPU time" if args.threads == 1 else "wall time"
    print(
        f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, {args.threads} threads, {clock}; {setting}\n"
    )
    models, peer = {name: ours(name) for name in ("softmax", "favor")}, theirs()
    if args.alone:
        one_row(models, peer, args)
    if args.together != "0":
        rows, tokens = map(int, args.together.split("x"))
        calls: Calls = {n: writing(model, rows, tokens, Greedy()) for n, model in models.items()}
        if peer is not None:
            calls["transformers"] = generating(peer, rows, tokens)
        report(f"{rows} x {tokens}", rows * tokens, turns(calls, max(1, args.rounds // 2), args.now, warm=False), ASKED)
    if args.beam:
        calls = {n: writing(model, 1, args.beam, Beam(4)) for n, model in models.items()}
        if peer is not None:
            calls["transformers"] = generating(peer, 1, args.beam, beams=4)
        report(f"beam of 4, 1 x {args.beam}", args.beam, turns(calls, args.rounds, args.now), {})
    if args.held:
        rows_held = [[name, *(f"{held(model, n) / 2**20:.2f}" for n in args.held)] for name, model in models.items()]
        table(rows_held, ["MiB of a draft of one row after tokens", *map(str, args.held)])


if __name__ == "__main__":
    main()
