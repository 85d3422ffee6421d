"""A thin alias layer over the compiler: a script written for MindSpore runs with only its imports changed.

    import mindspore as ms              →  from coterie.compute import mindspore as ms
    from mindspore import nn, ops       →  from coterie.compute.mindspore import nn, ops

Networks are classes with ``construct``; a call of a network, of a gradient function, of an optimizer, or of a
function under ``jit`` is compiled, with parameters as inputs of the graph. Put ``jit`` on the training step to have one
graph for all of it. Not here: groups of parameters, distributed and device settings, dynamic shapes, saving to MindIR
(export with ``to_onnx``). coterie's own functions work on the same arrays.
"""

from coterie.compute.interactive.shard import shard as shard
from coterie.compute.mindspore import dataset as dataset
from coterie.compute.mindspore import initializer as initializer
from coterie.compute.mindspore import nn as nn
from coterie.compute.mindspore import numpy as numpy
from coterie.compute.mindspore import ops as ops
from coterie.compute.mindspore import scipy as scipy
from coterie.compute.mindspore.checkpoint import load_checkpoint as load_checkpoint
from coterie.compute.mindspore.checkpoint import load_param_into_net as load_param_into_net
from coterie.compute.mindspore.checkpoint import save_checkpoint as save_checkpoint
from coterie.compute.mindspore.compiled import jit as jit
from coterie.compute.mindspore.context import GRAPH_MODE as GRAPH_MODE
from coterie.compute.mindspore.context import PYNATIVE_MODE as PYNATIVE_MODE
from coterie.compute.mindspore.context import set_context as set_context
from coterie.compute.mindspore.context import set_seed as set_seed
from coterie.compute.mindspore.module import as_loss as as_loss
from coterie.compute.mindspore.module import as_module as as_module
from coterie.compute.mindspore.module import as_optimizer as as_optimizer
from coterie.compute.mindspore.parameter import Parameter as Parameter
from coterie.compute.mindspore.parameter import ParameterTuple as ParameterTuple
from coterie.compute.mindspore.sink import data_sink as data_sink
from coterie.compute.mindspore.tensor import Tensor as Tensor
from coterie.compute.mindspore.train import Callback as Callback
from coterie.compute.mindspore.train import LossMonitor as LossMonitor
from coterie.compute.mindspore.train import Model as Model
from coterie.compute.mindspore.transforms import GradOperation as GradOperation
from coterie.compute.mindspore.transforms import grad as grad
from coterie.compute.mindspore.transforms import value_and_grad as value_and_grad
from coterie.compute.mindspore.transforms import vmap as vmap
from coterie.compute.numpy import bool_ as bool_
from coterie.compute.numpy import float16 as float16
from coterie.compute.numpy import float32 as float32
from coterie.compute.numpy import float64 as float64
from coterie.compute.numpy import int32 as int32
from coterie.compute.numpy import int64 as int64
from coterie.compute.numpy import uint8 as uint8
