"""What a batch of samples of a class of yours is: as torch's ``default_collate`` has it."""

from __future__ import annotations

import copy
from collections.abc import MutableMapping, MutableSequence
from typing import Any


def like(sample: Any, batch: Any) -> Any:
    """``batch``, a dict or a list, in the class of ``sample``, with what else a copy of the sample has. As it is, if the class refuses."""
    try:
        if isinstance(batch, dict):
            if not isinstance(sample, MutableMapping):
                return type(sample)(batch)
            clone = copy.copy(sample)
            clone.update(batch)
            return clone
        if not isinstance(sample, MutableSequence):
            return type(sample)(batch)
        parts = copy.copy(sample)
        for place, part in enumerate(batch):
            parts[place] = part
        return parts
    except TypeError:
        return batch
