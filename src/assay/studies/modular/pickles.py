"""Reads pickles of tensors as data: nothing that a file names is imported, called or changed.

A pickle is a program for a stack machine. The machine here knows the instructions that a saved sweep is written with;
a name such as `torch.storage._load_from_bytes` is a mark on its stack, and what is done for each of the six that are
known stands in this file. Python's own unpickler, with a list of allowed names, is not enough: it lets a file set
attributes of what it was allowed to name, and numpy's dtype, once allowed, takes bytes of the file for addresses.

Every size is bounded by the length of the file: of strings and numbers by their instructions, of tensors by a count.
"""

import io
import pickletools
import struct
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

LITERALS = {
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT",
    "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8",
}  # fmt: skip
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
FRESH = {"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_TUPLE": tuple}
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
NUMBERS = {
    "f2": "e", "f4": "f", "f8": "d", "i1": "b", "i2": "h", "i4": "i", "i8": "q",
    "u1": "B", "u2": "H", "u4": "I", "u8": "Q",
}  # fmt: skip
"""numpy's names of plain numbers, and `struct`'s."""
STORAGES = {
    "FloatStorage": torch.float32, "DoubleStorage": torch.float64, "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16, "LongStorage": torch.int64, "IntStorage": torch.int32,
    "ShortStorage": torch.int16, "CharStorage": torch.int8, "ByteStorage": torch.uint8,
}  # fmt: skip
KNOWN = {
    "collections.OrderedDict", "numpy.dtype", "numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar",
    "torch.storage._load_from_bytes", "torch._utils._rebuild_parameter", "torch._utils._rebuild_tensor_v2",
}  # fmt: skip
MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
"""The header that torch writes before a storage."""
MAX_RANK = 8


class Unknown(ValueError):
    """The pickle asks for something that no saved sweep needs."""


@dataclass(frozen=True)
class Name:
    """A name from a pickle; the object itself is never imported."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"[:100]


@dataclass
class NumberType:
    """numpy's dtype of a plain number: `struct`'s letter, and its byte order."""

    letter: str
    order: str = "<"


@dataclass(frozen=True)
class Kept:
    """A reference to a torch storage whose bytes come later in the file."""

    dtype: torch.dtype
    key: str
    count: int


def read(data: bytes) -> Any:
    """Read containers, numbers, text and tensors; raise ValueError for everything else."""
    try:
        return _Machine(io.BytesIO(data), length=len(data)).run()
    except (IndexError, KeyError, TypeError, OverflowError, RecursionError, struct.error) as error:
        raise ValueError(f"it is damaged ({type(error).__name__})") from None


@dataclass
class _Machine:
    """Runs one pickle of a file that may hold several, one after another."""

    file: io.BytesIO
    length: int
    """Bytes of all storages together, and numbers of all tensors, are fewer than this: a file may name one twice."""
    stack: list[Any] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)
    bytes_stored: int = 0
    numbers_shown: int = 0

    def run(self) -> Any:
        for opcode, argument, _ in pickletools.genops(self.file):
            if opcode.name == "STOP":
                return self.stack.pop()
            self._step(opcode.name, argument)
        raise ValueError("it has no end")  # genops says so first

    def _step(self, opcode: str, argument: Any) -> None:
        if opcode in LITERALS:
            self.stack.append(argument)
        elif opcode in CONSTANTS:
            self.stack.append(CONSTANTS[opcode])
        elif opcode in FRESH:
            self.stack.append(FRESH[opcode]())
        elif opcode in TUPLES:
            self.stack.append(tuple(reversed([self.stack.pop() for _ in range(TUPLES[opcode])])))
        else:
            self._act(opcode, argument)

    def _act(self, opcode: str, argument: Any) -> None:
        match opcode:
            case "PROTO" | "FRAME":
                pass
            case "MARK":
                self.marks.append(len(self.stack))
            case "TUPLE":
                self.stack.append(tuple(self._since_mark()))
            case "LIST":
                self.stack.append(self._since_mark())
            case "DICT":
                items = self._since_mark()
                self.stack.append({})
                self._set(items)
            case "APPEND" | "APPENDS":
                items = [self.stack.pop()] if opcode == "APPEND" else self._since_mark()
                self._top(list).extend(items)
            case "SETITEM":
                value, key = self.stack.pop(), self.stack.pop()
                self._set([key, value])
            case "SETITEMS":
                self._set(self._since_mark())
            case "MEMOIZE":
                self.memo[len(self.memo)] = self.stack[-1]
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                self.memo[argument] = self.stack[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                self.stack.append(self.memo[argument])
            case _:
                self._make(opcode, argument)

    def _make(self, opcode: str, argument: Any) -> None:
        match opcode:
            case "GLOBAL":
                module, _, name = argument.partition(" ")
                self.stack.append(_named(module, name))
            case "STACK_GLOBAL":
                name, module = self.stack.pop(), self.stack.pop()
                self.stack.append(_named(_of(str, module), _of(str, name)))
            case "REDUCE":
                arguments, maker = self.stack.pop(), self.stack.pop()
                self.stack.append(self._made(_of(Name, maker), _of(tuple, arguments)))
            case "BUILD":
                self._build(self.stack.pop())
            case "BINPERSID":
                self.stack.append(_kept(_of(tuple, self.stack.pop())))
            case _:
                raise Unknown(f"the pickle has the instruction {opcode}")

    def _since_mark(self) -> list[Any]:
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def _top(self, *kinds: type) -> Any:
        if type(self.stack[-1]) not in kinds:
            raise ValueError(f"it puts items into a {type(self.stack[-1]).__name__}")
        return self.stack[-1]

    def _set(self, items: list[Any]) -> None:
        target = self._top(dict, OrderedDict)
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[_key(key)] = value

    def _made(self, maker: Name, arguments: tuple[Any, ...]) -> Any:
        """Build the object for one of the known names."""
        match str(maker), arguments:
            case "collections.OrderedDict", ():
                return OrderedDict()
            case "numpy.dtype", (str() as kind, *_) if kind.lstrip("<>|=") in NUMBERS:
                return NumberType(NUMBERS[kind.lstrip("<>|=")], ">" if kind.startswith(">") else "<")
            case (
                ("numpy.core.multiarray.scalar" | "numpy._core.multiarray.scalar"),
                (NumberType() as kind, bytes(data)),
            ):
                return struct.unpack(f"{kind.order}{kind.letter}", data)[0]
            case "torch.storage._load_from_bytes", (bytes(data),):
                return self._stored(data)
            case "torch._utils._rebuild_parameter", (Tensor() as values, *_):
                return values
            case "torch._utils._rebuild_tensor_v2", (Tensor() as storage, offset, tuple(sizes), tuple(strides), *_):
                return self._tensor(storage, offset, sizes, strides)
        raise Unknown(f"the pickle asks for {maker} with other arguments")

    def _stored(self, data: bytes) -> Tensor:
        self.bytes_stored += len(data)
        if self.bytes_stored > self.length:
            raise ValueError("it has more numbers than bytes")
        return _storage(data)

    def _tensor(self, storage: Tensor, offset: Any, sizes: tuple[Any, ...], strides: tuple[Any, ...]) -> Tensor:
        """View a storage, if all of it lies inside and no number is there twice."""
        numbers = (offset, *sizes, *strides)
        if any(type(n) is not int or not 0 <= n <= storage.numel() for n in numbers) or len(sizes) > MAX_RANK:
            raise ValueError("it has a tensor that is larger than its numbers")
        count = 1
        for n in sizes:
            count *= n
        end = offset + sum((n - 1) * stride for n, stride in zip(sizes, strides, strict=True)) + 1 if count else 0
        self.numbers_shown += count
        if end > storage.numel() or count > storage.numel() or self.numbers_shown > self.length:
            raise ValueError("it has a tensor that is larger than its numbers")
        return storage.as_strided(sizes, strides, offset)

    def _build(self, state: Any) -> None:
        """Apply an object's state: the byte order of a number. A state dict's metadata is ignored."""
        match self.stack[-1], state:
            case NumberType() as kind, (3 | 4, "<" | ">" | "|" | "=" as order, None, None, None, -1, -1, 0, *_):
                kind.order = ">" if order == ">" else "<"
            case OrderedDict(), dict():
                pass
            case top, _:
                raise Unknown(f"the pickle changes a {type(top).__name__}")


def _of(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise ValueError(f"it has a {type(value).__name__} where a {kind.__name__} belongs")
    return value


def _named(module: str, name: str) -> Name:
    found = Name(module, name)
    if str(found) not in KNOWN and (module != "torch" or name not in STORAGES):
        raise Unknown(f"the pickle asks for {found}")
    return found


def _key(value: Any) -> Any:
    """Accept flat keys only: hashing deeply nested tuples may take for ever, or overflow the stack."""
    for item in value if type(value) is tuple else (value,):
        if type(item) not in (str, int, float, bool, type(None)):
            raise ValueError(f"it has a key with a {type(item).__name__}")
    return value


def _kept(told: tuple[Any, ...]) -> Kept:
    match told:
        case ("storage", Name(module="torch", name=name), str(key), str(), int(count), None) if name in STORAGES:
            return Kept(STORAGES[name], key, count)
    raise ValueError("it has a storage of another kind than numbers")


def _storage(data: bytes) -> Tensor:
    """Read a storage as torch writes it inside a pickle: five pickles, the count of its numbers, their bytes."""
    file = io.BytesIO(data)
    magic, protocol, system, kept, keys = (_Machine(file, length=0).run() for _ in range(5))
    if (magic, protocol) != (MAGIC, PROTOCOL) or type(system) is not dict or system.get("little_endian") is not True:
        raise ValueError("it has a storage that torch did not write, or on a big-endian machine")
    kept = _of(Kept, kept)
    if [_of(str, key) for key in _of(list, keys)] != [kept.key]:
        raise ValueError("it has a storage with more or less than one part")
    (count,), numbers = struct.unpack("<q", file.read(8)), file.read()
    if count != kept.count or len(numbers) != count * kept.dtype.itemsize:
        raise ValueError("it has a storage that is cut short")
    return torch.frombuffer(bytearray(numbers), dtype=kept.dtype) if count else torch.empty(0, dtype=kept.dtype)
