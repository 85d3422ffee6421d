"""The compiler: array functions, tracing, IR, autodiff, passes, ONNX and its runtime; nn, optim and data.

The public names are loaded on first use, so that importing one part does not load the others.
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from coterie.compute.lazy import loader

if TYPE_CHECKING:
    from coterie.compute.array import Array as Array
    from coterie.compute.autodiff import grad as grad
    from coterie.compute.autodiff import value_and_grad as value_and_grad
    from coterie.compute.autodiff import vjp as vjp
    from coterie.compute.batching import vmap as vmap
    from coterie.compute.clipping.transform import clipped_grad as clipped_grad
    from coterie.compute.clipping.transform import noised_mean as noised_mean
    from coterie.compute.control.derived import checkpoint as checkpoint
    from coterie.compute.control.derived import custom_vjp as custom_vjp
    from coterie.compute.control.functions import cond as cond
    from coterie.compute.control.functions import scan as scan
    from coterie.compute.control.functions import while_loop as while_loop
    from coterie.compute.drawing import to_dot as to_dot
    from coterie.compute.extension.definition import primitive as primitive
    from coterie.compute.extension.laws import check_primitive as check_primitive
    from coterie.compute.extension.operator import operator_vjp as operator_vjp
    from coterie.compute.extension.plugins import load_plugins as load_plugins
    from coterie.compute.extension.registry import Registry as Registry
    from coterie.compute.extension.registry import register as register
    from coterie.compute.extension.registry import register_kernel as register_kernel
    from coterie.compute.extension.registry import use_registry as use_registry
    from coterie.compute.graph_file import graph_digest as graph_digest
    from coterie.compute.graph_file import load_graph as load_graph
    from coterie.compute.graph_file import save_graph as save_graph
    from coterie.compute.interactive.aot import aot_compile as aot_compile
    from coterie.compute.interactive.autojit import autojit as autojit
    from coterie.compute.interactive.jit import jit as jit
    from coterie.compute.interactive.mode import get_mode as get_mode
    from coterie.compute.interactive.mode import set_mode as set_mode
    from coterie.compute.interactive.mode import use_mode as use_mode
    from coterie.compute.interactive.shard import shard as shard
    from coterie.compute.interactive.tape import Variable as Variable
    from coterie.compute.interactive.tape import backward as backward
    from coterie.compute.interactive.tape import tape as tape
    from coterie.compute.interpret import interpret as interpret
    from coterie.compute.memory.report import memory_report as memory_report
    from coterie.compute.onnx.writer import to_onnx as to_onnx
    from coterie.compute.passes import optimise as optimise
    from coterie.compute.passes.cost import bytes_moved as bytes_moved
    from coterie.compute.passes.cost import flops as flops
    from coterie.compute.passes.formulas import simplify_formulas as simplify_formulas
    from coterie.compute.passes.inference import bind_weights as bind_weights
    from coterie.compute.passes.inference import in_float16 as in_float16
    from coterie.compute.passes.inference import optimise_for_inference as optimise_for_inference
    from coterie.compute.passes.legalise import legalise as legalise
    from coterie.compute.passes.recompute import recompute as recompute
    from coterie.compute.passes.zeros import eliminate_zeros as eliminate_zeros
    from coterie.compute.profile import profile as profile
    from coterie.compute.text import parse as parse
    from coterie.compute.text import to_text as to_text
    from coterie.compute.trace import GraphInputs as GraphInputs
    from coterie.compute.trace import TensorSpec as TensorSpec
    from coterie.compute.trace import trace as trace
    from coterie.compute.trace import trace_named as trace_named
    from coterie.compute.training.data_sink import data_sink as data_sink
    from coterie.compute.verify import verify as verify

_HOMES = {
    "Array": "array",
    "GraphInputs": "trace",
    "Registry": "extension.registry",
    "TensorSpec": "trace",
    "Variable": "interactive.tape",
    "aot_compile": "interactive.aot",
    "autojit": "interactive.autojit",
    "backward": "interactive.tape",
    "bind_weights": "passes.inference",
    "bytes_moved": "passes.cost",
    "check_primitive": "extension.laws",
    "checkpoint": "control.derived",
    "clipped_grad": "clipping.transform",
    "cond": "control.functions",
    "custom_vjp": "control.derived",
    "data_sink": "training.data_sink",
    "eliminate_zeros": "passes.zeros",
    "flops": "passes.cost",
    "get_mode": "interactive.mode",
    "grad": "autodiff",
    "graph_digest": "graph_file",
    "in_float16": "passes.inference",
    "interpret": "interpret",
    "jit": "interactive.jit",
    "legalise": "passes.legalise",
    "load_graph": "graph_file",
    "load_plugins": "extension.plugins",
    "memory_report": "memory.report",
    "noised_mean": "clipping.transform",
    "operator_vjp": "extension.operator",
    "optimise": "passes",
    "optimise_for_inference": "passes.inference",
    "parse": "text",
    "primitive": "extension.definition",
    "profile": "profile",
    "recompute": "passes.recompute",
    "register": "extension.registry",
    "register_kernel": "extension.registry",
    "save_graph": "graph_file",
    "scan": "control.functions",
    "set_mode": "interactive.mode",
    "shard": "interactive.shard",
    "simplify_formulas": "passes.formulas",
    "tape": "interactive.tape",
    "to_dot": "drawing",
    "to_onnx": "onnx.writer",
    "to_text": "text",
    "trace": "trace",
    "trace_named": "trace",
    "use_mode": "interactive.mode",
    "use_registry": "extension.registry",
    "value_and_grad": "autodiff",
    "verify": "verify",
    "vjp": "autodiff",
    "vmap": "batching",
    "while_loop": "control.functions",
}

__all__ = list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]  the table above is the list

__getattr__ = loader(__name__, _HOMES)


class _Package(ModuleType):
    """A package whose functions are not hidden by the modules of the same name that hold them: once loaded, ``trace``
    the module would otherwise stand where ``trace`` the function was.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
