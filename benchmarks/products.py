"""What equal bits cost: products of matrices with the setting that `import assay` gives MKL, over those without it.

python benchmarks/products.py

CPU seconds of one thread, each setting in processes of its own, one after the other in turn; the best of five counts.
Where another library than MKL multiplies, as on ARM, both are the same.
"""

import argparse
import os
import subprocess
import sys

SETTINGS = ("AUTO", "AVX2,STRICT")
SIZES = (64, 256, 1024)
TRIES = 5
TIMED = """
import sys, time, torch
torch.set_num_threads(1)
for size in map(int, sys.argv[1:]):
    a, b = torch.randn(2, size, size)
    count = max(5, int(4e9 / size**3))
    for _ in range(5):
        a @ b
    start = time.process_time()
    for _ in range(count):
        a @ b
    print((time.process_time() - start) / count)
"""


def seconds(setting: str) -> list[float]:
    """CPU seconds of one product of each size, in a new process: MKL reads the setting once."""
    words = [sys.executable, "-c", TIMED, *map(str, SIZES)]
    ran = subprocess.run(words, env={**os.environ, "MKL_CBWR": setting}, capture_output=True, text=True, check=True)
    return [float(line) for line in ran.stdout.split()]


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    tried = [[seconds(setting) for setting in SETTINGS] for _ in range(TRIES)]
    for place, size in enumerate(SIZES):
        plain, equal = (min(times[each][place] for times in tried) for each in range(len(SETTINGS)))
        told = f"{1e6 * plain:.0f} us as it comes, {1e6 * equal:.0f} us with equal bits"
        print(f"{size} x {size}: {told}: {equal / plain:.2f}x")


if __name__ == "__main__":
    main()
