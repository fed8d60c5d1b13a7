"""Propose how a table is read, from its first rows, the ids of ``--meta-csv`` and the user's options.

What rows or names alone suggest is never a proof.  A description is proved where ids name the columns or the cells of a
column, where an option says it, or where the table is a published one; each other guess is a question, with the command
that answers it.  A *template* names the columns of readings: ``{sensor}``, ``speed{lane}``, ``V{time}`` or just ``speed``.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from socialx.core.errors import Argument, Command, Message, SettingsError, SocialxError, sample as listed
from socialx.files.sources.request import ConvertOptions, options
from socialx.files.sources.tables import clocks, words
from socialx.files.sources.tables.cells import ABSENT, NUMBER, Sample
from socialx.files.sources.tables.clocks import Clock
from socialx.files.sources.tables.known import Known, match
from socialx.files.sources.tables.spec import TableSpec, read_name
from socialx.files.store.ids import casefolded_key
from socialx.files.store.quantities import QUANTITIES, SPEED
