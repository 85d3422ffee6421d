"""Melt additions and scalings into the matrix product beside them, so that W + (-lr * (x.T @ dy)) becomes one Gemm: no
gradient tensor, no further pass over it.
"""

from coterie.compute.ir import Graph, Node, Value
from coterie.compute.passes.rewrite import View, rewrite


def fuse_products(graph: Graph) -> Graph:
    """One sweep: transposed operands, scalings and addends of matrix products, biases of convolutions."""
    return rewrite(graph, _rule)


def _rule(node: Node, view: View) -> Value | None:
    if node.primitive in ("matmul", "gemm"):
        return _with_transposes(node, view)
    if node.primitive == "transpose":
        return _transposed(node, view)
    if node.primitive == "multiply":
        return _scaled(node, view)
    if node.primitive == "add":
        return _added(node, view)
    if node.primitive == "subtract":
        return _subtracted(node, view)
    return None


def _matrix_transpose(view: View, value: Value) -> Value | None:
    """x, when the value is the transposition of a matrix x."""
    inner = view.producer(value, "transpose")
    return inner.inputs[0] if inner is not None and inner.attributes["permutation"] == (1, 0) else None


def _with_transposes(node: Node, view: View) -> Value | None:
    if node.output.type.rank != 2 or any(value.type.rank != 2 for value in node.inputs[:2]):
        return None
    a, b = (_matrix_transpose(view, value) for value in node.inputs[:2])
    if a is None and b is None:
        return None
    return view.emit(
        "gemm",
        node.inputs[0] if a is None else a,
        node.inputs[1] if b is None else b,
        *node.inputs[2:],
        transpose_a=node.attributes.get("transpose_a", False) != (a is not None),
        transpose_b=node.attributes.get("transpose_b", False) != (b is not None),
    )


def _product(view: View, value: Value) -> Node | None:
    """The product of two matrices, without addend, that makes a value which nothing else reads."""
    node = view.producer(value, "matmul", "gemm")
    return (
        node if node is not None and len(node.inputs) == 2 and value.type.rank == 2 and view.uses(value) == 1 else None
    )


def _gemm(view: View, product: Node, a: Value, b: Value, *addend: Value) -> Value:
    flips = {flag: product.attributes.get(flag, False) for flag in ("transpose_a", "transpose_b")}
    return view.emit("gemm", a, b, *addend, **flips)


def _transposed(node: Node, view: View) -> Value | None:
    """(a @ b).T = b.T @ a.T: a product takes its operands transposed at no cost."""
    product = _product(view, node.inputs[0])
    if product is None or node.attributes["permutation"] != (1, 0):
        return None
    a, b = product.inputs
    return view.emit(
        "gemm",
        b,
        a,
        transpose_a=not product.attributes.get("transpose_b", False),
        transpose_b=not product.attributes.get("transpose_a", False),
    )


def _scaled(node: Node, view: View) -> Value | None:
    """number * (a @ b) = a @ (number * b), on the smaller operand, when that is smaller than the product."""
    for number, value in (node.inputs, node.inputs[::-1]):
        if fused := _scaled_sum(view, node, number, value):
            return fused
        product = _product(view, value)
        if product is None or number.type.size != 1 or value.type.shape != node.output.type.shape:
            continue
        a, b = product.inputs
        small = min(a.type.size, b.type.size)
        if small >= value.type.size or number.type.rank > 2:
            continue
        if a.type.size == small:
            return _gemm(view, product, view.emit("multiply", a, number), b)
        return _gemm(view, product, a, view.emit("multiply", b, number))
    return None


def _scaled_sum(view: View, node: Node, number: Value, value: Value) -> Value | None:
    """number * (a @ b + x * other) = (a @ b) * number + x * (number * other): noise on a gradient, one pass less."""
    fused = view.producer(value, "gemm")
    if fused is None or len(fused.inputs) != 3 or view.uses(value) != 1 or number.type.size != 1:
        return None
    a, b, addend = fused.inputs
    noise = view.producer(addend, "multiply")
    if noise is None or view.uses(addend) != 1 or value.type.shape != node.output.type.shape or number.type.rank > 2:
        return None
    if min(a.type.size, b.type.size) >= value.type.size or addend.type.size != value.type.size:
        return None
    x, other = sorted(noise.inputs, key=lambda operand: -operand.type.size)
    if other.type.size != 1:
        return None
    more = view.emit("multiply", x, view.emit("multiply", other, number))
    if a.type.size < b.type.size:
        return _gemm(view, fused, view.emit("multiply", a, number), b, more)
    return _gemm(view, fused, a, view.emit("multiply", b, number), more)


def _added(node: Node, view: View) -> Value | None:
    for addend, value in (node.inputs, node.inputs[::-1]):
        if value.type.shape != node.output.type.shape:
            continue
        if product := _product(view, value):
            return _gemm(view, product, *product.inputs, addend)
        if fused := _conv_bias(view, value, addend):
            return fused
    return None


def _subtracted(node: Node, view: View) -> Value | None:
    minuend, value = node.inputs
    product = _product(view, value)
    if product is None or value.type.shape != node.output.type.shape:
        return None
    a, b = product.inputs
    if min(a.type.size, b.type.size) >= value.type.size:
        return None
    if a.type.size < b.type.size:
        return _gemm(view, product, view.emit("negative", a), b, minuend)
    return _gemm(view, product, a, view.emit("negative", b), minuend)


def _conv_bias(view: View, value: Value, addend: Value) -> Value | None:
    """A convolution takes a bias of one number for each output channel."""
    conv = view.producer(value, "conv")
    if conv is None or len(conv.inputs) != 2 or view.uses(value) != 1:
        return None
    channels = value.type.shape[1]
    if addend.type.shape not in ((channels, 1, 1), (1, channels, 1, 1)):
        return None
    return view.emit("conv", *conv.inputs, view.emit("reshape", addend, shape=(channels,)), **conv.attributes)
