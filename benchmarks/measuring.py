"""Shared by the benchmarks: a verdict's line, and the command line."""

import argparse
from collections.abc import Callable, Mapping, Sequence


def verdict(text: str, *, goal: str, met: bool) -> bool:
    print(f"{text} (goal {goal}){'' if met else '  MISSED'}", flush=True)
    return met


def parser_of(description: str, measurements: Mapping[str, object]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(measurements)}")
    return parser


def asked(parser: argparse.ArgumentParser, names: Sequence[str], measurements: Mapping[str, object]) -> None:
    """Raise unless every name is a measurement."""
    if unknown := set(names) - set(measurements):
        parser.error(f"no measurement named {', '.join(sorted(unknown))}; there are {', '.join(measurements)}")


def main(description: str, measurements: Mapping[str, Callable[[], bool]], default: Sequence[str] | None = None) -> int:
    """Run the chosen measurements on one thread; return 1 if a goal is missed."""
    import torch
    from threadpoolctl import threadpool_limits  # comes with scikit-learn

    parser = parser_of(description, measurements)
    names = parser.parse_args().names or default or list(measurements)
    asked(parser, names, measurements)
    torch.set_num_threads(1)
    with threadpool_limits(1):  # torch's own setting does not reach NumPy's BLAS
        met = [measurements[name]() for name in names]
    return 0 if all(met) else 1
