"""Random programs of if, while, for, break, continue, return and else: rewritten and compiled they do what Python does
(A6, D5, D6). The rewritten source also runs on plain numbers, where nothing is traced.
"""

import linecache
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest

from coterie.compute import numpy as cnp
from coterie.compute.array import Array
from coterie.compute.interactive.frontend.rewrite import rewrite
from coterie.compute.interactive.jit import jit

NAMES = ("a", "b", "c")
POINTS = [np.asarray(p) for p in ([0.5, -1.25, 2.0], [1.5, 1.0, -0.5], [-2.0, 0.25, 0.75], [3.0, 2.5, 1.0])]


class Programs:
    """Writes a function of x[3] with the variables a, b and c. Loops end: every one counts down on the host, or tests a
    variable that grows in each of its steps.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.loops = 0

    def source(self) -> str:
        """The text of the function."""
        lines = ["def program(x):", "    a, b, c = x[0], x[1], x[2]", *self.block(1, 3, in_loop=False)]
        return "\n".join([*lines, f"    return {self.expression()}", ""])

    def block(self, depth: int, budget: int, *, in_loop: bool) -> list[str]:
        """Statements, at least one."""
        made: list[str] = []
        for _ in range(self.random.randint(1, 3)):
            made += self.statement(depth, budget, in_loop=in_loop)
        return made

    def statement(self, depth: int, budget: int, *, in_loop: bool) -> list[str]:
        """One statement."""
        pad, choice = "    " * depth, self.random.random()
        if budget == 0 or choice < 0.4:
            return [f"{pad}{self.random.choice(NAMES)} = {self.expression()}"]
        if choice < 0.75:
            return self.choice(depth, budget, in_loop=in_loop)
        return self.loop(depth, budget)

    def choice(self, depth: int, budget: int, *, in_loop: bool) -> list[str]:
        """An if, which may leave the loop or the function."""
        pad = "    " * depth
        made = [f"{pad}if {self.test()}:", *self.block(depth + 1, budget - 1, in_loop=in_loop)]
        leave = self.random.random()
        if in_loop and leave < 0.25:
            made.append(f"{pad}    {self.random.choice(('break', 'continue'))}")
        elif leave < 0.45:
            made.append(f"{pad}    return {self.expression()}")
        if self.random.random() < 0.4:
            made += [f"{pad}else:", *self.block(depth + 1, budget - 1, in_loop=in_loop)]
        return made

    def loop(self, depth: int, budget: int) -> list[str]:
        """A loop over rows, over a number of steps, or while a test holds."""
        pad = "    " * depth
        self.loops += 1
        kind, index = self.random.choice(("rows", "range", "while")), self.loops
        head = {"rows": f"for r{index} in x:", "range": f"for i{index} in range({self.random.randint(1, 3)}):"}
        first = {"rows": f"{pad}    {self.random.choice(NAMES)} = {self.random.choice(NAMES)} + 0.5 * r{index}"}
        if kind == "while":
            made = [f"{pad}n{index} = a * 0.0", f"{pad}while n{index} < 3.5 and {self.test()}:"]
            made.append(f"{pad}    n{index} = n{index} + 1.0")
        else:
            made = [f"{pad}{head[kind]}", *([first[kind]] if kind in first else [])]
        made += self.block(depth + 1, budget - 1, in_loop=True)
        if self.random.random() < 0.25:
            made += [f"{pad}else:", *self.block(depth + 1, 0, in_loop=False)]
        return made

    def expression(self) -> str:
        """A bounded number: sine keeps what grows in loops small."""
        left, right = self.random.choice(NAMES), self.random.choice(NAMES)
        number = self.random.choice(("0.5", "1.25", "-0.75"))
        forms = (
            f"sin({left} * {number} + {right})",
            f"{left} * {number}",
            f"sin({left}) + {number}",
            f"({left} if {self.test()} else sin({right}))",
        )
        return self.random.choice(forms)

    def test(self) -> str:
        """A decision on traced numbers."""
        left, right = self.random.choice(NAMES), self.random.choice(NAMES)
        number = self.random.choice(("0.1", "0.6", "-0.4"))
        forms = (
            f"{left} > {number}",
            f"{left} < {right} + {number}",
            f"not {left} > {number}",
            f"({left} > {number} and {right} < 1.3)",
            f"({left} > 1.1 or {right} > {number})",
            f"-1.2 < {left} < {right} + {number}",
        )
        return self.random.choice(forms)


def defined(source: str, name: str) -> Callable[..., Any]:
    """The function of a source that can be read again, as that of a file."""
    scope: dict[str, Any] = {"sin": cnp.sin}
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    exec(compile(source, name, "exec"), scope)
    return scope["program"]


@pytest.mark.capability("A6", "D5", "D6")
@pytest.mark.parametrize("seed", range(60))
def test_a_random_program_does_what_python_does(seed: int) -> None:
    source = Programs(seed).source()
    program = defined(source, f"<program {seed}>")
    compiled = jit(program, fullgraph=True)
    rewritten = rewrite(program)
    for point in POINTS:
        expected = program(Array(point)).item()
        assert rewritten(Array(point)).item() == expected, source
        assert compiled(point).item() == pytest.approx(expected, rel=1e-5, abs=1e-6), source
    assert compiled.compilations == 1
