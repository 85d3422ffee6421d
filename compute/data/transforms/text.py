"""Text as numbers."""

from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from coterie.compute.data.transform import Context, Transform
from coterie.compute.data.transforms.checks import number, require, text
from coterie.compute.ir import NDArray
from coterie.errors import DataError


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

    Words are what stands between white space, in lower case where ``lower``. without: words that are left out (stop
    words such as "the"), as they stand in the text or, where ``lower``, in lower case.
    """

    vocabulary: tuple[str, ...]
    lower: bool = True
    without: tuple[str, ...] = ()
    _places: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        places = {word: place for place, word in enumerate(self.vocabulary, 1)}
        require("Words", "the vocabulary must name each word once", len(places) == len(self.vocabulary))
        both = sorted(places.keys() & set(self.without))
        require("Words", f"{', '.join(both[:3])} cannot be in the vocabulary and left out", not both)
        object.__setattr__(self, "_places", places)

    def apply(self, value: Any, context: Context) -> NDArray:
        said = text(value).lower() if self.lower else text(value)
        return np.array([self._places.get(word, 0) for word in said.split() if word not in self.without], np.int64)


@final
@dataclass(frozen=True)
class RandomMask(Transform):
    """Some of the ids [N] replaced by the id ``mask``, each with this probability, for a model that is to guess them
    (Devlin et al., BERT, 2019): map it into a column of its own and keep the ids as labels. Same dtype.

    words: where it is given, a tenth of the chosen ids become one of 1 … words instead, as likely each, and a tenth
    stay as they are. keep: ids that are never replaced, such as 0 of the padding.
    """

    mask: int
    probability: float = 0.15
    words: int | None = None
    keep: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        require(self, "the probability must lie in [0, 1]", 0 <= self.probability <= 1)
        require(self, "words must be at least 1", self.words is None or self.words >= 1)

    def apply(self, value: Any, context: Context) -> NDArray:
        ids = number(value)
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise DataError("ids are whole numbers [N].", hint="Words and Characters make them.", code="data_dtype")
        drawn = context.random.uniform(shape=(3, ids.size))
        chosen = (drawn[0] < self.probability) & ~np.isin(ids, self.keep)
        masked = np.where(chosen, np.asarray(self.mask, ids.dtype), ids)
        if self.words is not None:
            others = (1 + np.floor(drawn[2] * self.words)).astype(ids.dtype)
            masked = np.where(chosen & (drawn[1] < 0.1), others, masked)
            masked = np.where(chosen & (drawn[1] >= 0.9), ids, masked)
        return masked
