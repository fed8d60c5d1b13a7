"""Changes of a file: of its bytes, its lines, its values, its structure, or of what stands in its place.

A change is drawn from a table of names and functions, and says its name.  The bytes of HDF5 are those of its library:
a file of it is changed in its structure alone, or cut.
"""

import copy
import io
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import yaml

from tests.fuzz import child

Changed = tuple[bytes, str]  # the content of a file, and what was done to it
TEXTS = (".csv", ".txt", ".geo", ".dyna", ".json", ".jsonl", ".yaml", ".toml")
# What may stand in the place of a file.
KINDS = ("empty", "missing", "folder", "loop", "dangling", "pipe", "zeros", "null")
NAMES = {"bytes name": b"caf\xe9", "long name": b"n" * 240, "no name": b"n" * 300}  # longer than a file system has them
NUMBERS = b"nan inf -inf 1e400 -1e400 -1 0 99999999999999999999999999 1e-400 NaN 0x10 1_000 1e5 1.5.2 -0.0 .5 5."
WORDS = b"null true True None %s%n ../../etc/passwd !!python/object/apply:os.system"
TIMES = "2012-13-45 25:61:00|2012-02-30 00:00:00|0000-00-00 00:00:00|9999-12-31 23:59:59|2012-03-01T00:00:00Z"
MARKS = '\x00|\ufeff|\r\n|\r|\n\n|\x1b[31m|\u2028|\u0663|"|""|\'|"\n|,|,,|;|\t| |#|\\|{|}|[|]|:|&a |*a|<<: *a|--- \n'
TOKENS: tuple[bytes, ...] = (
    *(*NUMBERS.split(), *WORDS.split(), *TIMES.encode().split(b"|"), *MARKS.encode().split(b"|")),
    *(b"\xff\xfe", b"\xe9", b"2012-03-01 00:00:00+01:00", b"x" * 5000, b"9" * 400, b"9" * 5000, b"a,b" * 3000),
    *("\U0001f600".encode() * 200, b"[" * 3000, b'{"a":' * 3000),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 1 << 31, 1 << 64, 10**400, -(10**30), 0.5, -0.0, 1e308),
    *(float("nan"), float("inf"), "", "a", "0", "nan", "x" * 3000, "\x00", "\u2028", "\ud800", "12", "none"),
    *("/dev/zero", "..", "victim.h5", [], {}, [[]], [1, 2], ["a"], {"a": 1}, {"": None}, [None] * 3),
    *({"mean": 0, "std": 0}, {"avg_speed": 7}, "(?P<sensor>(a+)+)", "(?P<time>.*.*.*)"),
)


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
    elif kind not in ("missing", "no name"):
        path.write_bytes(b"" if kind == "empty" else content or b"")


def mutate(
    content: bytes, name: str, dice: random.Random, others: list[bytes], scratch: Path
) -> tuple[bytes, str, bool]:
    """A changed file, what was done to it, and whether only bytes were damaged."""
    suffix, how, draw = Path(name).suffix, "", dice.random()
    if suffix in STRUCTURAL and draw < (0.95 if suffix == ".h5" else 0.55):
        try:
            return *STRUCTURAL[suffix](content, dice, scratch), False
        except (ValueError, LookupError, TypeError, RuntimeError, OSError, OverflowError, AttributeError) as error:
            how = f"no structure ({type(error).__name__}); "
    elif suffix == ".h5":
        return content[: dice.randrange(len(content))], "the rest cut", True
    text, names = suffix in TEXTS and draw < 0.85, []
    for _ in range(dice.choice((1, 1, 2, 3))):
        content, one = (of_text if text else of_bytes)(content, dice, others)
        names.append(one)
    return content, how + "; ".join(names), not text


def of_bytes(content: bytes, dice: random.Random, others: list[bytes]) -> Changed:
    """One change of any bytes."""
    place = dice.randrange(1 + min(len(content), 4096) if dice.random() < 0.3 else len(content) + 1)
    end = min(len(content), place + dice.choice((1, 4, 16, 100, 512, 4096)))
    before, part, after, token = content[:place], content[place:end], content[end:], dice.choice(TOKENS)
    middles = {
        **{"cut with all that follows": b"", "removed": b"", "doubled": part * 2},
        **{
            "replaced": dice.randbytes(len(part)),
            "flipped": bytes(byte ^ 4 for byte in part[:1]) + part[1:],
            f"{token[:20]!r} inserted": token + part,
        },
        "spliced with another": dice.choice(others)[place % 50 :],
    }
    how = dice.choice([*middles])
    rest = b"" if how in ("cut with all that follows", "spliced with another") else after
    return before + middles[how] + rest, f"{len(part)} bytes at {place}: {how}"


def of_text(content: bytes, dice: random.Random, others: list[bytes]) -> Changed:
    """One change of a cell, of lines or of the whole text."""
    lines, token, draw = content.split(b"\n"), dice.choice(TOKENS), dice.random()
    row = dice.choice((0, 1, dice.randrange(len(lines)))) % len(lines)
    last = min(len(lines), row + dice.choice((1, 1, 3, 10)))
    before, part, after = lines[:row], lines[row:last], lines[last:]
    if draw < 0.4:
        mark = max((b",", b";", b"\t"), key=lines[0].count)
        cells = lines[row].split(mark)
        column = dice.randrange(len(cells))
        cells[column] = dice.choice((token, token, cells[column] + token, token + cells[column]))
        changed = [*before, mark.join(cells), *lines[row + 1 :]]
        return b"\n".join(changed), f"cell {column} of line {row} with {token[:20]!r}"
    if draw < 0.65:
        moved = {
            **{"removed": before + after, "doubled": before + part * 2 + after, "moved": before + after + part},
            **{"reversed": before + part[::-1] + after, "between blank ones": [*before, b"", *part, b"  ", *after]},
            "from another": before + dice.choice(others).split(b"\n")[: len(part)] + after,
        }
        how = dice.choice([*moved])
        return b"\n".join(moved[how]), f"lines {row} to {last} {how}"
    if draw < 0.9:
        text = content.decode("utf-8", "replace")
        pair = dice.choice((*zip(b"\n,,.\n0", (b"\r\n", b";", b" , ", b",", b",1\n", b"0_0"), strict=True),))
        whole = {
            f"{bytes([pair[0]])!a} as {pair[1]!a}": content.replace(bytes([pair[0]]), pair[1]),
            **{"two marks": b"\xef\xbb\xbf" * 2 + content, "UTF-16": text.encode("utf-16", "replace")},
            **{"Latin": ("é" + text).encode("latin-1", "replace"), "upper case": content.upper()},
            **{"long": content * 60, "zeros behind": content + bytes(3 << 20), "gzip": b"\x1f\x8b\x08\0" + content},
            "a long line": content + b"1," * (1 << 20) + b"\n",
        }
        how = dice.choice([*whole])
        return whole[how], how
    return of_bytes(content, dice, others)


# --- trees of values: JSON and YAML -------------------------------------------------------------------------------


def places(tree: Any) -> list[tuple[Any, Any]]:
    """Each (holder, key) of a tree."""
    entries = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [place for key, value in entries for place in ((tree, key), *places(value))]


def of_tree(tree: Any, dice: random.Random) -> tuple[Any, str]:
    """A change of a value of a tree."""
    found, new = places(tree), copy.deepcopy(dice.choice(VALUES))
    if not found or dice.random() < 0.05:
        return new, f"all of it {str(new)[:20]!r}"
    (holder, key), (other, other_key) = dice.choice(found), dice.choice(found)
    kind, value = dice.choice(("value", "value", "value", "gone", "more", "of another", "near")), holder[key]
    if kind == "gone":
        del holder[key]
    elif kind == "more" and isinstance(holder, dict):
        holder[str(dice.choice(VALUES))[:20]] = new
    elif kind == "near" and isinstance(value, int | float | str):
        holder[key] = value + (dice.choice(("x", " ", "\n", "\u2028", "\x1b[31m")) if isinstance(value, str) else 0.5)
    else:
        holder[key] = copy.deepcopy(other[other_key]) if kind == "of another" else new
    return tree, f"{kind} at {str(key)[:40]}"


def of_json(content: bytes, dice: random.Random, _: Path) -> Changed:
    """Another value in a JSON text, or in lines of JSON."""
    lines = content.splitlines()
    tree, how = of_tree([json.loads(line) for line in lines] if len(lines) > 1 else json.loads(content), dice)
    trees = tree if len(lines) > 1 and isinstance(tree, list) else [tree]
    return "".join(json.dumps(each, default=str) + "\n" for each in trees).encode("utf-8", "surrogatepass"), how


def of_yaml(content: bytes, dice: random.Random, _: Path) -> Changed:
    """Another value in a YAML text."""
    tree, how = of_tree(yaml.safe_load(content), dice)
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True).encode("utf-8", "surrogatepass"), how


# --- arrays ----------------------------------------------------------------------------------------------------------


def of_npy(content: bytes, dice: random.Random, _: Path) -> Changed:
    """Other numbers, types and shapes in an .npy file."""
    array = np.load(io.BytesIO(content), allow_pickle=False)
    number, dtype = dice.choice((np.nan, np.inf, 1e308, 1e39, -1.0)), dice.choice(("<f4", ">f8", "u1", "<c16", "S5"))
    changed: dict[str, np.ndarray] = {
        f"{number} in it": np.where(np.arange(array.size).reshape(array.shape) == 7, number, array),
        f"type {dtype}": np.nan_to_num(array).astype(dtype),
        "objects": array.astype(object),
        "columns first": np.asfortranarray(array),
        **{"turned": array.T, "a dimension more": array[None], "flat": array.ravel(), "no rows": array[:0]},
        **{"rows turned round": array[::-1], "one sensor": array[:, :1]},
    }
    written = {
        "another shape in the header": content.replace(str(array.shape).encode(), b"(99999999999, 3)", 1),
        "another type in the header": content.replace(b"<f8", dice.choice((b"|O8", b"<f4", b"<x8")), 1),
        "code in the header": content.replace(b"'<f8'", b"exit()", 1),
        "version 9": content[:6] + b"\x09" + content[7:],
        "bytes behind": content + b"\x00" * 8,
    }
    how = dice.choice([*changed, *written])
    if how in written:
        return written[how], how
    stream = io.BytesIO()
    np.save(stream, changed[how], allow_pickle=True)
    return stream.getvalue(), how


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
                holder = file[dice.choice(holders)]
                key, odd = dice.choice(sorted(holder.attrs)), dice.choice([*ODD, "gone"])
                del holder.attrs[key]
                holder.attrs.update({key: ODD[odd]} if odd in ODD else {})
                changes.append(f"{holder.name}@{key} {odd}")
            else:
                changes.append(_change_object(file, name, dice))
    return "; ".join(changes)


ODD: dict[str, Any] = {  # what no reader expects, by name
    **{"a long text": "x" * 40_000, "bytes": np.bytes_(b"caf\xe9"), "NaN": np.nan, "minus one": -1, "far": 95.0},
    **{"huge": np.uint64(2**64 - 1), "a matrix": np.eye(2), "nothing": h5py.Empty("f"), "a complex": np.complex64(1j)},
    **{"no texts": np.array([], dtype="S3"), "a compound": np.zeros(2, dtype="f4,i8"), "codes": "\x1b[31m\nred"},
    "texts": np.array(["a", "b"], dtype=object).astype(h5py.string_dtype("utf-8")),
    **{"JSON": np.bytes_(b'{"avg_speed": 7}'), "deep JSON": np.bytes_(b"[" * 20_000)},
}
CELLS = (
    (b"", b"\xff", b"x" * 70, b"2012-13-01 00:00:00", b"nan", b"\n", b"1,2"),
    (np.nan, np.inf, -1.0, 1e300, 0.0, 1e39),
)


def _change_object(file: h5py.File, name: str, dice: random.Random) -> str:
    """Something else in the place of a group or dataset: a link, another type or size, or another value in a cell."""
    old, many = file[name], dice.choice((10**12, 10**8))
    others: dict[str, Any] = {
        **{"gone": None, "a group": dict, "a dataset": np.arange(3), "a type": np.dtype("f8")},
        **{"soft to nothing": h5py.SoftLink("/nowhere"), "soft to itself": h5py.SoftLink("/" + name)},
        "external": h5py.ExternalLink("victim.h5", dice.choice(("/g", "/g/d", "/nothing"))),
    }
    kept = {key: value for key, value in old.attrs.items() if not isinstance(value, h5py.Empty)}
    if isinstance(old, h5py.Dataset):
        values, numbers = np.array(old[()]), old.dtype.kind in "fiu"
        changed = values.copy()
        if values.size and old.dtype.kind != "O":
            cell = dice.choice(CELLS[numbers])
            with np.errstate(all="ignore"):
                changed.flat[dice.randrange(values.size)] = np.array(cell).astype(old.dtype)
                others[f"{cell!a} in a cell"] = changed
                others |= {kind: np.nan_to_num(values).astype(kind) for kind in ("f2", ">f8", "u1", "c8") if numbers}
        shapes = values[None], values[:0], values[:1], values[..., :1], values.T, values.ravel()
        others |= {f"shape {each.shape}": each for each in shapes} | {dice.choice([*ODD]): dice.choice([*ODD.values()])}
        others["vast"] = (many, *old.shape[1:])
    how, dtype = dice.choice(list(others)), old.dtype
    del file[name]
    if how == "vast":
        file.create_dataset(name, others[how], dtype, chunks=tuple(min(size, 64) or 1 for size in others[how]))
    elif others[how] is dict:
        file.create_group(name)
    elif others[how] is not None:
        file[name] = others[how]
    if isinstance(file.get(name), h5py.Dataset) and dice.random() < 0.7:
        file[name].attrs.update(kept)
    return f"{name} {how}"


STRUCTURAL: dict[str, Callable[[bytes, random.Random, Path], Changed]] = {
    **dict.fromkeys((".json", ".jsonl"), of_json),
    **{".yaml": of_yaml, ".npy": of_npy, ".h5": of_hdf5},
}
