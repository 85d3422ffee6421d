"""Text as numbers."""

from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from coterie.compute.data.transform import Context, Transform
from coterie.compute.data.transforms.checks import require, text
from coterie.compute.ir import NDArray


@final
@dataclass(frozen=True)
class Characters(Transform):
    """The place of every character in the vocabulary, counted from 1; 0 for one that it has not. int64 [characters]."""

    vocabulary: str
    _places: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        places = {character: place for place, character in enumerate(self.vocabulary, 1)}
        require("Characters", "the vocabulary must name each character once", len(places) == len(self.vocabulary))
        object.__setattr__(self, "_places", places)

    def apply(self, value: Any, context: Context) -> NDArray:
        return np.array([self._places.get(character, 0) for character in text(value)], np.int64)


@final
@dataclass(frozen=True)
class Words(Transform):
    """The place of every word in the vocabulary, counted from 1; 0 for one that it has not. int64 [words].

    Words are what stands between white space, in lower case where ``lower``.
    """

    vocabulary: tuple[str, ...]
    lower: bool = True
    _places: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        places = {word: place for place, word in enumerate(self.vocabulary, 1)}
        require("Words", "the vocabulary must name each word once", len(places) == len(self.vocabulary))
        object.__setattr__(self, "_places", places)

    def apply(self, value: Any, context: Context) -> NDArray:
        said = text(value).lower() if self.lower else text(value)
        return np.array([self._places.get(word, 0) for word in said.split()], np.int64)
