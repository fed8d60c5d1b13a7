"""Sensor ids in the spellings that people use."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable
from functools import lru_cache


@lru_cache(maxsize=1 << 17)  # of a table with many sensors, whose names are asked again and again
def match_key(sensor_id: str) -> int | str:
    """Return the key that spellings share: the integer for ``0400001`` and ``400001.0``, else the text."""
    text = sensor_id.strip()
    return int(text.partition(".")[0]) if re.fullmatch(r"[0-9]{1,64}(\.0*)?", text) else text


def casefolded_key(sensor_id: str) -> str:
    """Return the key that spellings share in any letter case."""
    return str(match_key(sensor_id)).casefold()


def case_variants(ids: Iterable[str], keys: Collection[int | str]) -> dict[str, int | str]:
    """Return by id the key that differs from the id in letter case alone; ambiguous ids and keys are left out."""
    ids, spelt = list(ids), {casefolded_key(str(key)): key for key in keys}
    theirs, mine = Counter(casefolded_key(str(key)) for key in keys), Counter(map(casefolded_key, ids))
    alone = [vdid for vdid in ids if mine[casefolded_key(vdid)] == theirs[casefolded_key(vdid)] == 1]
    return {vdid: spelt[casefolded_key(vdid)] for vdid in alone if match_key(vdid) not in keys}


def find_repeated(ids: Iterable[str]) -> list[str]:
    """Return ids that occur twice, in any spelling, or that look like copies by pandas, such as ``S1.1``."""
    ids = list(ids)
    names = {text: text for text in ids} | {copy: copy.rpartition(".")[0] for copy in renamed_copies(ids)}
    counts = Counter(match_key(names[text]) for text in ids)
    return [text for text in ids if counts[match_key(names[text])] > 1]


def renamed_copies(ids: list[str]) -> list[str]:
    """Return the ids that pandas gives to duplicate columns: ``S1.1`` next to ``S1``."""
    there = {*ids}
    return [text for text in ids if re.fullmatch(r".+\.[1-9][0-9]*", text) and text.rpartition(".")[0] in there]
