"""The hierarchy is drawn truly, and every error code has its place in docs/errors.md."""

import ast
import inspect
import re
from pathlib import Path

from coterie import errors

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("compute", "protocol", "privacy", "aggregation", "client_sdk", "simulation", "server", "cli")
PAGE = ROOT / "docs" / "errors.md"
CLASSES = {
    name: value
    for name, value in vars(errors).items()
    if inspect.isclass(value) and issubclass(value, errors.CoterieError)
}


def _drawn() -> dict[str, str]:
    """Class name → its parent's name, read from the tree in the module's docstring."""
    parents: dict[str, str] = {}
    path: list[str] = []
    for line in (inspect.getdoc(errors) or "").splitlines():
        found = re.match(r"^    (?P<branches>[ │├└─]*)(?P<name>[A-Z]\w+)", line)
        if found is None:
            continue
        depth = len(found["branches"]) // 4
        del path[depth:]
        parents[found["name"]] = path[-1] if path else "Exception"
        path.append(found["name"])
    return parents


def test_the_drawn_tree_is_the_hierarchy() -> None:
    assert _drawn() == {name: value.__bases__[0].__name__ for name, value in CLASSES.items()}


def test_every_class_has_a_code_of_its_own_and_a_sentence_for_a_message() -> None:
    codes = [value.code for value in CLASSES.values()]
    assert len(set(codes)) == len(codes)
    for name, value in CLASSES.items():
        assert value().message.endswith("."), name


def _name(call: ast.Call) -> str:
    """The last name of what is called."""
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def _code_argument(call: ast.Call) -> ast.expr | None:
    """What a call that makes an error, or a problem answer, gives as its code."""
    if _name(call) not in {*CLASSES, "problem", "Problem"}:
        return None
    return next((keyword.value for keyword in call.keywords if keyword.arg == "code"), None)


def _wrappers(tree: ast.Module) -> dict[str, tuple[int, str, str]]:
    """Functions whose parameter becomes an error's code: name → position of the parameter, text before and after it."""
    found: dict[str, tuple[int, str, str]] = {}
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        parameters = [argument.arg for argument in function.args.args if argument.arg != "self"]
        for call in ast.walk(function):
            if not isinstance(call, ast.Call):
                continue
            match _code_argument(call):
                case ast.Name(id=name) if name in parameters:
                    found[function.name] = (parameters.index(name), "", "")
                case ast.JoinedStr(
                    values=[ast.Constant(value=str(head)), ast.FormattedValue(value=ast.Name(id=name))]
                ) if name in parameters:
                    found[function.name] = (parameters.index(name), head, "")
                case ast.JoinedStr(
                    values=[ast.FormattedValue(value=ast.Name(id=name)), ast.Constant(value=str(tail))]
                ) if name in parameters:
                    found[function.name] = (parameters.index(name), "", tail)
                case _:
                    pass
    return found


def _codes_of(tree: ast.Module) -> dict[str, int]:
    """Code → line, of every literal code in a module, given directly or through a function of the module."""
    codes: dict[str, int] = {}
    wrappers = _wrappers(tree)
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        match _code_argument(call):
            case ast.Constant(value=str(code)):
                codes.setdefault(code, call.lineno)
            case _:
                pass
        if _name(call) in wrappers:
            position, head, tail = wrappers[_name(call)]
            match call.args[position : position + 1]:
                case [ast.Constant(value=str(code))]:
                    codes.setdefault(f"{head}{code}{tail}", call.lineno)
                case _:
                    pass
    return codes


def test_codes_are_found_however_they_are_given() -> None:
    source = """
def _refused(code, message): return errors.PlanRefused(message, code=f"plan_{code}")
def check(self, kind): raise ShapeError("x", code=f"{kind}_shape")
raise errors.DataError("x", code="direct")
raise _refused("size", "x")
check("loss")
"""
    assert set(_codes_of(ast.parse(source))) == {"direct", "plan_size", "loss_shape"}


def _raised_codes() -> dict[str, str]:
    """Code → the place that raises it."""
    codes = {value.code: f"errors.{name}" for name, value in CLASSES.items()}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for code, line in _codes_of(ast.parse(path.read_text(encoding="utf-8"))).items():
                codes.setdefault(code, f"{path.relative_to(ROOT)}:{line}")
    return codes


def _documented_codes() -> set[str]:
    """The headings of docs/errors.md: an error's `doc` address ends in its code with dashes, which is the heading."""
    text = PAGE.read_text(encoding="utf-8")
    return {found[1].replace("-", "_") for found in re.finditer(r"^#{3} ([a-z0-9-]+)$", text, re.MULTILINE)}


def test_every_error_code_is_documented() -> None:
    documented = _documented_codes()
    assert {code: place for code, place in _raised_codes().items() if code not in documented} == {}


def test_no_documented_code_is_gone() -> None:
    source = "\n".join(
        path.read_text(encoding="utf-8") for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))
    )
    unseen = _documented_codes() - set(_raised_codes())
    # A code may be made of a kind and an ending, as in f"{kind}_shape".
    made = {code for code in unseen if f'}}_{code.rpartition("_")[2]}"' in source}
    assert {code for code in unseen - made if not re.search(rf"[\"'`]{code}[\"'`]", source)} == set()


def test_every_documented_code_says_what_to_do() -> None:
    sections = re.split(r"^### ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    titles = [section.partition("\n")[0] for section in sections]
    assert titles
    assert len(set(titles)) == len(titles), "docs/errors.md says of a code in two places what it means"
    for section in sections:
        title, _, body = section.partition("\n")
        assert "**Fix:**" in body, f"docs/errors.md: {title} does not say what to do"
