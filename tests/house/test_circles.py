"""No module imports itself through others, not even for types."""

import grimp


def circles(modules: set[str], graph: grimp.ImportGraph) -> list[list[str]]:
    """The groups of modules of which each imports every other, by whatever way: Tarjan (1972), without recursion."""
    place: dict[str, int] = {}
    lowest: dict[str, int] = {}
    open_: list[str] = []
    found: list[list[str]] = []

    def imported(module: str) -> list[str]:
        return sorted(graph.find_modules_directly_imported_by(module) & modules)

    for root in sorted(modules):
        walk = [] if root in place else [(root, iter(imported(root)))]
        while walk:
            module, rest = walk[-1]
            if module not in place:
                place[module] = lowest[module] = len(place)
                open_.append(module)
            following = next((each for each in rest if each not in place), None)
            if following is not None:
                walk.append((following, iter(imported(following))))
                continue
            lowest[module] = min([place[module], *(lowest[each] for each in imported(module) if each in open_)])
            walk.pop()
            if lowest[module] == place[module]:
                circle = open_[open_.index(module) :]
                del open_[open_.index(module) :]
                found += [sorted(circle)] if len(circle) > 1 else []
    return found


def test_a_circle_is_found() -> None:
    graph = grimp.ImportGraph()
    for importer, imported in (("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("e", "a")):
        graph.add_import(importer=importer, imported=imported)
    assert circles({"a", "b", "c", "d", "e"}, graph) == [["a", "b", "c"]]


def test_no_module_stands_in_a_circle() -> None:
    graph = grimp.build_graph("coterie", exclude_type_checking_imports=False)
    assert circles(set(graph.modules), graph) == []
