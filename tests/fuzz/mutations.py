"""Changes of a file: of its bytes, its lines, its values, its structure, or of what stands in its place.

A change of one kind of file is drawn from a table of names and functions, and says its name.  The bytes of HDF5 are
those of its library: a file of it is changed in its structure alone, or cut.
"""

from __future__ import annotations

import copy
import io
import json
import os
import random
import socket
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import h5py
import numpy as np
import yaml

from tests.fuzz import child

T = TypeVar("T")
Changed = tuple[bytes, str]  # the content of a file, and what was done to it
TEXTS = (".csv", ".txt", ".geo", ".dyna", ".json", ".jsonl", ".yaml", ".toml")
# What may stand in the place of a file.
KINDS = ("empty", "missing", "folder", "loop", "dangling", "pipe", "zeros", "null", "socket")
NAMES = {"bytes name": b"caf\xe9", "long name": b"n" * 250, "no name": b"n" * 300}  # longer than a file system has them
NUMBERS = b"nan inf -inf 1e400 -1e400 -1 0 99999999999999999999999999 1e-400 NaN 0x10 1_000 1e5 1.5.2 -0.0 .5 5."
WORDS = b"null true True None %s%n ../../etc/passwd !!python/object/apply:os.system"
TIMES = "2012-13-45 25:61:00|2012-02-30 00:00:00|0000-00-00 00:00:00|9999-12-31 23:59:59|2012-03-01T00:00:00Z"
MARKS = '\x00|\ufeff|\r\n|\r|\n\n|\x1b[31m|\u2028|\u0663|"|""|\'|"\n|,|,,|;|\t| |#|\\|{|}|[|]|:|&a |*a|<<: *a|--- \n'
TOKENS: tuple[bytes, ...] = (
    *(*NUMBERS.split(), *WORDS.split(), *TIMES.encode().split(b"|"), *MARKS.encode().split(b"|")),
    *(b"\xff\xfe", b"\xe9", b"2012-03-01 00:00:00+01:00", b"x" * 5000, b"9" * 400, b"9" * 5000, b"a,b" * 3000),
    *("\U0001f600".encode() * 200, b"[" * 3000, b"{" * 3000, b'{"a":' * 3000),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 1 << 31, 1 << 64, 10**400, -(10**30), 0.5, -0.0, 1e308),
    *(float("nan"), float("inf"), "", "a", "0", "nan", "x" * 3000, "\x00", "\u2028", "\ud800", "12", "none"),
    *("/dev/zero", "..", "victim.h5", [], {}, [[]], [1, 2], ["a"], {"a": 1}, {"": None}, [None] * 3),
    *({"mean": 0, "std": 0}, {"avg_speed": 7}),
)


def choose(dice: random.Random, ways: Mapping[str, Callable[[], T]]) -> tuple[T, str]:
    """What one of these functions returns, and its name."""
    name = dice.choice(list(ways))
    return ways[name](), name


def other_name(path: Path, kind: str) -> str:
    """The name of a target in a case of this kind."""
    return os.fsdecode(NAMES[kind]) + path.suffix


def lay_out(path: Path, kind: str, content: bytes | None) -> None:
    """Put a file, or what stands in its place, at ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    links = {"loop": path.name, "dangling": "nowhere", "zeros": "/dev/zero", "null": "/dev/null"}
    if kind in links:
        path.symlink_to(links[kind])
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        here = Path.cwd()
        os.chdir(path.parent)  # the path of a socket is short
        try:
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(path.name)
        finally:
            os.chdir(here)
    elif kind not in ("missing", "no name"):
        path.write_bytes(b"" if kind == "empty" else content or b"")


def mutate(
    content: bytes, name: str, dice: random.Random, others: list[bytes], scratch: Path
) -> tuple[bytes, str, bool]:
    """A changed file, what was done to it, and whether only bytes were damaged."""
    suffix, how = Path(name).suffix, ""
    draw = dice.random()
    if suffix in STRUCTURAL and draw < (0.95 if suffix == ".h5" else 0.55):
        try:
            return *STRUCTURAL[suffix](content, dice, scratch), False
        except (ValueError, LookupError, TypeError, RuntimeError, OSError, OverflowError, AttributeError) as error:
            how = f"no structure ({type(error).__name__}); "
    elif suffix == ".h5":
        return content[: dice.randrange(len(content))], "the rest cut", True
    elif suffix in TEXTS and draw < 0.85:
        return *repeated(of_text, (1, 1, 2, 3), content, dice, others), False
    content, changes = repeated(of_bytes, (1, 1, 1, 2, 4), content, dice, others)
    return content, how + changes, True


def repeated(
    change: Callable[..., Changed], counts: tuple[int, ...], content: bytes, dice: random.Random, others: list[bytes]
) -> Changed:
    """So many changes, one after the other."""
    names = []
    for _ in range(dice.choice(counts)):
        content, name = change(content, dice, others)
        names.append(name)
    return content, "; ".join(names)


# --- bytes and texts -------------------------------------------------------------------------------------------------


def of_bytes(content: bytes, dice: random.Random, others: list[bytes]) -> Changed:
    """One change of any bytes."""
    if not content:
        return dice.choice(TOKENS), "a token"
    place = dice.randrange(min(len(content), 4096) if dice.random() < 0.3 else len(content))
    end = min(len(content), place + dice.choice((1, 4, 16, 100, 512, 4096)))
    before, part, after = content[:place], content[place:end], content[end:]
    other, token, bit = dice.choice(others) or b"-", dice.choice(TOKENS), 1 << dice.randrange(8)
    cut = dice.randrange(len(other))
    flipped: Callable[[], bytes] = lambda: before + bytes([content[place] ^ bit]) + content[place + 1 :]  # noqa: E731
    changed, name = choose(
        dice,
        {
            f"bit {bit} flipped": flipped,
            f"a bit flipped, {bit}": flipped,
            "the rest cut": lambda: before,
            "removed": lambda: before + after,
            "doubled": lambda: before + part + part + after,
            "zeroed": lambda: before + bytes(len(part)) + after,
            "replaced": lambda: before + dice.randbytes(len(part)) + after,
            f"spliced with another from {cut}": lambda: before + other[cut:],
            f"{token[:20]!r} inserted": lambda: before + token + part + after,
            f"{token[:20]!r} written": lambda: before + token + content[place + len(token) :],
        },
    )
    return changed, f"{len(part)} bytes at {place}: {name}"


def of_text(content: bytes, dice: random.Random, others: list[bytes]) -> Changed:
    """One change of cells, of lines or of the whole text."""
    return dice.choice((_cell, _cell, _cell, _lines, _lines, _whole, _token, of_bytes))(content, dice, others)


def _cell(content: bytes, dice: random.Random, _: list[bytes]) -> Changed:
    lines = content.split(b"\n")
    row = dice.choice((0, 1, dice.randrange(len(lines)))) % len(lines)
    cells = lines[row].split(b",")
    column = dice.randrange(len(cells))
    token = dice.choice(TOKENS)
    cells[column] = dice.choice((token, token, cells[column] + token, token + cells[column]))
    lines[row] = b",".join(cells)
    return b"\n".join(lines), f"cell {column} of line {row} with {token[:20]!r}"


def _token(content: bytes, dice: random.Random, _: list[bytes]) -> Changed:
    place, token = dice.randrange(len(content) + 1), dice.choice(TOKENS)
    return content[:place] + token + content[place:], f"{token[:20]!r} inserted at {place}"


def _lines(content: bytes, dice: random.Random, others: list[bytes]) -> Changed:
    lines = content.split(b"\n")
    first = dice.randrange(len(lines))
    last = min(len(lines), first + dice.choice((1, 1, 3, 10)))
    before, part, after = lines[:first], lines[first:last], lines[last:]
    changed, name = choose(
        dice,
        {
            "removed": lambda: before + after,
            "doubled": lambda: before + part * 2 + after,
            "reversed": lambda: before + part[::-1] + after,
            "from another": lambda: before + dice.choice(others).split(b"\n")[: len(part)] + after,
            "between blank ones": lambda: [*before, b"", *part, b"  ", *after],
            "moved to the end": lambda: before + after + part,
        },
    )
    return b"\n".join(changed), f"lines {first} to {last} {name}"


def _whole(content: bytes, dice: random.Random, _: list[bytes]) -> Changed:
    text = content.decode("utf-8", "replace")

    def quoted() -> bytes:
        rows = [line.split(b",") if line else [] for line in content.split(b"\n")]
        return b"\n".join(b",".join(b'"' + cell + b'"' for cell in row) for row in rows)

    ways: dict[str, Callable[[], bytes]] = {
        "CRLF": lambda: content.replace(b"\n", b"\r\n"),
        "CR": lambda: content.replace(b"\n", b"\r"),
        "BOM": lambda: b"\xef\xbb\xbf" + content,
        "two BOMs": lambda: b"\xef\xbb\xbf" * 2 + content,
        "UTF-16": lambda: text.encode("utf-16", "replace"),
        "UTF-32": lambda: text.encode("utf-32", "replace"),
        "latin": lambda: ("é" + text).encode("latin-1", "replace"),
        "quotes": quoted,
        "semicolons": lambda: content.replace(b",", b";"),
        "tabs": lambda: content.replace(b",", b"\t"),
        "spaces": lambda: content.replace(b",", b" , "),
        "decimal commas": lambda: content.replace(b".", b","),
        "no last line end": lambda: content.rstrip(b"\n"),
        "one line": lambda: content.replace(b"\n", b""),
        "a column more": lambda: content.replace(b"\n", b",1\n"),
        "a last comma": lambda: content.replace(b"\n", b",\n"),
        "upper case": content.upper,
        "NULs": lambda: content.replace(b"\n", b"\x00\n"),
        "long": lambda: content + content * 60,
        "zeros behind": lambda: content + bytes(3 << 20),
        "a long line": lambda: content + b"1," * (1 << 20) + b"\n",
        "gzip": lambda: b"\x1f\x8b\x08\x00" + content,
        "underlines": lambda: content.replace(b"0", b"0_0"),
    }
    return choose(dice, ways)


# --- trees of values: JSON and YAML -------------------------------------------------------------------------------


def places(tree: Any) -> list[tuple[Any, Any]]:
    """Each (holder, key) of a tree."""
    entries = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [place for key, value in entries for place in ((tree, key), *places(value))]


def a_value(dice: random.Random) -> Any:
    """One of the values, which the next change may change too."""
    return copy.deepcopy(dice.choice(VALUES))


def of_tree(tree: Any, dice: random.Random) -> tuple[Any, str]:
    """One to two changes of the values of a tree."""
    names = []
    for _ in range(dice.choice((1, 1, 1, 2))):
        found = places(tree)
        if not found or dice.random() < 0.05:
            tree = a_value(dice)
            return tree, f"all of it {str(tree)[:20]!r}"
        (holder, key), (other, other_key) = dice.choice(found), dice.choice(found)
        value, kind = holder[key], dice.choice(("value", "value", "value", "gone", "more", "of another", "near"))
        if kind == "value":
            holder[key] = a_value(dice)
        elif kind == "gone":
            del holder[key]
        elif kind == "more" and isinstance(holder, dict):
            holder[str(a_value(dice))[:20]] = a_value(dice)
        elif kind == "more":
            holder.append(a_value(dice))
        elif kind == "of another":
            holder[key] = copy.deepcopy(other[other_key])
        elif isinstance(value, int | float):
            holder[key] = value + dice.choice((1, -1, 0.5, 1e9))
        elif isinstance(value, str):
            holder[key] = value + dice.choice(("x", " ", "\n", "\u2028", "\x1b[31m"))
        names.append(f"{kind} at {str(key)[:40]}")
    return tree, "; ".join(names)


def _json_bytes(*trees: Any) -> bytes:
    return "".join(json.dumps(tree, default=str) + "\n" for tree in trees).encode("utf-8", "surrogatepass")


def of_json(content: bytes, dice: random.Random, _: Path) -> Changed:
    """Other values in a JSON text."""
    tree, how = of_tree(json.loads(content), dice)
    return _json_bytes(tree), how


def of_json_lines(content: bytes, dice: random.Random, _: Path) -> Changed:
    """Other values in lines of JSON."""
    tree, how = of_tree([json.loads(line) for line in content.splitlines()], dice)
    return _json_bytes(*(tree if isinstance(tree, list) else [tree])), how


def of_yaml(content: bytes, dice: random.Random, _: Path) -> Changed:
    """Other values in a YAML text."""
    tree, how = of_tree(yaml.safe_load(content), dice)
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True).encode("utf-8", "surrogatepass"), how


# --- arrays ----------------------------------------------------------------------------------------------------------

HEADERS = b"(99999999999, 3)|(-1, 3)|()|(0, 3)|(3, 99999999999)|(True, 2)|(1e3, 3)|None"


def _npy(array: np.ndarray, allow_pickle: bool = False) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=allow_pickle)
    return stream.getvalue()


def of_npy(content: bytes, dice: random.Random, _: Path) -> Changed:
    """Other numbers, types and shapes in an .npy file."""
    array = np.load(io.BytesIO(content), allow_pickle=False)
    place = tuple(dice.randrange(size) for size in array.shape)
    number = dice.choice((np.nan, np.inf, -np.inf, 1e308, 1e39, -1.0, 1e-40))
    dtype = dice.choice(("<f2", ">f8", "<i8", "u1", "?", "<c16", "S5", "<U3", "<M8[s]", "f8,i4", ">i2", "<f4"))

    def with_number() -> np.ndarray:
        changed = array.astype(np.float64) if array.ndim else array.copy()
        if array.ndim:
            changed[place] = number
        return changed

    def cast() -> np.ndarray:
        with np.errstate(all="ignore"):
            plain = np.nan_to_num(array)
            return plain.astype(dtype) if "," not in dtype else np.zeros(array.shape, dtype)

    def in_header(old: bytes, *new: bytes) -> bytes:
        return content.replace(old, dice.choice(new), 1)

    ways: dict[str, Callable[[], bytes]] = {
        f"{number} at {place}": lambda: _npy(with_number()),
        f"type {dtype}": lambda: _npy(cast()),
        "objects": lambda: _npy(array.astype(object), True),
        "columns first": lambda: _npy(np.asfortranarray(array)),
        "turned": lambda: _npy(array.T),
        "a dimension more": lambda: _npy(array[None]),
        "flat": lambda: _npy(array.ravel()),
        "no rows": lambda: _npy(array[:0]),
        "one row": lambda: _npy(array[:1]),
        "fewer rows": lambda: _npy(array[: -dice.randrange(1, 5)]),
        "rows twice": lambda: _npy(np.concatenate([array, array])),
        "rows turned round": lambda: _npy(array[::-1]),
        "a row moved": lambda: _npy(np.roll(array, 1, axis=0)),
        "one sensor": lambda: _npy(array[:, :1]),
        "another shape in the header": lambda: in_header(str(array.shape).encode(), *HEADERS.split(b"|")),
        "another type in the header": lambda: in_header(b"<f8", b"|O8", b"<f4", b"<x8", b"<M8"),
        "Fortran in the header": lambda: in_header(b"False", b"True "),
        "code in the header": lambda: in_header(b"'<f8'", b"exit()"),
        "version 9": lambda: content[:6] + b"\x09" + content[7:],
        "version 2": lambda: content[:6] + b"\x02" + content[7:],
        "bytes behind": lambda: content + b"\x00" * 8,
    }
    return choose(dice, ways)


def of_npz(content: bytes, dice: random.Random, scratch: Path) -> Changed:
    """Other members in a zip."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    place = dice.randrange(len(members))
    name, inner = members[place]
    kinds = ("member", "bytes", "gone", "twice", "name", "stored", "bzip2", "bomb", "encrypted")
    kind = "member" if dice.random() < 0.2 else dice.choice(kinds)
    how = f"{kind} of {name}"
    if kind in ("member", "bytes"):
        inner, how = of_npy(inner, dice, scratch) if kind == "member" else of_bytes(inner, dice, [inner])
        members[place], how = (name, inner), f"{name}: {how}"
    elif kind == "gone":
        del members[place]
    elif kind == "twice":
        members.append((f"other_{name}", inner))
    elif kind == "name":
        names = ("data.npy", "x.npy", "../x.npy", "a/b.npy", "\u00e9.npy", "x" * 300, "a\nb.npy")
        members[place] = (dice.choice(names), inner)
    elif kind == "bomb":
        members[place] = (name, inner + bytes(30 << 20))
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # two members of one name
        for member, inside in members:
            info = zipfile.ZipInfo(member)
            packing = {"stored": zipfile.ZIP_STORED, "bzip2": zipfile.ZIP_BZIP2}
            info.compress_type = packing.get(kind, zipfile.ZIP_DEFLATED)
            archive.writestr(info, inside)
    made = bytearray(stream.getvalue())
    if kind == "encrypted":  # the flag of the first and of the last header
        made[6] |= 1
        made[made.rfind(b"PK\x01\x02") + 8] |= 1
    return bytes(made), how


# --- HDF5 ------------------------------------------------------------------------------------------------------------


def of_hdf5(content: bytes, dice: random.Random, scratch: Path) -> Changed:
    """Other types, shapes, links and attributes in an HDF5 file; changed in a child, for HDF5 may fail there."""
    path, seed = scratch / "structure.h5", dice.random()
    path.write_bytes(content)
    with h5py.File(scratch / "victim.h5", "w") as file:
        file["g/d"] = np.arange(5.0)
    done = child.run(lambda: print(_change_hdf5(path, random.Random(seed))), path.parent, 20)
    if done.code != 0:
        raise ValueError("not changed")
    return path.read_bytes(), done.stdout.strip()


def _change_hdf5(path: Path, dice: random.Random) -> str:
    changes = []
    with h5py.File(path, "r+") as file:
        for _ in range(dice.choice((1, 1, 1, 2))):
            names: list[str] = []
            file.visit(names.append)
            name = dice.choice(sorted(names))
            if dice.random() < 0.35 and file[name].parent.name != "/":
                name = file[name].parent.name.strip("/")
            holders = [each for each in ["/", *sorted(names)] if len(file[each].attrs)]
            if holders and dice.random() < 0.3:
                changes.append(_change_attribute(file[dice.choice(holders)], dice))
            elif dice.random() < (0.25 if isinstance(file[name], h5py.Dataset) else 0.5):
                changes.append(_change_link(file, name, dice))
            elif isinstance(file[name], h5py.Dataset):
                changes.append(_change_dataset(file, name, dice))
            else:
                changes.append(_change_group(file, name, dice))
    return "; ".join(changes)


ODD: dict[str, Any] = {  # what no reader expects, by name
    "a long text": "x" * 40_000,
    "bytes": np.bytes_(b"caf\xe9"),
    "NaN": np.nan,
    "minus one": -1,
    "huge": np.uint64(2**64 - 1),
    "a matrix": np.eye(2),
    "nothing": h5py.Empty("f"),
    "texts": np.array(["a", "b"], dtype=object).astype(h5py.string_dtype("utf-8")),
    "no texts": np.array([], dtype="S3"),
    "a complex": np.complex64(1j),
    "a compound": np.zeros(2, dtype="f4,i8"),
    "JSON": np.bytes_(b'{"avg_speed": 7}'),
    "deep JSON": np.bytes_(b"[" * 20_000),
    "a JSON list": np.bytes_(b"[1]"),
    "terminal codes": "\x1b[31m\nred",
    "far latitude": 95.0,
}


def _change_attribute(holder: Any, dice: random.Random) -> str:
    key = dice.choice(sorted(holder.attrs))
    name = dice.choice(list(ODD))
    del holder.attrs[key]
    if dice.random() < 0.2:
        return f"{holder.name}@{key} gone"
    holder.attrs[key] = ODD[name]
    return f"{holder.name}@{key} {name}"


def _change_link(file: h5py.File, name: str, dice: random.Random) -> str:
    links: dict[str, Any] = {
        "gone": None,
        "renamed": None,
        "behind a soft link": h5py.SoftLink("/elsewhere"),
        "soft to nothing": h5py.SoftLink("/nowhere"),
        "soft to itself": h5py.SoftLink("/" + name),
        "external": h5py.ExternalLink("victim.h5", dice.choice(("/g", "/g/d"))),
        "external to nothing": h5py.ExternalLink("nowhere.h5", "/g"),
    }
    kind = dice.choice(list(links))
    if kind in ("renamed", "behind a soft link"):
        file.move(name, "elsewhere" if links[kind] else f"{name}x")
    else:
        del file[name]
    if links[kind] is not None:
        file[name] = links[kind]
    return f"{name} {kind}"


def _change_group(file: h5py.File, name: str, dice: random.Random) -> str:
    kind, group = dice.choice(("a dataset", "a type", "more in it", "empty", "itself in it")), file[name]
    if kind == "more in it":
        group["m\u00f6re"] = np.arange(3)
        group.create_group("\n")
    elif kind == "itself in it":
        group["again"] = group
    else:
        del file[name]
        if kind == "empty":
            file.create_group(name)
        else:
            file[name] = np.arange(3) if kind == "a dataset" else np.dtype("f8")
    return f"{name} {kind}"


def _change_dataset(file: h5py.File, name: str, dice: random.Random) -> str:
    old = file[name]
    values, dtype, shape = old[()], old.dtype, old.shape
    attributes = {key: value for key, value in old.attrs.items() if not isinstance(value, h5py.Empty)}
    if dice.random() < 0.15:
        return f"{name} {_change_cell(old, values, dice)}"

    def of_type() -> str:
        which = dice.choice(("f2", "f8", ">f8", "i2", "u1", "S5", "c8", "?", "O"))
        if which == "O":
            file.create_dataset(name, data=np.full(shape, "nan", object), dtype=h5py.string_dtype())
            return which
        try:
            with np.errstate(all="ignore"):
                file[name] = np.nan_to_num(values).astype(which)
        except (TypeError, ValueError):
            file[name] = np.zeros(shape, which)
        return which

    def of_shape() -> str:
        shapes = [values[None], values[:0], values[:1], values[..., :1], values.T, values.ravel(), np.array(0)]
        data = dice.choice(shapes + ([np.concatenate([values, values])] if values.ndim else []))
        file.create_dataset(name, data=data, dtype=dtype if data.size and data.dtype == values.dtype else None)
        return str(data.shape)

    def odd() -> str:
        which = dice.choice(list(ODD))
        file[name] = ODD[which]
        return which

    def vast() -> str:
        many = dice.choice((10**12, 10**8))
        large = (many, *shape[1:]) if dice.random() < 0.6 else (*shape[:-1], many)
        file.create_dataset(name, large, dtype, chunks=tuple(min(size, 64) or 1 for size in large))
        return str(large)

    ways: dict[str, Callable[[], object]] = {
        "type": of_type,
        "another type": of_type,
        "shape": of_shape,
        "odd": odd,
        "vast": vast,
        "group": lambda: file.create_group(name) and "",
    }
    del file[name]
    which, kind = choose(dice, ways)
    if isinstance(file.get(name), h5py.Dataset) and dice.random() < 0.7:
        for key, value in attributes.items():
            file[name].attrs[key] = value
    return f"{name} {kind} {which}"


def _change_cell(dataset: h5py.Dataset, values: np.ndarray, dice: random.Random) -> str:
    """Another value in one place."""
    if not np.size(values):
        return "has no cell"
    place, dtype = tuple(dice.randrange(size) for size in dataset.shape), dataset.dtype
    cell: Any = dice.choice((np.nan, np.inf, -1.0, 1e300, 2.0**63, 0.0, 1e39))
    if dtype.kind in "SO":
        cell = dice.choice((b"", b"\xff", b"x" * 70, b"2012-13-01 00:00:00", b"nan", b"\n", b"1,2", b"\x00a"))
    with np.errstate(all="ignore"):
        values = np.array(values)
        values[place] = np.array(cell).astype(dtype) if dtype.kind != "O" else cell.decode("latin-1")
    dataset[...] = values
    return f"{str(cell)[:20]!r} at {place}"


STRUCTURAL: dict[str, Callable[[bytes, random.Random, Path], Changed]] = {
    ".json": of_json,
    ".jsonl": of_json_lines,
    ".yaml": of_yaml,
    ".npy": of_npy,
    ".npz": of_npz,
    ".h5": of_hdf5,
}
