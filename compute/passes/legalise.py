"""Legalisation: a graph rewritten until a provider's row of ``onnx.providers`` fits it, with the same meaning.

Every rule takes one node and gives what replaces it, written with arrays; what a rule writes is read again, so rules
may build on one another. Results are those of the graph for finite operands: where a choice is written as arithmetic,
an infinity or NaN spreads where the operator would have left it out.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from coterie.compute.array import Array
from coterie.compute.ir import Graph, Node, constant_node, require_graph
from coterie.compute.onnx.providers import TARGETS, ProviderRow
from coterie.compute.passes.constants import fold_constants
from coterie.compute.passes.cse import share_common_subexpressions
from coterie.compute.passes.dead_code import remove_dead_code
from coterie.compute.passes.legal_doubles import cosine, product, sigmoid, softmax
from coterie.compute.passes.legal_masks import (
    chosen,
    compared,
    gathered,
    one_for_all,
    running_sum,
    scattered,
    smaller_of,
)
from coterie.compute.passes.legal_numbers import logarithm, softplus
from coterie.compute.passes.legal_products import (
    added_afterwards,
    bias_afterwards,
    matrix_product,
    transpose_as_convolution,
    two_outputs_a_group,
)
from coterie.compute.passes.site import Site
from coterie.compute.passes.subgraphs import inline_calls, inside
from coterie.compute.passes.unroll import unrolled
from coterie.compute.recorder import RECORDER, Recorder
from coterie.compute.replay import applied
from coterie.compute.verify import verify
from coterie.compute.walk import walk
from coterie.errors import InputError, InternalError


@dataclass(frozen=True, slots=True)
class _Rule:
    """needed: whether a provider makes this necessary. write: what replaces the node, or None to keep it. dtype: of the
    only results that it is about; "" for all.
    """

    needed: Callable[[ProviderRow], bool]
    write: Callable[[Site], Array | None]
    dtype: str = ""


def _lacks(*operators: str) -> Callable[[ProviderRow], bool]:
    return lambda row: not row.operators.issuperset(operators)


def _fixed(operator: str, position: int) -> Callable[[ProviderRow], bool]:
    return lambda row: position in row.constants.get(operator, ())


def _few_doubles(row: ProviderRow) -> bool:
    return "few_doubles" in row.quirks


def _no_masks(row: ProviderRow) -> bool:
    return "mask_products" in row.quirks or not {"Equal", "Greater"} <= row.operators


_RULES: Mapping[str, tuple[_Rule, ...]] = {
    "astype": (_Rule(_no_masks, compared),),
    "broadcast_to": (_Rule(_lacks("Expand"), one_for_all),),
    "conv": (_Rule(_fixed("Conv", 2), bias_afterwards),),
    "conv_input_gradient": (
        _Rule(lambda row: "grouped_transpose" in row.quirks, two_outputs_a_group),
        _Rule(
            _fixed("ConvTranspose", 1),
            lambda site: None if site.constant(1) is not None else transpose_as_convolution(site),
        ),
        _Rule(
            lambda row: "transpose_groups" in row.quirks,
            lambda site: (
                None
                if (site.node.attributes["groups"], site.node.attributes["dilation"]) == (1, (1, 1))
                else transpose_as_convolution(site)
            ),
        ),
    ),
    "cos": (_Rule(_few_doubles, cosine, "float64"),),
    "cumsum": (_Rule(_lacks("CumSum"), running_sum),),
    "gather": (_Rule(_lacks("Gather"), gathered),),
    "gemm": (
        _Rule(_fixed("Gemm", 1), matrix_product),
        _Rule(lambda row: "vector_addend" in row.quirks, added_afterwards),
    ),
    "log": (_Rule(_lacks("Log"), logarithm),),
    "matmul": (_Rule(_few_doubles, product, "float64"),),
    "minimum": (_Rule(_lacks("Min"), smaller_of),),
    "scatter_add": (_Rule(_lacks("ScatterElements"), scattered),),
    "sigmoid": (_Rule(_few_doubles, sigmoid, "float64"),),
    "softmax": (_Rule(lambda row: "single_softmax" in row.quirks, softmax, "float64"),),
    "softplus": (_Rule(_lacks("Log", "Min"), softplus),),
    "where": (_Rule(_lacks("Where"), chosen),),
}


def legalise(graph: Graph, provider: str) -> Graph:
    """The graph in forms that a provider runs: a name of ``onnx.providers.TARGETS``. The same graph when it is legal.

    Loops are written out where the provider has none. Optimise before, not after: a later pass may fuse again what was
    taken apart. What no rule can rewrite stays, and the writer refuses it by name. Raises InputError for an unknown
    provider, TraceError for a loop that cannot be written out.
    """
    require_graph("legalise", graph)
    row = TARGETS.get(provider)
    if row is None:
        raise InputError(f"There is no provider {provider!r}.", hint=f"Choose one of {', '.join(TARGETS)}.")
    flat = inline_calls(graph) if row.control else unrolled(graph)
    return _legal(flat, row)


def _legal(graph: Graph, row: ProviderRow) -> Graph:
    rules = {
        primitive: needed
        for primitive, found in _RULES.items()
        if (needed := tuple(rule for rule in found if rule.needed(row)))
    }
    # A rule writes only what other rules, a bounded number of levels down, rewrite again.
    for _ in range(2 * len(_RULES) + 2):
        before = graph
        graph = inside(lambda held: _legal(held, row))(_sweep(graph, rules))
        if graph is before:
            return graph
    raise InternalError("Legalisation does not come to an end.")


def _sweep(graph: Graph, rules: Mapping[str, Sequence[_Rule]]) -> Graph:
    if not any(_about(node, rules) for node in graph.nodes):
        return graph
    recorder = Recorder()
    producers = graph.producers()
    environment = {
        value: Array(None, value=recorder.add_input(name, value.type), recorder=recorder)
        for name, value in graph.inputs.items()
    }
    fired: set[Node] = set()

    def rewritten(node: Node, operands: list[Array]) -> Sequence[Array]:
        for result in _written(Site(node, environment, producers), _about(node, rules)):
            fired.add(node)
            return (result,)
        return _kept(node, operands, recorder)

    token = RECORDER.set(recorder)
    try:
        walk(graph, environment, rewritten)
        outputs = {name: recorder.lift(environment[value]) for name, value in graph.outputs.items()}
    finally:
        RECORDER.reset(token)
    if not fired:
        return graph
    return share_common_subexpressions(fold_constants(remove_dead_code(verify(recorder.finish(outputs)))))


def _about(node: Node, rules: Mapping[str, Sequence[_Rule]]) -> list[_Rule]:
    """The rules for a node."""
    found = rules.get(node.primitive, ())
    return [rule for rule in found if rule.dtype in ("", node.output.type.dtype)]


def _written(site: Site, rules: Sequence[_Rule]) -> Iterator[Array]:
    for rule in rules:
        result = rule.write(site)
        if result is None:
            continue
        if result.type != site.node.output.type:
            raise InternalError(
                f"Legalisation made {result.type} of {site.node.primitive}, not {site.node.output.type}."
            )
        yield result


def _kept(node: Node, operands: list[Array], recorder: Recorder) -> Sequence[Array]:
    """A node as it is. A constant stays a node of the graph, so that nothing made of it is written out large."""
    if node.primitive != "constant":
        return applied(node, operands)
    copy = constant_node(node.attributes["value"], node.source)
    recorder.nodes.append(copy)
    return (Array(None, value=copy.output, recorder=recorder),)
