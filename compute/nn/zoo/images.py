"""Convolutional networks of the literature for images of 28 by 28 pixels."""

from coterie.compute.nn.activations import ReLU
from coterie.compute.nn.convolution import Conv2d
from coterie.compute.nn.linear import Linear
from coterie.compute.nn.pooling import MaxPool2d
from coterie.compute.nn.sequential import Flatten, Sequential


def lenet(classes: int = 10) -> Sequential:
    """LeNet-5 (LeCun et al. 1998), ReLU and max pooling: images [B, 1, 28, 28] → logits [B, classes]; 61 706 parameters
    as it stands.
    """
    return Sequential(
        Conv2d(1, 6, 5, padding=2),
        ReLU(),
        MaxPool2d(2),
        Conv2d(6, 16, 5),
        ReLU(),
        MaxPool2d(2),
        Flatten(),
        Linear(400, 120),
        ReLU(),
        Linear(120, 84),
        ReLU(),
        Linear(84, classes),
    )


def fedavg_cnn(classes: int = 10) -> Sequential:
    """The CNN of McMahan et al. 2017: images [B, 1, 28, 28] → logits [B, classes]; 1 663 370 parameters as it
    stands.
    """
    return Sequential(
        Conv2d(1, 32, 5, padding=2),
        ReLU(),
        MaxPool2d(2),
        Conv2d(32, 64, 5, padding=2),
        ReLU(),
        MaxPool2d(2),
        Flatten(),
        Linear(3136, 512),
        ReLU(),
        Linear(512, classes),
    )
