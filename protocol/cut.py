"""What is done to the numbers that cross the cut of a split network before they are sent: compression, and protections
of embeddings, gradients and labels. Part of the plan, so that every role knows what its partners do.

    CutPolicy(compression="int4")                                     4 bits a number
    CutPolicy(embedding=EmbeddingNoise(clip=1.0, deviation=0.5))      of every role with features
    CutPolicy(gradient=GradientNoise(kind="max_norm"))                of the role with the labels
    CutPolicy(label=RandomisedLabels(epsilon=2.0))

Each is checked whole when it is made: errors.InputError (``message_invalid``) names the field and says what it may be.
"""

from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, Field

from coterie.protocol.by_hand import ByHand
from coterie.protocol.conversion import UnlessNone
from coterie.protocol.cut_tensors import FLOAT32, form_of

CutNumber = Annotated[float, Field(strict=True, gt=0, le=1e9, allow_inf_nan=False)]
GradientKind = Literal["max_norm", "gaussian", "marvell"]


def _known(name: str) -> str:
    form_of(name)
    return name


CutCompression: TypeAlias = Annotated[str, Field(strict=True, max_length=32), AfterValidator(_known)]
"""A name of `coterie.protocol.cut_tensors`: float32, float16, int8 to int1, topk:p."""


class EmbeddingNoise(ByHand):
    """Every embedding is shortened to the norm `clip`, and Gaussian noise is added to each of its numbers.

    clip: the longest that an embedding may be (L2).
    deviation: standard deviation of the noise.
    """

    clip: CutNumber
    deviation: CutNumber


class GradientNoise(ByHand):
    """Noise on the gradients that go back, against reading labels off them (Li et al., arXiv:2102.08504).

    kind: ``max_norm`` makes every gradient of a batch as long as the longest, on average, by noise along itself;
        ``gaussian`` adds the same isotropic noise to all; ``marvell`` shapes the noise of each class so that both
        classes look alike, for the least noise (two classes only).
    scale: how much. Of ``gaussian`` the noise's expected norm, in norms of the batch's longest gradient. Of ``marvell``
        the expected squared norm of the noise, in squared distances of the two classes' mean gradients. ``max_norm``
        takes none.
    """

    kind: GradientKind
    scale: CutNumber = 1.0


class RandomisedLabels(ByHand):
    """Labels of a training are given by randomised response before anything is computed from them.

    epsilon: of differential privacy of one row's label, whatever is made of the labels afterwards.
    """

    epsilon: Annotated[float, Field(strict=True, gt=0, le=500, allow_inf_nan=False)]


class CutPolicy(ByHand):
    """Everything that is done at the cut. As it is made without arguments: nothing.

    compression: of embeddings and gradients, after noise.
    embedding: of every embedding, in every task.
    gradient: of every gradient.
    label: of the labels of a training. Evaluations take the labels as they are; nothing of them leaves.
    """

    compression: Annotated[CutCompression, Field(exclude_if=lambda name: name == FLOAT32)] = FLOAT32
    embedding: Annotated[EmbeddingNoise | None, UnlessNone] = None
    gradient: Annotated[GradientNoise | None, UnlessNone] = None
    label: Annotated[RandomisedLabels | None, UnlessNone] = None

    @property
    def does_nothing(self) -> bool:
        """Whether numbers are sent as they are."""
        return self == CutPolicy()
