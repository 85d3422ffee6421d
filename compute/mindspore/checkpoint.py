"""Parameters in a file: a NumPy archive (.npz in form, whatever its name), never a pickle."""

import zlib
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.lib.npyio import NpzFile

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
            with ZipFile(file, "w") as archive:  # np.savez has arguments of its own, which a parameter may be called
                for name, array in arrays.items():
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                        np.lib.format.write_array(entry, array, allow_pickle=False)
    except OSError as error:
        raise StorageError(f"{ckpt_file_name} cannot be written: {error}") from error


def load_checkpoint(ckpt_file_name: PathLikeStr) -> dict[str, Parameter]:
    """The parameters of a file by name. Raises StorageError when it cannot be read, InputError when it is no such
    file.
    """
    try:
        with Path(ckpt_file_name).open("rb") as file:
            archive: Any = np.load(file, allow_pickle=False)
            if not isinstance(archive, NpzFile):
                raise InputError(f"{ckpt_file_name} is no checkpoint: it holds one array.", hint="Use save_checkpoint.")
            return {name: Parameter(archive[name], name) for name in archive.files}
    except OSError as error:
        raise StorageError(f"{ckpt_file_name} cannot be read: {error}") from error
    except (ValueError, EOFError, BadZipFile, zlib.error, NotImplementedError, SyntaxError, KeyError) as error:
        raise InputError(f"{ckpt_file_name} is no checkpoint: {error}", hint="It may be damaged.") from error


def load_param_into_net(net: Cell, parameter_dict: dict[str, Parameter]) -> tuple[list[str], list[str]]:
    """Write the parameters of a network that are in the dict. The names that the network has and the dict lacks, and
    the names that the dict has and the network lacks. Raises ShapeError for one of another shape or dtype.
    """
    own = net.parameters_dict()
    for name, parameter in own.items():
        if name in parameter_dict:
            parameter.set_data(parameter_dict[name])
    return [name for name in own if name not in parameter_dict], [name for name in parameter_dict if name not in own]
