"""Parameters in a file: a NumPy archive (.npz in form, whatever its name), never a pickle."""

from os import PathLike
from pathlib import Path
from typing import TypeAlias

import numpy as np

from coterie.compute.ir import NDArray
from coterie.compute.mindspore.cell import Cell
from coterie.compute.mindspore.parameter import Parameter
from coterie.errors import InputError, StorageError

PathLikeStr: TypeAlias = "str | PathLike[str]"


def save_checkpoint(save_obj: Cell, ckpt_file_name: PathLikeStr) -> None:
    """Write all parameters of a network by name. Raises StorageError when the file cannot be written."""
    arrays: dict[str, NDArray] = {name: parameter.numpy() for name, parameter in save_obj.parameters_and_names()}
    try:
        with Path(ckpt_file_name).open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)  # pyright: ignore[reportArgumentType]
    except OSError as error:
        raise StorageError(f"{ckpt_file_name} cannot be written: {error}") from error


def load_checkpoint(ckpt_file_name: PathLikeStr) -> dict[str, Parameter]:
    """The parameters of a file by name. Raises StorageError when it cannot be read, InputError when it is no such
    file.
    """
    try:
        with np.load(ckpt_file_name, allow_pickle=False) as archive:
            return {name: Parameter(archive[name], name) for name in archive.files}
    except OSError as error:
        raise StorageError(f"{ckpt_file_name} cannot be read: {error}") from error
    except (ValueError, AttributeError) as error:
        raise InputError(f"{ckpt_file_name} is no checkpoint: {error}") from error


def load_param_into_net(net: Cell, parameter_dict: dict[str, Parameter]) -> tuple[list[str], list[str]]:
    """Write the parameters of a network that are in the dict. The names that the network has and the dict lacks, and
    the names that the dict has and the network lacks. Raises ShapeError for one of another shape or dtype.
    """
    own = net.parameters_dict()
    for name, parameter in own.items():
        if name in parameter_dict:
            parameter.set_data(parameter_dict[name])
    return [name for name in own if name not in parameter_dict], [name for name in parameter_dict if name not in own]
