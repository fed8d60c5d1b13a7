"""Changes of a file: of its bytes, its lines, its values, its structure, or of what stands in its place."""

from __future__ import annotations

import io
import json
import os
import random
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
import yaml

from tests.fuzz import child

TEXTS = (".csv", ".txt", ".geo", ".dyna", ".json", ".jsonl", ".yaml", ".toml")
# What may stand in the place of a file.
KINDS = (
    "empty",
    "missing",
    "folder",
    "loop",
    "dangling",
    "pipe",
    "zeros",
    "null",
    "bytes name",
    "long name",
    "no name",
    "socket",
)
TOKENS: tuple[bytes, ...] = (
    *(b"nan", b"inf", b"-inf", b"1e400", b"-1e400", b"-1", b"0", b"99999999999999999999999999", b"1e-400", b"NaN"),
    *(b"\x00", b"\xef\xbb\xbf", b"\r\n", b"\r", b"\n\n", b"\xff\xfe", b"\xe9", b"\x1b[31m", b"\xe2\x80\xa8"),
    b"\xd9\xa3",
    *(
        b'"',
        b'""',
        b"'",
        b'"\n',
        b",",
        b",,",
        b";",
        b"\t",
        b" ",
        b"#",
        b"\\",
        b"{",
        b"}",
        b"[",
        b"]",
        b":",
        b"&a ",
        b"*a",
    ),
    *(
        b"x" * 5000,
        b"9" * 400,
        b"9" * 5000,
        b"a,b" * 3000,
        b"\xf0\x9f\x98\x80" * 200,
        b"null",
        b"true",
        b"True",
        b"None",
    ),
    *(b"0x10", b"1_000", b"1e5", b"1.5.2", b"2012-13-45 25:61:00", b"2012-02-30 00:00:00", b"0000-00-00 00:00:00"),
    *(
        b"9999-12-31 23:59:59",
        b"2012-03-01T00:00:00Z",
        b"2012-03-01 00:00:00+01:00",
        b"!!python/object/apply:os.system",
    ),
    *(
        b"[" * 3000,
        b"{" * 3000,
        b'{"a":' * 3000,
        b"%s%n",
        b"../../etc/passwd",
        b"<<: *a",
        b"--- \n",
        b"-0.0",
        b".5",
        b"5.",
    ),
)
VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        2,
        1 << 31,
        1 << 64,
        10**400,
        -(10**30),
        0.5,
        -0.0,
        1e308,
        float("nan"),
        float("inf"),
    ),
    *("", "a", "0", "nan", "x" * 3000, "\x00", "\u2028", "\ud800", "12", "none", "/dev/zero", "..", "victim.h5"),
    *([], {}, [[]], [1, 2], ["a"], {"a": 1}, {"": None}, [None] * 3, {"mean": 0, "std": 0}, {"avg_speed": 7}),
)


def other_name(name: str, kind: str) -> str:
    """The name of a target in a case of this kind; only the files that a command names may change theirs."""
    path = Path(name)
    if "/" in name or kind not in ("bytes name", "long name", "no name"):
        return name
    if kind == "no name":  # longer than any file system has them
        return "n" * 300 + path.suffix
    if kind == "bytes name":
        return os.fsdecode(b"caf\xe9") + path.suffix
    return "n" * (255 - len(path.suffix)) + path.suffix


def lay_out(path: Path, kind: str, content: bytes | None) -> None:
    """Put a file, or what stands in its place, at ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind in ("file", "bytes name", "long name"):
        path.write_bytes(content or b"")
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "dangling":
        path.symlink_to("nowhere")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        import socket

        here = Path.cwd()
        os.chdir(path.parent)  # the path of a socket is short
        try:
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(path.name)
        finally:
            os.chdir(here)
    elif kind in ("zeros", "null"):
        path.symlink_to({"zeros": "/dev/zero", "null": "/dev/null"}[kind])


def mutate(
    content: bytes, name: str, dice: random.Random, others: list[bytes], scratch: Path
) -> tuple[bytes, str, bool]:
    """A changed file, what was done to it, and whether only bytes were damaged."""
    suffix = Path(name).suffix
    structural = STRUCTURAL.get(suffix)
    draw = dice.random()
    if structural and draw < 0.55:
        try:
            return *structural(content, dice, scratch), False
        except (ValueError, LookupError, TypeError, RuntimeError, OSError, OverflowError, AttributeError) as error:
            how = f"no structure ({type(error).__name__}); "
    elif suffix in TEXTS and draw < 0.85:
        return *of_text(content, dice, others), False
    else:
        how = ""
    for _ in range(dice.choice((1, 1, 1, 2, 4))):
        content, said = of_bytes(content, dice, others)
        how += said + "; "
    return content, how, True


# --- bytes -----------------------------------------------------------------------------------------------------------


def of_bytes(content: bytes, dice: random.Random, others: list[bytes]) -> tuple[bytes, str]:
    """One change of any bytes."""
    if not content:
        return dice.choice(TOKENS), "a token"
    size = len(content)
    kind = dice.randrange(10)
    place = dice.randrange(min(size, 4096)) if dice.random() < 0.3 else dice.randrange(size)
    length = min(size - place, dice.choice((1, 4, 16, 100, 512, 4096)))
    end = place + length
    if kind <= 2:
        bit = 1 << dice.randrange(8)
        return content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :], f"bit {bit} of {place} flipped"
    if kind == 3:
        return content[:place], f"cut at {place}"
    if kind == 4:
        return content[:place] + content[end:], f"{length} removed at {place}"
    if kind == 5:
        return content[:end] + content[place:end] + content[end:], f"{length} doubled at {place}"
    if kind == 6:
        return content[:place] + bytes(length) + content[end:], f"{length} zeroed at {place}"
    if kind == 7:
        return content[:place] + dice.randbytes(length) + content[end:], f"{length} replaced at {place}"
    if kind == 8:
        other = dice.choice(others) or b"-"
        cut = dice.randrange(len(other))
        return content[:place] + other[cut:], f"spliced at {place} with another from {cut}"
    token = dice.choice(TOKENS)
    if dice.random() < 0.5:
        return content[:place] + token + content[place:], f"{token[:20]!r} inserted at {place}"
    return content[:place] + token + content[place + len(token) :], f"{token[:20]!r} written at {place}"


# --- texts -----------------------------------------------------------------------------------------------------------


def of_text(content: bytes, dice: random.Random, others: list[bytes]) -> tuple[bytes, str]:
    """One to three changes of lines and cells."""
    how = ""
    for _ in range(dice.choice((1, 1, 2, 3))):
        content, said = dice.choice(LINE_CHANGES)(content, dice, others)
        how += said + "; "
    return content, how


def _cell(content: bytes, dice: random.Random, _: list[bytes]) -> tuple[bytes, str]:
    lines = content.split(b"\n")
    row = dice.choice((0, 1, dice.randrange(len(lines)))) % len(lines)
    cells = lines[row].split(b",")
    column = dice.randrange(len(cells))
    token = dice.choice(TOKENS)
    cells[column] = dice.choice((token, token, cells[column] + token, token + cells[column]))
    lines[row] = b",".join(cells)
    return b"\n".join(lines), f"cell {column} of line {row} with {token[:20]!r}"


def _lines(content: bytes, dice: random.Random, others: list[bytes]) -> tuple[bytes, str]:
    lines = content.split(b"\n")
    first = dice.randrange(len(lines))
    last = min(len(lines), first + dice.choice((1, 1, 3, 10)))
    kind = dice.choice(("removed", "doubled", "shuffled", "moved", "from another", "blank", "reversed"))
    part = lines[first:last]
    if kind == "removed":
        part = []
    elif kind == "doubled":
        part = part * 2
    elif kind in ("shuffled", "reversed"):
        part = part[::-1]
    elif kind == "from another":
        part = dice.choice(others).split(b"\n")[: len(part)]
    elif kind == "blank":
        part = [b"", *part, b"  "]
    elif kind == "moved":
        return b"\n".join(lines[:first] + lines[last:] + part), f"lines {first} to {last} moved to the end"
    return b"\n".join(lines[:first] + part + lines[last:]), f"lines {first} to {last} {kind}"


def _whole(content: bytes, dice: random.Random, _: list[bytes]) -> tuple[bytes, str]:
    text = content.decode("utf-8", "replace")
    ways: dict[str, Callable[[], bytes]] = {
        "CRLF": lambda: content.replace(b"\n", b"\r\n"),
        "CR": lambda: content.replace(b"\n", b"\r"),
        "BOM": lambda: b"\xef\xbb\xbf" + content,
        "two BOMs": lambda: b"\xef\xbb\xbf" * 2 + content,
        "UTF-16": lambda: text.encode("utf-16", "replace"),
        "UTF-32": lambda: text.encode("utf-32", "replace"),
        "latin": lambda: ("é" + text).encode("latin-1", "replace"),
        "quotes": lambda: b"\n".join(
            b",".join(b'"' + cell + b'"' for cell in line.split(b",")) if line else line
            for line in content.split(b"\n")
        ),
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
    name = dice.choice(list(ways))
    return ways[name](), name


def _token(content: bytes, dice: random.Random, _: list[bytes]) -> tuple[bytes, str]:
    place, token = dice.randrange(len(content) + 1), dice.choice(TOKENS)
    return content[:place] + token + content[place:], f"{token[:20]!r} inserted at {place}"


def _bytes(content: bytes, dice: random.Random, others: list[bytes]) -> tuple[bytes, str]:
    return of_bytes(content, dice, others)


LINE_CHANGES = (_cell, _cell, _cell, _lines, _lines, _whole, _token, _bytes)


# --- JSON and YAML ---------------------------------------------------------------------------------------------------


def _places(tree: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Each (holder, key) of a tree."""
    entries = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in entries:
        found.append((tree, key))
        _places(value, found)
    return found


def of_tree(tree: Any, dice: random.Random) -> tuple[Any, str]:
    """One to two changes of the values of a tree."""
    how = ""
    for _ in range(dice.choice((1, 1, 1, 2))):
        places = _places(tree, [])
        if not places or dice.random() < 0.05:
            tree = dice.choice(VALUES)
            return tree, f"all of it {str(tree)[:20]!r}"
        holder, key = dice.choice(places)
        kind = dice.choice(("value", "value", "value", "gone", "more", "of another", "near"))
        how += f"{kind} at {str(key)[:20]}; "
        if kind == "value":
            holder[key] = dice.choice(VALUES)
        elif kind == "gone":
            del holder[key]
        elif kind == "more" and isinstance(holder, dict):
            holder[str(dice.choice(VALUES))[:20]] = dice.choice(VALUES)
        elif kind == "more":
            holder.append(dice.choice(VALUES))
        elif kind == "of another":
            other, there = dice.choice(places)
            if there in (other if isinstance(other, dict) else range(len(other))):
                holder[key] = json.loads(json.dumps(other[there], default=str))
        elif isinstance(holder[key], int | float):
            holder[key] = holder[key] + dice.choice((1, -1, 0.5))
        elif isinstance(holder[key], str):
            holder[key] = holder[key] + dice.choice(("x", " ", "\n", "\u2028", "\x1b[31m"))
    return tree, how


def of_json(content: bytes, dice: random.Random, _: Path) -> tuple[bytes, str]:
    """Other values in a JSON text."""
    tree, how = of_tree(json.loads(content), dice)
    return json.dumps(tree, indent=2).encode("utf-8", "surrogatepass"), how


def of_json_lines(content: bytes, dice: random.Random, _: Path) -> tuple[bytes, str]:
    """Other values in lines of JSON."""
    tree, how = of_tree([json.loads(line) for line in content.splitlines()], dice)
    rows = tree if isinstance(tree, list) else [tree]
    return "".join(json.dumps(row) + "\n" for row in rows).encode("utf-8", "surrogatepass"), how


def of_yaml(content: bytes, dice: random.Random, _: Path) -> tuple[bytes, str]:
    """Other values in a YAML text."""
    tree, how = of_tree(yaml.safe_load(content), dice)
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True).encode("utf-8", "surrogatepass"), how


# --- arrays ----------------------------------------------------------------------------------------------------------


def _npy(array: np.ndarray, allow_pickle: bool = False) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=allow_pickle)
    return stream.getvalue()


def _with_header(content: bytes, old: bytes, new: bytes) -> bytes:
    return content.replace(old, new, 1)


def of_npy(content: bytes, dice: random.Random, _: Path) -> tuple[bytes, str]:
    """Other numbers, types and shapes in an .npy file."""
    array = np.load(io.BytesIO(content), allow_pickle=False)
    some = tuple(dice.randrange(size) for size in array.shape)
    changed = array.astype(np.float64) if array.ndim else array.copy()
    number = dice.choice((np.nan, np.inf, -np.inf, 1e308, 1e39, -1.0, 1e-40))
    if array.ndim:
        changed[some] = number
    shape = str(array.shape).encode()
    dtypes = ("<f2", ">f8", "<i8", "u1", "?", "<c16", "S5", "<U3", "<M8[s]", "f8,i4", ">i2", "<f4")
    dtype = dice.choice(dtypes)

    def cast() -> np.ndarray:
        with np.errstate(all="ignore"):
            plain = np.nan_to_num(array)
            return plain.astype(dtype) if "," not in dtype else np.zeros(array.shape, dtype)

    headers = (
        b"(99999999999, 3)",
        b"(-1, 3)",
        b"()",
        b"(0, 3)",
        b"(3, 99999999999)",
        b"(True, 2)",
        b"(1e3, 3)",
        b"None",
    )
    ways: dict[str, Callable[[], bytes]] = {
        f"{number} at {some}": lambda: _npy(changed),
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
        "another shape in the header": lambda: _with_header(content, shape, dice.choice(headers)),
        "another type in the header": lambda: _with_header(
            content, b"<f8", dice.choice((b"|O8", b"<f4", b"<x8", b"<M8"))
        ),
        "Fortran in the header": lambda: _with_header(content, b"False", b"True "),
        "code in the header": lambda: _with_header(content, b"'<f8'", b"exit()"),
        "version 9": lambda: content[:6] + b"\x09" + content[7:],
        "version 2": lambda: content[:6] + b"\x02" + content[7:],
        "bytes behind": lambda: content + b"\x00" * 8,
    }
    name = dice.choice(list(ways))
    return ways[name](), name


def of_npz(content: bytes, dice: random.Random, scratch: Path) -> tuple[bytes, str]:
    """Other members in a zip."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    place = dice.randrange(len(members))
    name, inner = members[place]
    packing = zipfile.ZIP_DEFLATED
    kind = dice.choice(
        ("member", "member", "member", "bytes", "gone", "twice", "name", "stored", "bzip2", "bomb", "encrypted")
    )
    how = f"{kind} of {name}"
    if kind == "member":
        changed, said = of_npy(inner, dice, scratch)
        members[place], how = (name, changed), f"{name}: {said}"
    elif kind == "bytes":
        changed, said = of_bytes(inner, dice, [inner])
        members[place], how = (name, changed), f"{name}: {said}"
    elif kind == "gone":
        del members[place]
    elif kind == "twice":
        members.append((f"other_{name}", inner))
    elif kind == "name":
        members[place] = (
            dice.choice(("data.npy", "x.npy", "../x.npy", "a/b.npy", "\u00e9.npy", "x" * 300, "a\nb.npy")),
            inner,
        )
    elif kind == "bomb":
        packing = zipfile.ZIP_DEFLATED
        members[place] = (name, inner + bytes(30 << 20))
    elif kind == "bzip2":
        packing = zipfile.ZIP_BZIP2
    elif kind == "stored":
        packing = zipfile.ZIP_STORED
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # two members of one name
        for member, inside in members:
            info = zipfile.ZipInfo(member)
            info.compress_type = packing
            archive.writestr(info, inside)
    made = bytearray(stream.getvalue())
    if kind == "encrypted":
        made[6] |= 1
        centre = made.rfind(b"PK\x01\x02")
        made[centre + 8] |= 1
    return bytes(made), how


# --- HDF5 ------------------------------------------------------------------------------------------------------------


def of_hdf5(content: bytes, dice: random.Random, scratch: Path) -> tuple[bytes, str]:
    """Other types, shapes, links and attributes in an HDF5 file; changed in a child, for HDF5 may fail there."""
    path, other = scratch / "structure.h5", scratch / "victim.h5"
    path.write_bytes(content)
    with h5py.File(other, "w") as file:
        file["g/d"] = np.arange(5.0)
    return _in_child(_change_hdf5, path, dice)


def _in_child(change: Callable[[Path, random.Random], str], path: Path, dice: random.Random) -> tuple[bytes, str]:
    """The file as ``change`` leaves it, and what that says it did; ValueError where it fails."""
    seed = dice.random()
    done = child.run(lambda: print(change(path, random.Random(seed))), path.parent, 20)
    if done.code != 0:
        raise ValueError("not changed")
    return path.read_bytes(), done.stdout.strip()


def _change_hdf5(path: Path, dice: random.Random) -> str:
    said = []
    with h5py.File(path, "r+") as file:
        for _ in range(dice.choice((1, 1, 1, 2))):
            names: list[str] = []
            file.visit(names.append)
            name = dice.choice(sorted(names))
            if dice.random() < 0.35 and file[name].parent.name != "/":
                name = file[name].parent.name.strip("/")
            holders = [each for each in ["/", *sorted(names)] if len(file[each].attrs)]
            if holders and dice.random() < 0.3:
                said.append(_change_attribute(file[dice.choice(holders)], dice))
            elif isinstance(file[name], h5py.Dataset):
                said.append(_change_dataset(file, name, dice))
            else:
                said.append(_change_group(file, name, dice))
    return "; ".join(said)


def _odd_values(file: h5py.File) -> dict[str, Any]:
    text = h5py.string_dtype("utf-8")
    return {
        "a long text": "x" * 40_000,
        "text": "text",
        "bytes": np.bytes_(b"caf\xe9"),
        "NaN": np.nan,
        "inf": np.inf,
        "minus one": -1,
        "huge": np.uint64(2**64 - 1),
        "0": 0,
        "a list": np.arange(3),
        "a matrix": np.eye(2),
        "nothing": h5py.Empty("f"),
        "texts": np.array(["a", "b"], dtype=object).astype(text),
        "no texts": np.array([], dtype="S3"),
        "true": True,
        "a complex": np.complex64(1j),
        "a compound": np.zeros(2, dtype="f4,i8"),
        "a reference": file.ref,
        "a region": np.zeros(2, dtype=h5py.ref_dtype),
        "variable lengths": np.array([np.arange(2), np.arange(3)], dtype=object),
        "an opaque": np.void(b"abc"),
        "JSON": np.bytes_(b'{"avg_speed": 7}'),
        "deep JSON": np.bytes_(b"[" * 20_000),
        "a JSON list": np.bytes_(b"[1]"),
        "terminal codes": "\x1b[31m\nred",
        "far latitude": 95.0,
    }


def _odd(file: h5py.File, dice: random.Random) -> tuple[str, Any, Any]:
    values = _odd_values(file)
    name = dice.choice(list(values))
    return name, values[name], h5py.vlen_dtype(np.int64) if name == "variable lengths" else None


def _change_attribute(holder: Any, dice: random.Random) -> str:
    key = dice.choice(sorted(holder.attrs))
    if dice.random() < 0.2:
        del holder.attrs[key]
        return f"{holder.name}@{key} gone"
    name, value, dtype = _odd(holder.file, dice)
    del holder.attrs[key]
    holder.attrs.create(key, value, dtype=dtype)
    return f"{holder.name}@{key} {name}"


def _link(file: h5py.File, name: str, dice: random.Random) -> str:
    kind = dice.choice(
        ("gone", "renamed", "soft", "soft to nothing", "soft to itself", "external", "external to nothing")
    )
    if kind == "renamed":
        file.move(name, name + "x")
        return f"{name} renamed"
    if kind == "soft":
        file.move(name, "elsewhere")
        file[name] = h5py.SoftLink("/elsewhere")
        return f"{name} behind a soft link"
    del file[name]
    links = {
        "soft to nothing": h5py.SoftLink("/nowhere"),
        "soft to itself": h5py.SoftLink("/" + name),
        "external": h5py.ExternalLink("victim.h5", dice.choice(("/g", "/g/d"))),
        "external to nothing": h5py.ExternalLink("nowhere.h5", "/g"),
    }
    if kind in links:
        file[name] = links[kind]
    return f"{name} {kind}"


def _change_group(file: h5py.File, name: str, dice: random.Random) -> str:
    if dice.random() < 0.5:
        return _link(file, name, dice)
    kind = dice.choice(("a dataset", "a type", "more in it", "empty", "itself in it"))
    group = file[name]
    if kind == "more in it":
        group["m\u00f6re"] = np.arange(3)
        group.create_group("\n")
    elif kind == "itself in it":
        group["again"] = group
    else:
        del file[name]
        if kind == "a dataset":
            file[name] = np.arange(3)
        elif kind == "a type":
            file[name] = np.dtype("f8")
        else:
            file.create_group(name)
    return f"{name} {kind}"


def _change_dataset(file: h5py.File, name: str, dice: random.Random) -> str:
    if dice.random() < 0.25:
        return _link(file, name, dice)
    old = file[name]
    values, dtype = old[()], old.dtype
    attributes = {key: value for key, value in old.attrs.items() if not isinstance(value, h5py.Empty)}
    types = ("f2", "f8", ">f8", "i2", "u1", "S5", "c8", "f4,i4", "M8", "?", "O", "enum", "ref", "array")
    kind = dice.choice(
        (
            "type",
            "type",
            "shape",
            "cell",
            "cell",
            "odd",
            "null",
            "huge",
            "virtual",
            "external",
            "group",
            "filter",
            "sparse",
        )
    )
    said = f"{name} {kind}"
    if kind == "cell":
        if values.size:
            place = tuple(dice.randrange(size) for size in values.shape)
            cell: Any = dice.choice((np.nan, np.inf, -1.0, 1e300, 2.0**63, 0.0, 1e39))
            if dtype.kind in "SO":
                cell = dice.choice((b"", b"\xff", b"x" * 70, b"2012-13-01 00:00:00", b"nan", b"\n", b"1,2", b"\x00a"))
            with np.errstate(all="ignore"):
                values = np.array(values)
                values[place] = np.array(cell).astype(dtype) if dtype.kind != "O" else cell.decode("latin-1")
            old[...] = values
            said += f" {place} {str(cell)[:20]!r}"
        return said
    del file[name]
    if kind == "type":
        which = dice.choice(types)
        said += f" {which}"
        if which == "M8":
            tid = h5py.h5t.UNIX_D32LE
            space = h5py.h5s.create_simple(values.shape or (1,))
            h5py.h5d.create(file.id, name.encode(), tid, space)
        elif which == "enum":
            file.create_dataset(name, values.shape, h5py.enum_dtype({"a": 0, "b": 1}))
        elif which == "ref":
            file.create_dataset(name, values.shape, h5py.ref_dtype)
        elif which == "array":
            file.create_dataset(name, values.shape, np.dtype(("f4", (2,))))
        elif which == "O":
            file.create_dataset(name, data=np.full(values.shape, "nan", object), dtype=h5py.string_dtype())
        elif which == "f4,i4":
            file.create_dataset(name, values.shape, "f4,i4")
        else:
            with np.errstate(all="ignore"):
                try:
                    cast = np.nan_to_num(values).astype(which) if dtype.kind in "fiu" else np.zeros(values.shape, which)
                except (TypeError, ValueError):
                    cast = np.zeros(values.shape, which)
            file[name] = cast
    elif kind == "shape":
        shapes = [values[None], values[:0], values[:1], values[..., :1], values.T, values.ravel(), np.array(0)]
        shapes += [np.concatenate([values, values])] if values.ndim else []
        chosen = dice.choice(shapes)
        said += f" {chosen.shape}"
        file.create_dataset(name, data=chosen, dtype=dtype if chosen.size and chosen.dtype == values.dtype else None)
    elif kind == "odd":
        odd, value, odd_type = _odd(file, dice)
        said += f" {odd}"
        file.create_dataset(name, data=value, dtype=odd_type)
    elif kind == "null":
        file.create_dataset(name, data=h5py.Empty(dtype if dtype.kind != "O" else "f"))
    elif kind in ("huge", "sparse"):
        many = 10**12 if kind == "huge" else 10**8
        shape = (many, *values.shape[1:]) if dice.random() < 0.6 else (*values.shape[:-1], many)
        file.create_dataset(name, shape, dtype, chunks=tuple(min(size, 64) or 1 for size in shape))
    elif kind == "virtual":
        layout = h5py.VirtualLayout(values.shape or (1,), dtype if dtype.kind != "O" else "f8")
        layout[...] = h5py.VirtualSource("victim.h5", "g/d", shape=values.shape or (1,))
        file.create_virtual_dataset(name, layout)
    elif kind == "external":
        plain = dtype if dtype.kind != "O" else np.dtype("f8")
        file.create_dataset(name, values.shape or (1,), plain, external=[("/etc/hostname", 0, h5py.h5f.UNLIMITED)])
    elif kind == "group":
        file.create_group(name)
    elif kind == "filter":
        how = dice.choice(({"compression": "lzf"}, {"compression": "gzip", "fletcher32": True}, {"chunks": True}))
        file.create_dataset(name, data=values, dtype=dtype, **(how if values.ndim else {}))
        said += f" {how}"
    if name in file and isinstance(file[name], h5py.Dataset) and dice.random() < 0.7:
        for key, value in attributes.items():
            file[name].attrs[key] = value
    return said


# --- weights and states ----------------------------------------------------------------------------------------------


def of_safetensors(content: bytes, dice: random.Random, _: Path) -> tuple[bytes, str]:
    """Another header, or numbers that are none."""
    size = int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8 : 8 + size]), content[8 + size :]
    kind = dice.choice(("header", "header", "size", "numbers", "no header", "turned", "more"))
    how = kind
    if kind == "header":
        header, how = of_tree(header, dice)
    elif kind == "numbers":
        place = dice.randrange(len(data) // 4) * 4
        number = np.float32(dice.choice((np.nan, np.inf, 0, 1e30))).tobytes()
        data = data[:place] + number + data[place + 4 :]
    elif kind == "turned":
        names = [name for name in header if name != "__metadata__"]
        one, other = dice.sample(names, 2)
        header[one], header[other] = header[other], header[one]
    elif kind == "more":
        data += bytes(64)
    packed = json.dumps(header).encode("utf-8", "surrogatepass")
    count = dice.choice((1 << 62, 0, len(packed) + 9, 100 << 20)) if kind == "size" else len(packed)
    return count.to_bytes(8, "little") + (b"" if kind == "no header" else packed) + data, how


def _tensors(tree: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    return [(holder, key) for holder, key in _places(tree, found) if isinstance(holder[key], torch.Tensor)]


def of_state(content: bytes, dice: random.Random, scratch: Path) -> tuple[bytes, str]:
    """Other tensors and values in what torch saved; changed in a child, which is another program's state."""
    path = scratch / "state.pt"
    path.write_bytes(content)
    return _in_child(_change_state, path, dice)


def _change_state(path: Path, dice: random.Random) -> str:
    tree = torch.load(path, weights_only=True)
    kind = dice.choice(("value", "value", "tensor", "tensor", "tensor", "all", "module", "older"))
    how = kind
    if kind == "value":
        tree, how = of_tree_of_state(tree, dice)
    elif kind == "tensor":
        holder, key = dice.choice(_tensors(tree, []))
        holder[key], said = _odd_tensor(holder[key], dice)
        how = f"{str(key)[:40]} {said}"
    elif kind == "all":
        tree = dice.choice((None, [], 7, "text", torch.ones(3), {"learner": None, "progress": None, "random": None}))
    elif kind == "module":
        tree = torch.nn.Linear(2, 2)
    torch.save(tree, path, _use_new_zipfile_serialization=kind != "older")
    return how


def of_tree_of_state(tree: Any, dice: random.Random) -> tuple[Any, str]:
    """Other plain values in a state."""
    holder, key = dice.choice(_places(tree, []))
    kind = dice.choice(("value", "value", "gone", "more", "near"))
    how = f"{kind} at {str(key)[:40]}"
    if kind == "value":
        holder[key] = dice.choice(VALUES)
    elif kind == "gone":
        del holder[key]
    elif kind == "near" and isinstance(holder[key], int | float):
        holder[key] = holder[key] + dice.choice((1, -1, 0.5, 1e9))
    elif isinstance(holder, dict):
        holder[dice.choice((0, 999, "more", "", 1.5, None, ("a",)))] = dice.choice(VALUES)
    return tree, how


def _odd_tensor(tensor: torch.Tensor, dice: random.Random) -> tuple[Any, str]:
    ways: dict[str, Callable[[], Any]] = {
        "short": lambda: torch.ones(1, dtype=tensor.dtype),
        "empty": lambda: torch.empty(0, dtype=tensor.dtype),
        "scalar": lambda: torch.tensor(1, dtype=tensor.dtype),
        "longer": lambda: torch.cat([tensor.flatten(), tensor.flatten()]),
        "a dimension more": lambda: tensor[None],
        "turned": lambda: tensor.mT.clone() if tensor.ndim > 1 else tensor.flip(0) if tensor.ndim else tensor,
        "double": tensor.double,
        "half": tensor.half,
        "integers": tensor.int,
        "complex": lambda: tensor.to(torch.complex64),
        "true": tensor.bool,
        "NaN": lambda: torch.full_like(tensor.float(), torch.nan),
        "inf": lambda: torch.full_like(tensor.float(), torch.inf),
        "negative": lambda: -torch.ones_like(tensor.float()),
        "huge": lambda: torch.full_like(tensor.float(), 3e38),
        "sparse": lambda: tensor.float().to_sparse(),
        "meta": lambda: tensor.float().to("meta"),
        "expanded": lambda: torch.ones(1).expand(tensor.shape),
        "a list": lambda: tensor.tolist(),
        "a number": lambda: 0.0,
        "nothing": lambda: None,
        "a parameter": lambda: torch.nn.Parameter(tensor.float()),
        "vast": lambda: torch.ones(1).expand(1 << 40),
    }
    name = dice.choice(list(ways))
    return ways[name](), name


STRUCTURAL: dict[str, Callable[[bytes, random.Random, Path], tuple[bytes, str]]] = {
    ".json": of_json,
    ".jsonl": of_json_lines,
    ".yaml": of_yaml,
    ".npy": of_npy,
    ".npz": of_npz,
    ".h5": of_hdf5,
    ".safetensors": of_safetensors,
    ".pt": of_state,
}
