"""Reads mutated pickles in this process, which a test watches from outside: `python pickle_fuzz.py FOLDER FIRST COUNT`.

Each is read, or refused with a UserError of one line; any other exception ends the process, as a crash or a file that
takes more than 1 GB or 20 seconds of CPU would. Prints how many were read and refused. Case n is the same everywhere.
"""

import pickle
import random
import resource
import signal
import struct
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch

P = 5
WORDS = [
    b"cnumpy\ndtype\n", b"cnumpy._core.multiarray\nscalar\n", b"ctorch._utils\n_rebuild_tensor_v2\n", b"cos\nsystem\n",
    b"ctorch.storage\n_load_from_bytes\n", b"ccollections\nOrderedDict\n", b"\x8c\x02O8\x89\x88\x87R", b"R", b"b", b"t",
    b"u", b"s", b"(", b"\x86", b"0", b"2", b"K\xff", b"J\xff\xff\xff\xff", b"\x8a\x08" + b"\xff" * 7 + b"\x7f", b"Q",
    b"r\xff\xff\xff\x7f", b"\x8e" + b"\xff" * 7 + b"\x7f", b"\x96" + b"\xff" * 7 + b"\x7f", b"}", b")", b"h\x00",
    b"\x8b\x00\x10\x00\x00" + b"\x7f" * 4096,
]  # fmt: skip
"""What pickles are made of, and what attacks on them use: huge sizes, memo places, calls, changes of state."""


def pointer() -> bytes:
    """A dtype with a field of objects, made by BUILD, and a scalar of it: 8 bytes that numpy takes for an address."""
    objects = b"cnumpy\ndtype\n\x8c\x02O8\x89\x88\x87R"
    state = b"(K\x03\x8c\x01|N\x8c\x01f\x85}\x8c\x01f" + objects + b"K\x00\x86sK\x08K\x01K\x00tb"
    scalar = b"cnumpy._core.multiarray\nscalar\ncnumpy\ndtype\n\x8c\x02V8\x89\x88\x87R" + state
    scalar += b"C\x08" + struct.pack("<Q", 0x4141414141414141) + b"\x86R"
    return b"\x80\x04}(\x8c\x08val_accs}K\x01" + scalar + b"s\x8c\x06models}K\x01}su."


def seeds() -> list[bytes]:
    """Sweeps as they are written here and elsewhere, and the attack."""
    layer = torch.nn.Linear(1, P, bias=False)
    state = layer.state_dict()
    state["projection.weight"] = state.pop("weight")
    state["bi_linear.weight"] = torch.arange(4.0 * P).view(2, 2 * P)
    half = OrderedDict((name, weight.to(torch.bfloat16)) for name, weight in state.items())
    double = {name: torch.nn.Parameter(weight.double()) for name, weight in state.items()}
    accuracies: dict[Any, Any] = {1: np.float64(0.5), 2: np.float32(0.25), 3: np.int64(1), 4: torch.tensor(0.5)}
    models: list[Any] = [{1: state}, {1: half}, {1: double}, {(1, 0): state, (1, 1): half}]
    sweeps = [{"P": P, "val_accs": accuracies, "models": one} for one in models]
    return [pickle.dumps(sweep, protocol=protocol) for sweep in sweeps for protocol in (3, 4, 5)] + [pointer()]


def mutated(known: list[bytes], number: int) -> bytes:
    rng = random.Random(number)
    data = bytearray(rng.choice(known))
    for _ in range(rng.choice((0, 1, 1, 2, 4, 16))):
        place = rng.randrange(len(data) + 1)
        match rng.randrange(6):
            case 0:
                data[place : place + 1] = bytes([rng.randrange(256)])
            case 1:
                data[place : place + rng.randrange(1, 40)] = b""
            case 2:
                data[place:place] = rng.choice(WORDS)
            case 3:
                data[place : place + 4] = rng.choice((b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff", b"\0\0\0\0"))
            case 4:
                other, begin = rng.choice(known), rng.randrange(100)
                data[place:place] = other[begin : begin + rng.randrange(1, 200)]
            case _:
                data[place:place] = data[place : place + rng.randrange(1, 60)] * rng.randrange(1, 30)
    return bytes(data)


def main(folder: Path, first: int, count: int) -> None:
    from assay.core.errors import UserError
    from assay.studies.modular import files

    known = seeds()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, used + 2**30))
    path, read = folder / "mutated.pkl", 0
    for number in range(first, first + count):
        path.write_bytes(mutated(known, number))
        signal.setitimer(signal.ITIMER_VIRTUAL, 20)  # of CPU: other processes do not count
        try:
            read += bool(files.load(path).sha256)
        except UserError as error:
            assert len(str(error).splitlines()) == 1 and len(str(error)) < 1000, (number, str(error))
        except BaseException:
            print(f"case {number}", file=sys.stderr)
            raise
    print(read, count - read)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
