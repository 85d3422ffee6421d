"""Operations for ``Dataset.map``: images, text, sound and numbers. Each is a frozen dataclass of its settings."""

from coterie.compute.data.transforms.augment import RandomBrightness as RandomBrightness
from coterie.compute.data.transforms.augment import RandomContrast as RandomContrast
from coterie.compute.data.transforms.augment import RandomCrop as RandomCrop
from coterie.compute.data.transforms.augment import RandomErase as RandomErase
from coterie.compute.data.transforms.augment import RandomFlip as RandomFlip
from coterie.compute.data.transforms.augment import RandomRotate as RandomRotate
from coterie.compute.data.transforms.images import CenterCrop as CenterCrop
from coterie.compute.data.transforms.images import ChannelsFirst as ChannelsFirst
from coterie.compute.data.transforms.images import DecodeImage as DecodeImage
from coterie.compute.data.transforms.images import Resize as Resize
from coterie.compute.data.transforms.noise import RandomNoise as RandomNoise
from coterie.compute.data.transforms.numbers import Cast as Cast
from coterie.compute.data.transforms.numbers import Normalise as Normalise
from coterie.compute.data.transforms.numbers import OneHot as OneHot
from coterie.compute.data.transforms.numbers import Pad as Pad
from coterie.compute.data.transforms.pitch import PitchShift as PitchShift
from coterie.compute.data.transforms.pitch import RandomPitch as RandomPitch
from coterie.compute.data.transforms.sound import Decibels as Decibels
from coterie.compute.data.transforms.sound import RandomGain as RandomGain
from coterie.compute.data.transforms.sound import Spectrogram as Spectrogram
from coterie.compute.data.transforms.text import Characters as Characters
from coterie.compute.data.transforms.text import RandomMask as RandomMask
from coterie.compute.data.transforms.text import Words as Words

__all__ = [
    "CenterCrop",
    "ChannelsFirst",
    "Cast",
    "Characters",
    "Decibels",
    "DecodeImage",
    "Normalise",
    "OneHot",
    "Pad",
    "PitchShift",
    "RandomBrightness",
    "RandomContrast",
    "RandomCrop",
    "RandomErase",
    "RandomFlip",
    "RandomGain",
    "RandomMask",
    "RandomNoise",
    "RandomPitch",
    "RandomRotate",
    "Resize",
    "Spectrogram",
    "Words",
]
