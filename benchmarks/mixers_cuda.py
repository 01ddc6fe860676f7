"""How fast each mixer trains on a GPU: tokens per second of one layer, forward and backward, over attention's.

    python benchmarks/mixers_cuda.py [--lengths 256 1024 4096] [--mixers NAME ...] [--backends triton torch fla]

One layer of width 256 with 4 heads on 32,768 tokens, bf16 autocast, captured in a CUDA graph: the device's own time.
"""

import argparse
from collections.abc import Iterator

import torch
from device_time import timed

from assay.mixers import mixers
from assay.nn import scan

TOKENS, WIDTH = 32768, 256
MIXERS = (
    "attention:num_heads=4:conv=0",
    "attention:num_heads=4:conv=4",
    "sliding_window:num_heads=4",
    "linear_attention:num_heads=4",
    "based:num_heads=4",
    "gated_linear_attn:num_heads=4",
    "retention:num_heads=4",
    "mamba2:num_heads=4:d_state=64",
    "delta_net:num_heads=4",
    "gated_delta_net:num_heads=4",
    "delta_product:num_heads=4",
    "mlstm:num_heads=4",
    "mesa:num_heads=4",
    "kda:num_heads=4",
    "rwkv7:num_heads=4",
    "hyena",
    "base_conv",
)
RECURRENT = (
    "gated_linear_attn", "retention", "mamba2", "delta_net", "gated_delta_net", "delta_product", "mlstm", "mesa",
)  # fmt: skip


def milliseconds(label: str, length: int, backend: str) -> float:
    scan.backend = backend
    torch.manual_seed(0)
    layer = mixers.parse(label).build(WIDTH, length).cuda()
    x = torch.randn(TOKENS // length, length, WIDTH, device="cuda", requires_grad=True)
    pull = torch.randn_like(x)

    def step() -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            y = layer(x)
        torch.autograd.grad(y, [x, *layer.parameters()], pull.to(y.dtype))

    return timed(label, step).best


def rows(labels: list[str], lengths: list[int], backends: list[str]) -> Iterator[str]:
    base: dict[int, float] = {}
    for label in labels:
        for backend in backends if label.split(":")[0] in RECURRENT else ["torch"]:
            cells = []
            for length in lengths:
                try:
                    took = milliseconds(label, length, backend)
                except Exception as error:  # noqa: BLE001 - one mixer that does not run costs its own cell alone
                    cells.append(str(error).strip().splitlines()[0][:60])
                    continue
                base.setdefault(length, took)
                cells.append(f"{TOKENS / took / 1e3:.1f}M ({base[length] / took:.2f})")
            yield f"| {label} | {backend} | " + " | ".join(cells) + " |"


def main() -> None:
    ask = argparse.ArgumentParser()
    ask.add_argument("--lengths", nargs="+", type=int, default=[256, 1024, 4096])
    ask.add_argument("--mixers", nargs="+", default=list(MIXERS))
    ask.add_argument("--backends", nargs="+", default=["triton", "torch"])
    given = ask.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}: tokens/s trained (over the first row's)")
    print("| mixer | backend | " + " | ".join(f"L = {length}" for length in given.lengths) + " |")
    print("|---|---|" + "---|" * len(given.lengths))
    for row in rows(given.mixers, given.lengths, given.backends):
        print(row, flush=True)


if __name__ == "__main__":
    main()
